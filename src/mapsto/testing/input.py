"""The laws of inputs, for every kind: ours and a user's own."""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.inputs import Input
from mapsto.testing.batch import Columns, fill, padded, pick, stretch, widen
from mapsto.testing.graph import check_compile, check_export
from mapsto.testing.silence import silent
from mapsto.testing.trial import FILLINGS, Stored, bits, drawn, rewritten, ways
from mapsto.testing.verdict import Report, Verdict, tolerance

__all__ = ["check_input"]

AMOUNTS = (1, 10, 50)
LENGTHS = (7, 1, 40, 200)


def check_input(make: Callable[[], Input], values: Sequence[Any], *, laws: Iterable[str] = "PBMDRG") -> list[Verdict]:
    """Hold an input to the laws, on rows of several lengths.

    Args:
        make: gives the input; its weights are drawn anew.
        values: raw values of some rows, as :meth:`~mapsto.inputs.Input.parse` takes them; three at least, of different
            lengths if they can have any.
        laws: the letters of those to try.

    Example:
        >>> from mapsto.testing import require
        >>> from mapsto.inputs.sequence import SequenceInput
        >>> from mapsto.vocabulary import Bytes
        >>> require(check_input(lambda: SequenceInput(8, vocabulary=Bytes()), ["one", "and two", "3"], laws="PB"))
    """
    trial = _Trial(make, list(values))
    trials: dict[str, list[Callable[[_Trial, Report], None]]] = {
        "P": [_promises, _contents, _amount],
        "B": [_company],
        "M": [_empty],
        "D": [_determinism],
        "R": [_round_trip],
        "G": [_graphs],
    }
    return Report.of(trial.kind).hold(trial, trials, laws)


@dataclass
class _Trial:
    make: Callable[[], Input]
    values: list[Any]
    kind: Input = field(init=False)
    rows: Stored = field(init=False)

    def __post_init__(self) -> None:
        made = self.make()
        drawn(made)
        self.kind = silent(made)
        self.rows = Stored(self.kind, self.values)

    def of(self, dtype: torch.dtype, mode: str = "eval") -> Input:
        return copy.deepcopy(self.kind).to(dtype).train(mode == "train")

    def answer(self, dtype: torch.dtype, mode: str, batch: Columns) -> tuple[Collection, list[Tensor]]:
        """The collection, and the gradients of Σ items² in train mode."""
        kind = self.of(dtype, mode)
        out = kind(batch)
        if mode == "eval":
            return out, []
        total = (out.items * out.valid[..., None]).square().sum()
        return out, list(torch.autograd.grad(total, list(kind.parameters()), materialize_grads=True))


def _promises(trial: _Trial, report: Report) -> None:
    with report.case("P", "padding is zeros, items that exist come first, and places are float32") as case:
        out = trial.of(torch.float32)(trial.rows.gather())
        case.zero(out.items[~out.valid], "padded items")
        case.that(bool((out.valid[:, 1:] <= out.valid[:, :-1]).all()), "an item stands behind padding")
        if out.places is not None:
            case.zero(out.places[~out.valid], "padded places")
            case.that(out.places.dtype == torch.float32, f"places are {out.places.dtype}")
        lengths = torch.from_numpy(np.asarray(trial.kind.lengths(trial.rows.columns)))
        case.exactly(lengths, out.lengths, "lengths(...) and the items there are")
        names = trial.kind.names(trial.rows.take())
        case.that([len(row) for row in names] == out.lengths.tolist(), "names(...) does not name every item once")


def _contents(trial: _Trial, report: Report) -> None:
    statement = "what stands at padding changes no item and no gradient, exactly"
    batch = trial.rows.gather()
    if not padded(batch):
        return
    for name, dtype, mode in ways():
        with report.case("P", statement, name) as case:
            wanted = trial.answer(dtype, mode, batch)
            for value in FILLINGS:
                case.exactly(
                    trial.answer(dtype, mode, fill(batch, value)), wanted, f"with {value:g} at padding, results"
                )


def _amount(trial: _Trial, report: Report) -> None:
    batch = trial.rows.gather()
    if not padded(batch):
        return
    for name, dtype, mode in ways():
        with report.case("P", "the amount of padding changes nothing", name) as case:
            wanted, gradients = trial.answer(dtype, mode, batch)
            n = wanted.valid.shape[1]
            for amount in AMOUNTS:
                found, more = trial.answer(dtype, mode, widen(batch, amount))
                same = [found.items[:, :n], *([] if found.places is None else [found.places[:, :n]]), *more]
                other = [wanted.items, *([] if wanted.places is None else [wanted.places]), *gradients]
                case.agree(same, other, tolerance(dtype), f"with {amount} more, results")
                case.that(not found.valid[:, n:].any(), "padding has become items")


def _company(trial: _Trial, report: Report) -> None:
    for name, dtype, mode in ways():
        with report.case("B", "a row gathered alone is the row in any batch and order", name) as case:
            kind = trial.of(dtype, mode)
            wanted = kind(trial.rows.gather())
            for rows in trial.rows.companies():
                found = kind(trial.rows.gather(rows))
                for at, row in enumerate(rows):
                    n = int(wanted.valid[row].sum())
                    case.that(int(found.valid[at].sum()) == n, f"row {row} of {rows} has another number of items")
                    case.agree(found.items[at, :n], wanted.items[row, :n], tolerance(dtype), f"row {row} of {rows}")
                    if wanted.places is not None and found.places is not None:
                        case.exactly(found.places[at, :n], wanted.places[row, :n], f"places of row {row} of {rows}")


def _empty(trial: _Trial, report: Report) -> None:
    batch = trial.rows.gather()
    with report.case("M", "no rows, rows without items and single items give a collection") as case:
        out = trial.of(torch.float32)(pick(batch, torch.arange(0)))
        case.that(out.valid.shape[0] == 0, "no rows become rows")
        if "valid" in batch:
            none = {**batch, "valid": torch.zeros_like(batch["valid"])}
            for part in (none, pick(none, torch.arange(2))):
                out, gradients = trial.answer(torch.float32, "train", part)
                case.that(not out.valid.any(), "nothing becomes items")
                case.zero(out.items, "items of empty rows")
                case.zero(gradients, "gradients from empty rows")
        if "valid" in batch or "size" in batch:
            out = trial.of(torch.float32)(stretch(batch, 1))
            case.that(out.valid.shape[1] == 1 and bool(out.valid.all()), "one item does not stay one")
            case.finite(out.items, "single items")


def _determinism(trial: _Trial, report: Report) -> None:
    before = torch.random.get_rng_state()
    for name, dtype, mode in ways():
        with report.case(
            "D", "twice gives the same bits, nothing is written to, every parameter gets a gradient", name
        ) as case:
            batch = trial.rows.gather()
            kept, wanted = {n: t.clone() for n, t in batch.items()}, trial.answer(dtype, mode, batch)
            case.exactly(
                [bits(t) for t in batch.values()], [bits(t) for t in kept.values()], "the batch before and after"
            )
            case.exactly(trial.answer(dtype, mode, batch), wanted, "the second answer")
            if mode == "train":
                kind = trial.of(dtype, mode)
                kind(batch).items.square().sum().backward()
                case.learns(kind)
    with report.case("D", "the global generator is untouched") as case:
        case.exactly(torch.random.get_rng_state(), before, "the global generator")


def _round_trip(trial: _Trial, report: Report) -> None:
    with report.case(
        "R", "settings, through JSON and vocabulary files, and state_dict make the same input again"
    ) as case:
        kind, batch = trial.of(torch.float32), trial.rows.gather()
        out = kind(batch)
        with torch.random.fork_rng(devices=[]):
            again = type(kind)(out.items.shape[-1], **rewritten(kind.settings())).eval()
        again.load_state_dict(kind.state_dict())
        case.exactly(again(batch), out, "the collection")
        trial.rows.reparse(again, case)


class _Whole(nn.Module):
    def __init__(self, kind: Input):
        super().__init__()
        self.kind = kind

    def forward(self, batch: dict[str, Tensor]) -> Any:
        """Items and which exist."""
        out = self.kind(batch)
        return out.items, out.valid


def _graphs(trial: _Trial, report: Report) -> None:
    batch, whole = trial.rows.gather(), _Whole(trial.of(torch.float32))
    ragged = "valid" in batch or "size" in batch
    lengths = (8, 4, 36) if "size" in batch else LENGTHS
    inputs = [(batch,), *((stretch(batch, n),) for n in lengths if ragged), (pick(batch, torch.arange(2)),)]
    with torch.no_grad():
        check_compile(report, "eval", whole, inputs, 1e-5)
    auto = torch.export.Dim.AUTO
    dims = {
        n: {0: auto, **{d: auto for d in range(1, t.dim()) if ragged and _varies(inputs, n, d)}}
        for n, t in batch.items()
    }
    check_export(report, "eval", whole, inputs[:1] + inputs[-1:], (dims,), 1e-5)


def _varies(inputs: list[Any], name: str, dim: int) -> bool:
    return len({arguments[0][name].shape[dim] for arguments in inputs}) > 1
