"""Law W: a window is exact attention over a band of ranks, at a cost that grows with the length only."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mapsto.attention import Attention
from mapsto.functional.attention import attend
from mapsto.stream import stream
from mapsto.testing.subject import Seen, Subject, alibi, differentiate
from mapsto.testing.trial import draw
from mapsto.testing.verdict import Report

__all__ = ["Ledger", "law_window"]

LONGEST = 130
"""Every length up to here is tried."""


def law_window(subject: Subject, report: Report) -> None:
    """Hold a kind with a ``window`` (and perhaps ``shared`` first items) to law W.

    Args:
        subject: the kind.
        report: where the verdicts go.
    """
    _band(subject, report)
    _whole(subject, report)
    _ring(subject, report)
    _cost(subject, report)


def _shared(kind: Attention) -> int:
    return int(getattr(kind, "shared", 0))


def _exact(kind: Any, x: list[Tensor], *, valid: Bool[Tensor, "B L"], causal: bool) -> Tensor:
    """Exact attention, told which pairs of valid items are ranked less than a window apart, or are shared."""
    rank = valid.cumsum(1) - 1
    query, key = rank[:, :, None], rank[:, None]
    band = ((query - key).abs() <= kind.window - 1) | (query < _shared(kind)) | (key < _shared(kind))
    seen: dict[str, Any] = {"valid": valid, "allowed": band[:, None], "causal": causal}
    return attend(*x, **seen, beta=getattr(kind, "beta", None)).masked_fill(~valid[:, None, :, None], 0)


def _settled(subject: Subject, **settings: Any) -> Any:
    """A layer of the kind with some other settings."""
    kind = subject.make()
    return type(kind)(**{**kind.settings(), **settings}).bind(subject.heads, subject.width).double().eval()


@torch.no_grad()
def _band(subject: Subject, report: Report) -> None:
    statement = f"it is exact attention over ranks less than a window apart, at every length from 1 to {LONGEST}"
    layer: Any = subject.layer(torch.float64)
    for length in range(1, LONGEST + 1):
        x = subject.qkv(2, length)
        everything = torch.ones(2, length, dtype=torch.bool)
        scattered = torch.rand(2, length, generator=stream(length, "law")) > 0.4
        for causal in (True, False):
            for name, valid in {"": everything, ", scattered valid": scattered}.items():
                with report.case("W", statement, f"L = {length}{', causal' if causal else ''}{name}") as case:
                    seen: Seen = {} if valid is everything else {"valid": valid}
                    found = layer(*x, causal=causal, **seen).masked_fill(~valid[:, None, :, None], 0)
                    case.agree(found, _exact(layer, x, valid=valid, causal=causal), 1e-10)


@torch.no_grad()
def _whole(subject: Subject, report: Report) -> None:
    for length in (1, 2, 13, LONGEST):
        for wider in (0, 1, 1000):
            with report.case("W", "a window as long as the row is exact attention", f"L = {length}") as case:
                layer, x = _settled(subject, window=length + wider), subject.qkv(2, length)
                for causal in (True, False):
                    case.agree(layer(*x, causal=causal), attend(*x, causal=causal, beta=layer.beta), 1e-10)


@torch.no_grad()
def _ring(subject: Subject, report: Report) -> None:
    layer: Any = subject.layer(torch.float64)
    length = min(LONGEST, 3 * layer.window + _shared(layer) + 7)
    x = subject.qkv(2, length)
    sizes = {"batch": 2, "heads": subject.heads, "key": subject.width, "value": subject.width}
    wanted = _exact(layer, x, valid=torch.ones(2, length, dtype=torch.bool), causal=True)
    for size in (1, 2, layer.window, layer.window + 1):
        with report.case("W", "steps far beyond the window see all of it", f"pieces of {size}") as case:
            state, parts = layer.start(x[0], length, **sizes), []
            for i in range(0, length, size):
                out, state = layer.step(*(t[:, :, i : i + size] for t in x), state)
                parts.append(out)
            case.agree(torch.cat(parts, 2), wanted, 1e-10)
    with report.case("W", "a state does not grow with what may be written") as case:
        like, capacity = x[0], 4 * (layer.window + _shared(layer))
        few, many = (_room(layer.start(like, capacity * n, **sizes)) for n in (1, 2))
        case.that(few == many, f"holds {few} numbers for {capacity} places, {many} for twice as many")


def _room(state: Any) -> int:
    return sum(t.numel() for t in _pytree.tree_leaves(state) if isinstance(t, Tensor))


class Ledger(TorchDispatchMode):
    """Counts what is computed while it is on, views apart.

    Attributes:
        largest: entries of the largest tensor made.
        work: entries of all tensors made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.work = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            for made in _pytree.tree_leaves(out):
                if isinstance(made, Tensor):
                    self.largest = max(self.largest, made.numel())
                    self.work += made.numel()
        return out


def _cost(subject: Subject, report: Report) -> None:
    kind: Any = subject.make()
    window = min(64, int(kind.window))
    layer: Attention = _settled(subject, window=window).train()
    most = 4 * window + 2 * _shared(kind) + 8 * subject.width + 256
    length = 2 * most
    for name, seen in _ways(layer, subject, 2 * length).items():
        case_name = f"{name}, w = {window}, L = {length}"
        with report.case("W", "no L x L tensor is made, and twice the length is twice the work", case_name) as case:
            once, twice = (_ledger(layer, subject, n, seen) for n in (length, 2 * length))
            case.that(
                once.largest <= most * length, f"makes a tensor of {once.largest} entries, {most * length} are enough"
            )
            # Three times: between twice and the four times of L x L, whatever is computed anew for the longer one only.
            case.that(twice.work <= 3 * once.work, f"takes {twice.work / once.work:.2f} times the work")


def _ways(layer: Attention, subject: Subject, longest: int) -> dict[str, Seen]:
    place = torch.arange(longest)
    scattered = torch.rand(1, longest, generator=stream(3, "law")) > 0.3
    ways: dict[str, Seen] = {"plain": {}, "causal": {"causal": True}, "scattered valid": {"valid": scattered}}
    if "segment" in layer.honours:
        ways["segment"] = {"causal": True, "segment": place.div(100, rounding_mode="floor")[None]}
    if "bias" in layer.honours:
        ways["bias"] = {"causal": True, "bias": lambda queries, keys: alibi(queries, keys).double()}
    if "decay" in layer.honours:
        ways["decay"] = {"causal": True, "decay": -draw(1, 1, longest, seed=5).abs()}
    return ways


def _ledger(layer: Attention, subject: Subject, length: int, seen: Seen) -> Ledger:
    x = [draw(1, 1, length, subject.width, seed=i) for i in range(3)]
    cut = {n: s[..., :length] if isinstance(s, Tensor) else s for n, s in seen.items()}
    with Ledger() as ledger:
        differentiate(layer, x, cut, torch.ones_like(x[2]))
    return ledger
