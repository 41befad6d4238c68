"""The laws of whole models, trained or not."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from mapsto.collection import Collection, join
from mapsto.models.mapper import Batch, Mapper
from mapsto.nn.position import NoPosition
from mapsto.nn.transformer import Encoder
from mapsto.noise import Random
from mapsto.outputs import Theta
from mapsto.stream import Clock, stream
from mapsto.testing.batch import apply, fill, padded, pick, stretch, widen
from mapsto.testing.graph import check_compile, check_export
from mapsto.testing.mapped import Mapped
from mapsto.testing.order import Unordered
from mapsto.testing.silence import at, silent
from mapsto.testing.trial import FILLINGS, MODES, TYPES, bits, rewritten, ways
from mapsto.testing.verdict import Report, Verdict, tolerance
from mapsto.testing.writing import causality, nothing, sources, steps

__all__ = ["check_model"]

LENGTHS = (7, 1, 64, 300, 1000)
SIDES = (8, 4, 20)


def check_model(model: Mapper, batch: Batch, *, laws: Iterable[str] = "PBSCTMKDRG") -> list[Verdict]:
    """Hold a model to the laws, on rows of its own data. The model and the batch stay as they are.

    Values are compared without dropout, in float64 and float32, training and not. What the batch does not show cannot
    be tried: give it rows of several lengths, and its target. Laws C and T are those of models that write sequences.

    Args:
        model: any Mapper.
        batch: some gathered rows.
        laws: the letters of those to try.
    """
    trial = Mapped(model, batch)
    trials: dict[str, list[Callable[[Mapped, Report], None]]] = {
        "P": [_contents, _amount],
        "B": [_company],
        "S": [_symmetry],
        "C": [causality, sources],
        "T": [steps],
        "M": [_empty, nothing],
        "K": [_numbers],
        "D": [_determinism, _noise],
        "R": [_packed, _round_trip],
        "G": [_graphs],
    }
    return Report.of(model).hold(trial, trials, laws)


def _contents(trial: Mapped, report: Report) -> None:
    statement = "what stands at padding changes no answer, loss or gradient, exactly"
    if not any(padded(part) for part in trial.batch.values()):
        return
    for name, dtype, mode in ways():
        with report.case("P", statement, name) as case:
            wanted = trial.answer(dtype, mode, trial.batch)
            case.finite(wanted, "results")
            for value in FILLINGS:
                found = trial.answer(dtype, mode, apply(fill, trial.batch, value))
                case.exactly(found, wanted, f"with {value:g} at padding, results")


def _amount(trial: Mapped, report: Report) -> None:
    statement = "the amount of padding changes no answer, loss or gradient"
    if not any("valid" in part or "size" in part for part in trial.batch.values()):
        return
    pictures = any("size" in part for part in trial.batch.values())
    for name, dtype, mode in ways():
        with report.case("P", statement, name) as case:
            wanted, rest = trial.answer(dtype, mode, trial.batch)
            for amount in (1, 10) if pictures else (1, 10, 500):
                found, more = trial.answer(dtype, mode, apply(widen, trial.batch, amount))
                cut = {n: t[:, : wanted[n].shape[1]] for n, t in found.items()}
                tol, count = tolerance(dtype, model=True), trial.losses
                case.agree((cut, more[:count]), (wanted, rest[:count]), tol, f"with {amount} more, results")
                case.near(more[count:], rest[count:], tol, f"with {amount} more, gradients")


def _company(trial: Mapped, report: Report) -> None:
    for name, dtype, mode in ways():
        with report.case("B", "a row alone gets the answer and loss it gets in any batch and order", name) as case:
            size = trial.size
            theta, more = trial.answer(dtype, mode, trial.batch)
            losses = more[: trial.losses]
            for rows in (*([b] for b in range(min(size, 4))), list(range(size))[::-1], [size - 1] * 3):
                index = torch.tensor(rows)
                found, other = trial.answer(dtype, mode, apply(pick, trial.batch, index))
                wanted = {n: t[index][:, : found[n].shape[1]] for n, t in theta.items()}
                same = (found, other[: len(losses)]), (wanted, [t[index] for t in losses])
                case.agree(*same, tolerance(dtype, model=True), f"rows {rows}")


def _joined(model: Mapper, batch: Batch) -> Collection:
    parts = [one(batch[name]) for name, one in model.sources.items()]
    return join(parts, [] if model.marks is None else list(model.marks))


def _theta(model: Mapper, batch: Batch, change: Callable[[Collection], Collection]) -> Theta:
    """θ with a change made to the items before the encoder."""
    memory = model.encoder(model.reader.enter(change(_joined(model, batch))))
    queries = model.output.queries(memory, batch.get("target"))
    return model.say(model.reader(queries, memory, causal=model.output.causal), batch)


def _symmetry(trial: Mapped, report: Report) -> None:
    model, batch = trial.model, trial.batch
    if not model.names:
        return
    with torch.no_grad():
        items = _joined(trial.of(torch.float32), batch)
    order = (torch.rand(items.valid.shape, generator=stream(1, "law")) + 2.0 * ~items.valid).argsort(1)
    told = not isinstance(getattr(model.encoder, "position", NoPosition()), NoPosition)

    def shuffled(x: Tensor) -> Tensor:
        """Items in their new order; what is no item of the collection (a pooled answer) as it is."""
        if x.shape[:2] != order.shape:
            return x
        return x.gather(1, order[..., None].expand_as(x)).masked_fill(~items.valid[..., None], 0)

    def both(c: Collection) -> Collection:
        return c.replace(items=shuffled(c.items), places=None if c.places is None else shuffled(c.places))

    def answers(x: Tensor) -> Tensor:
        """Those of items move with them; those of a sequence that is written do not."""
        return x if model.output.causal else shuffled(x)

    if getattr(model.encoder, "ordered", False):
        if int(items.lengths.max()) > 1:
            with (
                torch.no_grad(),
                report.case("S", "permuting items of an encoder that goes by order changes the answers") as case,
            ):
                kind = trial.of(torch.float64)
                wanted, found = _theta(kind, batch, lambda c: c), _theta(kind, batch, both)
                for name, theta in wanted.items():
                    case.differ(found[name], answers(theta))
        return
    for dtype in TYPES:
        kind, tol = trial.of(dtype), tolerance(dtype, model=True)
        with torch.no_grad(), report.case("S", "permuting items, with their places, permutes their answers") as case:
            wanted, found = _theta(kind, batch, lambda c: c), _theta(kind, batch, both)
            for name, theta in wanted.items():
                told_by_item = theta.shape[:2] == order.shape and not model.output.causal
                hole = ~items.valid[..., None] if told_by_item else theta.new_zeros(1).bool()
                case.agree(found[name].masked_fill(hole, 0), answers(theta), tol, f"{name}, {dtype}, answers")
        if not told or items.places is None or int(items.lengths.max()) < 2:
            continue
        with torch.no_grad(), report.case("S", "permuting items without their places changes the answers") as case:
            moved = _theta(kind, batch, lambda c: c.replace(items=shuffled(c.items)))
            for name, theta in wanted.items():
                case.differ(moved[name], answers(theta))


def _empty(trial: Mapped, report: Report) -> None:
    batch = trial.batch
    ragged = any("valid" in batch[n] for n in (trial.model.names or ["target"]))
    for name, dtype, mode in ways():
        with report.case("M", "no rows give no answers", name) as case:
            theta, rest = trial.answer(dtype, mode, apply(pick, batch, torch.arange(0)))
            case.that(all(len(t) == 0 for t in theta.values()), "no rows get answers")
            case.finite(rest, "losses and gradients of no rows")
        if not ragged:
            continue
        with report.case(
            "M", "an empty row gets a finite answer and does not change the others, exactly", name
        ) as case:
            hollow = apply(_hollow, batch)
            theta, rest = trial.answer(dtype, mode, hollow)
            case.finite((theta, rest), "answers, losses and gradients")
            wanted, _ = trial.answer(dtype, mode, batch)
            case.exactly({n: t[1:] for n, t in theta.items()}, {n: t[1:] for n, t in wanted.items()}, "other rows")
            none = apply(pick, hollow, torch.zeros(2, dtype=torch.int64))
            case.finite(trial.answer(dtype, mode, none), "answers of a batch without items")
            case.finite(trial.answer(dtype, mode, apply(stretch, batch, 1)), "answers of single items")


def _hollow(part: Any) -> dict[str, Tensor]:
    """The same part with nothing in its first row."""
    if "valid" not in part:
        return dict(part)
    valid = part["valid"].clone()
    valid[0] = False
    return {**part, "valid": valid}


def _numbers(trial: Mapped, report: Report) -> None:
    for name, dtype, mode in ways():
        with report.case("K", "answers, losses and gradients are finite", name) as case:
            case.finite(trial.answer(dtype, mode, trial.batch), "answers, losses and gradients")
    with report.case(
        "K", "a model in float64 rounds nothing to less: the gradient of 3 x loss is 3 x its gradient"
    ) as case:
        model = trial.of(torch.float64, "train")
        theta = model(trial.batch)
        case.that(
            all(t.dtype == torch.float64 for t in theta.values()), f"answers are {[t.dtype for t in theta.values()]}"
        )
        total = torch.stack([t.square().mean() for t in theta.values()]).sum()
        one, three = (
            torch.autograd.grad(scale * total, list(model.parameters()), retain_graph=True, materialize_grads=True)
            for scale in (1.0, 3.0)
        )
        case.near([g / 3 for g in three], one, 1e-12, "gradients")


def _determinism(trial: Mapped, report: Report) -> None:
    statement = "twice gives the same bits, nothing is written to, the global generator is untouched"
    before = torch.random.get_rng_state()
    loud = copy.deepcopy(trial.model)
    for mode in MODES:
        with report.case("D", statement, mode) as case:
            model = at(loud, Clock(1, 2)).train(mode == "train")
            given = [bits(t) for part in trial.batch.values() for t in part.values()]
            kept, held = [t.clone() for t in given], {n: t.clone() for n, t in model.state_dict().items()}
            first = model(trial.batch)
            case.exactly(given, kept, "the batch before and after")
            case.exactly(dict(model.state_dict()), held, "weights and buffers before and after")
            again = model if mode == "eval" else at(loud, Clock(1, 2)).train()
            case.exactly(again(trial.batch), first, "the second answer")
    statement = "every parameter gets a gradient in training, added in an order that does not depend on threads"
    with report.case("D", statement, "train") as case:
        model, unordered = at(loud, Clock(1, 2)).train().requires_grad_(), Unordered()
        theta = model(trial.batch)
        with unordered:
            if "target" in trial.batch:
                model.output.loss(theta, trial.batch["target"]).per_example().sum().backward()
            else:
                torch.stack([t.sum() for t in theta.values()]).sum().backward()
        case.learns(model)
        case.that(not unordered.found, f"an order of threads' own: {', '.join(unordered.found)}. Use index_select")
        case.exactly(torch.random.get_rng_state(), before, "the global generator")


def _noise(trial: Mapped, report: Report) -> None:
    with report.case("D", "nothing is random in eval, and in training noise depends on seed and step") as case:
        quiet = trial.of(torch.float32, "eval")
        case.exactly(at(trial.model, Clock(1)).eval()(trial.batch), quiet(trial.batch), "eval with and without noise")
        if any(isinstance(m, Random) and round(m.rate * 256) for m in trial.model.modules()):
            first, other, later = (at(trial.model, c).train()(trial.batch) for c in (Clock(1), Clock(2), Clock(1, 1)))
            for name in first:
                case.differ(first[name], other[name])
                case.differ(first[name], later[name])


def _packed(trial: Mapped, report: Report) -> None:
    if not isinstance(trial.model.encoder, Encoder) or not trial.model.names:
        return
    for dtype in TYPES:
        with report.case("R", "packed and padded items are encoded alike", str(dtype)[6:]) as case, torch.no_grad():
            model = trial.of(dtype)
            items = model.collect(trial.batch)
            found, wanted = model.encoder(items.pack()).unpack(), model.encoder(items)
            longest = found.valid.shape[1]
            wanted = Collection.build(wanted.items, wanted.valid)
            case.exactly(found.valid, wanted.valid[:, :longest], "which items exist")
            case.agree(found.items, wanted.items[:, :longest], tolerance(dtype, model=True), "items")


def _round_trip(trial: Mapped, report: Report) -> None:
    with report.case("R", "settings and state_dict make the same model again") as case, torch.no_grad():
        model = trial.of(torch.float32)
        again = copy.deepcopy(model)
        with torch.random.fork_rng(devices=[]):
            for i, part in enumerate(model.sources.values()):
                again.inputs[i] = silent(type(part)(model.output.dim, **rewritten(part.settings())))
            again.output = type(model.output)(model.output.dim, **rewritten(model.output.settings()))
        for p in again.parameters():
            p.fill_(0.5)
        again.load_state_dict(model.state_dict())
        own = [{n for n, _ in one.named_parameters()} for one in (model, again)]
        case.that(own[0] == own[1], f"other parameters: {sorted(own[0] ^ own[1])}")
        case.exactly(again.eval()(trial.batch), model(trial.batch), "answers")


class _Whole(nn.Module):
    def __init__(self, model: Mapper):
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        """θ; of a sequence, of the tokens that exist: what stands at padding means nothing."""
        theta = self.model(batch)
        if not self.model.output.causal:
            return theta
        hole = ~batch["target"]["valid"][..., None]
        return {name: t.masked_fill(hole, 0) for name, t in theta.items()}


def _graphs(trial: Mapped, report: Report) -> None:
    model = trial.model
    batch = {n: dict(trial.batch[n]) for n in (*model.names, *(["target"] if model.output.causal else []))}
    pictures = any("size" in part for part in batch.values())
    told = [getattr(part, "position", None) for part in (model.encoder, model.reader)]
    limit = min(getattr(position, "length", max(LENGTHS)) for position in told)
    lengths = SIDES if pictures else [n for n in LENGTHS if n <= limit]
    ragged = any("valid" in part or "size" in part for part in batch.values())
    inputs = [
        (batch,),
        *((apply(stretch, batch, n),) for n in lengths if ragged),
        (apply(pick, batch, torch.arange(2)),),
    ]
    tol = tolerance(torch.float32, model=True)
    whole = _Whole(trial.of(torch.float32))
    with torch.no_grad():
        check_compile(report, "eval", whole, inputs, tol)
    check_compile(report, "train", whole.train(), inputs[:2], tol)
    auto = torch.export.Dim.AUTO
    shapes = {
        n: {m: {d: auto for d in range(t.dim()) if d == 0 or _varies(inputs, n, m, d)} for m, t in part.items()}
        for n, part in batch.items()
    }
    check_export(report, "eval", whole.eval(), inputs[:2] + inputs[-1:], (shapes,), tol)


def _varies(inputs: list[Any], part: str, name: str, dim: int) -> bool:
    return len({arguments[0][part][name].shape[dim] for arguments in inputs}) > 1
