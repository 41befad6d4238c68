"""The laws of outputs, for every kind: ours and a user's own."""

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mapsto.collection import Collection
from mapsto.outputs import Output, Theta, TokenOutput
from mapsto.ragged import Ragged
from mapsto.testing.batch import Columns, fill, padded
from mapsto.testing.trial import FILLINGS, TYPES, Stored, draw, drawn, prefix, rewritten
from mapsto.testing.verdict import Report, Verdict, tolerance
from mapsto.vocabulary import END

__all__ = ["check_output"]


def check_output(make: Callable[[], Output], values: Sequence[Any], *, laws: Iterable[str] = "PBMDRL") -> list[Verdict]:
    """Hold an output to the laws.

    Args:
        make: gives the output; its weights are drawn anew.
        values: raw values of some rows, as :meth:`~mapsto.outputs.Output.parse` takes them; three at least, of
            different lengths if they can have any.
        laws: the letters of those to try.

    Example:
        >>> from mapsto.testing import require
        >>> from mapsto.outputs.vector import VectorOutput
        >>> mood = {"mood": {"kind": "label", "classes": ["bad", "good"]}}
        >>> require(check_output(lambda: VectorOutput(8, targets=mood), [("good",), ("bad",), ("good",)]))
    """
    trial = _Trial(make, list(values))
    trials: dict[str, list[Callable[[_Trial, Report], None]]] = {
        "P": [_contents],
        "B": [_company],
        "M": [_empty],
        "D": [_determinism],
        "R": [_round_trip],
        "L": [_likelihood, _whole],
    }
    return Report.of(trial.kind).hold(trial, trials, laws)


@dataclass
class _Trial:
    make: Callable[[], Output]
    values: list[Any]
    kind: Output = field(init=False)
    rows: Stored = field(init=False)

    def __post_init__(self) -> None:
        self.kind = self.make()
        drawn(self.kind)
        self.rows = Stored(self.kind, self.values)

    def of(self, dtype: torch.dtype) -> Output:
        return copy.deepcopy(self.kind).to(dtype)

    def memory(self, dtype: torch.dtype, rows: Sequence[int] | None = None) -> Collection:
        """What the answers are read from: as many items a row as the target has, or some."""
        whole = self.rows.gather()
        valid = whole["valid"] if "valid" in whole else prefix([5 - i % 4 for i in range(len(self.rows))], 5)
        items = draw(*valid.shape, self.kind.dim, seed=3, dtype=dtype)
        memory = Collection.build(items, valid)
        if rows is None:
            return memory
        picked = memory[torch.tensor(rows, dtype=torch.int64)]
        longest = int(picked.lengths.max()) if len(rows) else 0
        return Collection(picked.items[:, :longest], picked.valid[:, :longest])

    def theta(self, kind: Output, memory: Collection, target: Columns) -> Theta:
        """θ of queries that answer for themselves, moved by their memory."""
        queries = kind.queries(memory, target)
        moved = queries.items + memory.items.sum(1, keepdim=True) / 5
        return dict(kind(moved))


def _sums(kind: Output, theta: Theta, target: Columns) -> list[Tensor]:
    loss = kind.loss(theta, target)
    return [kind.log_likelihood(theta, target), loss.per_example(), loss.count, *loss.terms.values()]


def _contents(trial: _Trial, report: Report) -> None:
    target = trial.rows.gather()
    if not padded(target):
        return
    for dtype in TYPES:
        with report.case(
            "P", "what stands at padding changes no loss and no gradient, exactly", str(dtype)[6:]
        ) as case:
            kind = trial.of(dtype)
            clean = {n: t.detach() for n, t in trial.theta(kind, trial.memory(dtype), target).items()}
            more = next(iter(clean.values())).shape[1] - target["valid"].shape[1]  # places that no row has a target for
            gone = torch.nn.functional.pad(~target["valid"], (0, more), value=True)

            def answer(value: float) -> list[Tensor]:
                theta = {n: t.masked_fill(gone[..., None], value).requires_grad_() for n, t in clean.items()}  # noqa: B023
                sums = _sums(kind, theta, fill(target, value))  # noqa: B023
                return [*sums, *torch.autograd.grad(sums[1].sum(), list(theta.values()))]

            wanted = answer(0.0)
            case.zero([g[gone] for g in wanted[-len(clean) :]], "gradients at padding")
            for value in FILLINGS:
                case.exactly(answer(value), wanted, f"with {value:g} at padding, results")


def _company(trial: _Trial, report: Report) -> None:
    for dtype in TYPES:
        with report.case("B", "a row's loss alone is its loss in any batch and order", str(dtype)[6:]) as case:
            kind, target = trial.of(dtype), trial.rows.gather()
            wanted = _sums(kind, trial.theta(kind, trial.memory(dtype), target), target)
            for rows in trial.rows.companies():
                target = trial.rows.gather(rows)
                found = _sums(kind, trial.theta(kind, trial.memory(dtype, rows), target), target)
                case.that(all(t.shape == (len(rows),) for t in found), "a loss is not one number a row")
                case.agree(found, [t[rows] for t in wanted], tolerance(dtype), f"rows {rows}")


def _empty(trial: _Trial, report: Report) -> None:
    with report.case("M", "no rows and rows without targets cost nothing, with finite gradients") as case:
        kind, target, memory = trial.of(torch.float32), trial.rows.gather(), trial.memory(torch.float32)
        none = {n: t[:0] for n, t in target.items()}
        for found in _sums(kind, trial.theta(kind, memory[:0], none), none):
            case.that(found.shape == (0,), f"no rows cost {found.tolist()}")
        if "valid" in target:
            hollow = {**target, "valid": torch.zeros_like(target["valid"])}
            sums = _sums(kind, trial.theta(kind, memory, hollow), hollow)
            case.zero(sums, "likelihood, loss and count without targets")
            case.zero(torch.autograd.grad(sums[1].sum(), list(kind.parameters()), materialize_grads=True), "gradients")


def _determinism(trial: _Trial, report: Report) -> None:
    for dtype in TYPES:
        with report.case(
            "D", "twice gives the same bits, nothing is written to, every parameter gets a gradient"
        ) as case:
            before = torch.random.get_rng_state()
            kind, target, memory = trial.of(dtype), trial.rows.gather(), trial.memory(dtype)
            theta = trial.theta(kind, memory, target)
            kept = [t.clone() for t in (*target.values(), *theta.values(), memory.items)]
            first = _sums(kind, theta, target)
            with torch.no_grad():
                predicted = kind.predict(theta)
            case.that(set(predicted) == set(theta), f"predicts {sorted(predicted)}, but is asked for {sorted(theta)}")
            lengths = {len(array) for arrays in predicted.values() for array in arrays.values()}
            case.that(lengths == {len(trial.rows)}, "predicts another number of rows")
            case.exactly(
                [*target.values(), *theta.values(), memory.items], kept, "target, θ and memory before and after"
            )
            case.exactly(_sums(kind, theta, target), first, "the second loss")
            kind.loss(theta, target).per_example().sum().backward()
            case.learns(kind)
            case.exactly(torch.random.get_rng_state(), before, "the global generator")


def _round_trip(trial: _Trial, report: Report) -> None:
    with report.case("R", "settings, through JSON, and state_dict make the same output again") as case:
        kind, target, memory = trial.of(torch.float32), trial.rows.gather(), trial.memory(torch.float32)
        with torch.random.fork_rng(devices=[]):
            again = type(kind)(kind.dim, **rewritten(kind.settings()))
        again.load_state_dict(kind.state_dict())
        own = [{n for n, _ in one.named_parameters()} for one in (kind, again)]
        case.that(own[0] == own[1], f"other parameters: {sorted(own[0] ^ own[1])}")
        wanted = _sums(kind, trial.theta(kind, memory, target), target)
        case.exactly(_sums(again, trial.theta(again, memory, target), target), wanted, "losses")
        trial.rows.reparse(again, case)


def _likelihood(trial: _Trial, report: Report) -> None:
    """By gradients, which forget the constants of units: what training does is to raise the likelihood."""
    with report.case("L", "an unsmoothed loss falls as the log-likelihood rises, at the same rate") as case:
        kind, target = trial.of(torch.float64), trial.rows.gather()
        if "smoothing" in vars(kind):
            vars(kind)["smoothing"] = 0.0
        clean = trial.theta(kind, trial.memory(torch.float64), target)
        theta = {n: t.detach().requires_grad_() for n, t in clean.items()}
        loss = torch.autograd.grad(kind.loss(theta, target).per_example().sum(), list(theta.values()))
        gain = torch.autograd.grad(kind.log_likelihood(theta, target).sum(), list(theta.values()))
        case.agree(loss, [-g for g in gain], 1e-10, "the gradients of the loss and of -log p")


MOST = 4000
"""Sequences whose probabilities are added up."""


def _whole(trial: _Trial, report: Report) -> None:
    """Of tokens: p of all that end within n tokens, and of all beginnings of n more."""
    if not isinstance(trial.kind, TokenOutput):
        return
    with report.case(
        "L", "probabilities of all sequences, and of the beginnings of longer ones, add up to one"
    ) as case:
        kind, size = trial.of(torch.float64), trial.kind.vocabulary.size
        longest = 1
        while longest < 3 and size ** (longest + 1) <= MOST:
            longest += 1
        ids = [i for i in range(size) if i != END]
        rows = [[*said, END] for n in range(longest) for said in itertools.product(ids, repeat=n)]
        rows += [list(said) for said in itertools.product(ids, repeat=longest)]
        target = kind.gather({"ids": Ragged.pack([np.array(row, np.int32) for row in rows]).take(np.arange(len(rows)))})
        memory = Collection.build(draw(1, 5, kind.dim, seed=3).expand(len(rows), -1, -1))
        total = kind.log_likelihood(trial.theta(kind, memory, target), target).exp().sum()
        case.agree(total, torch.ones_like(total), 1e-10, "the sum")
