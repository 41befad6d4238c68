"""Linear attention that looks back only: by chunks of places and a state between them, whole or a step at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils import _pytree

from mapsto.functional.linear import NEVER, wide
from mapsto.functional.state import State

__all__ = ["LinearState", "linear_causal", "linear_step", "linear_stream"]

BLOCK = 256
"""Places whose features are made at a time where nothing is learned: they stay in the cache."""

CHUNK = 64
"""Places of a chunk: within one, products of features; between them, a state."""

SLACK = 10.0
"""How far above what a state is relative to a single log weight may be: scaling a state takes as long as writing to it."""


@dataclass(frozen=True)
class LinearState(State):
    """What was written: all that a later query needs of it, however long it was.

    Attributes:
        values: (B, H, R, V) Σ_m exp(log w_m − top) g_m v_mᵀ, float32 at least.
        weights: (B, H, R, 1) Σ_m exp(log w_m − top) g_m.
        top: (B, H) the largest log w so far or at most 10 less, less the forgetting since.
        length: how many places of each row are written.
    """

    values: Float[Tensor, "B H R V"]
    weights: Float[Tensor, "B H R 1"]
    top: Float[Tensor, "B H"]
    length: Int[Tensor, " B"]

    @classmethod
    def start(cls, like: Tensor, batch: int, heads: int, features: int, value: int) -> "LinearState":
        """Nothing written yet."""
        kind = wide(like.dtype)
        return cls(
            like.new_zeros(batch, heads, features, value, dtype=kind),
            like.new_zeros(batch, heads, features, 1, dtype=kind),
            like.new_full((batch, heads), NEVER, dtype=kind),
            torch.zeros(batch, dtype=torch.int64, device=like.device),
        )

    def select(self, rows: Int[Tensor, " R"]) -> "LinearState":
        """The state of some rows, in a new order; a row may be taken several times."""
        return LinearState(self.values[rows], self.weights[rows], self.top[rows], self.length[rows])

    @property
    def total(self) -> "Total":
        """The same numbers, heads of all rows one after the other."""
        return Total(self.values.flatten(0, 1), self.weights.flatten(0, 1), self.top.flatten())

    def after(self, top: Float[Tensor, " N"], written: Int[Tensor, " B"] | int) -> "LinearState":
        """This state, when its tensors have been written to in place."""
        return LinearState(self.values, self.weights, top.view(self.top.shape), self.length + written)


_pytree.register_pytree_node(
    LinearState,
    lambda s: ([s.values, s.weights, s.top, s.length], None),
    lambda tensors, _: LinearState(*tensors),
    serialized_type_name="mapsto.LinearState",
)


@dataclass(frozen=True)
class Total:
    """The numbers of a :class:`LinearState`, or of its gradient, with N = B·H."""

    values: Float[Tensor, "N R V"]
    weights: Float[Tensor, "N R 1"]
    top: Float[Tensor, " N"]

    @classmethod
    def nothing(cls, like: Tensor, groups: int, features: int, width: int) -> "Total":
        """Nothing written yet."""
        return cls(
            like.new_zeros(groups, features, width),
            like.new_zeros(groups, features, 1),
            like.new_full((groups,), NEVER),
        )

    def ask(self, f: Float[Tensor, "N L R"]) -> Float[Tensor, "N L V"]:
        """Answer queries from all that was written; zeros if nothing was."""
        norm = f @ self.weights
        out: Tensor = (f @ self.values) / norm.masked_fill(norm == 0, 1)
        return out


def linear_causal(
    f: Float[Tensor, "N L R"],
    g: Float[Tensor, "N L R"],
    v: Float[Tensor, "N L V"],
    log_weight: Float[Tensor, "N L"],
    *,
    valid: Bool[Tensor, "N L"] | None = None,
    run: Int[Tensor, "N L"] | None = None,
) -> Float[Tensor, "N L V"]:
    """Query l sees the valid keys m <= l of its own run. Forgetting goes into log w: a later key weighs more.

    Within chunks of 64 places by products of features, between them by a state (R, V): time O(L R (V + 64)). Memory
    O(R V) beside the features in inference, and a state a chunk for the backward, which walks the chunks in reverse.
    Under ``torch.compile`` and ``torch.export`` all states are made at once.

    Args:
        f: features of the queries, >= 0.
        g: features of the keys, >= 0.
        v: values; zeros where not valid.
        log_weight: log w.
        valid: which keys exist. A query without a key to see answers zeros.
        run: what is seen together, numbered in ascending order along the items (packed documents).
    """
    g, log_weight = _real(g, log_weight, valid)
    top = highest(log_weight.detach(), run)
    if torch.compiler.is_compiling():
        return _whole(f, g, v, log_weight, top, run)
    if not f.shape[1]:
        return f @ g.transpose(1, 2) @ v
    out: Tensor = _Causal.apply(f, g, v, log_weight, top, run)
    return out


@torch.no_grad()
def linear_stream(
    mapped: Callable[[slice], tuple[Tensor, Tensor, Tensor]],
    v: Float[Tensor, "N L V"],
    valid: Bool[Tensor, "N L"] | None = None,
) -> Float[Tensor, "N L V"]:
    """:func:`linear_causal` where nothing is learned: features are made some places at a time, and never are all there.

    Args:
        mapped: gives the features of queries and keys of some places, and the log weights.
        v: values; zeros where not valid.
        valid: which keys exist.
    """
    out, total = torch.empty_like(v), None
    for i in range(0, v.shape[1], BLOCK):
        at = slice(i, min(i + BLOCK, v.shape[1]))
        f, g, log_weight = mapped(at)
        total = Total.nothing(v, len(v), f.shape[2], v.shape[2]) if total is None else total
        out[:, at], total = linear_step(f, g, v[:, at], log_weight, total, None if valid is None else valid[:, at])
    return out


def _real(g: Tensor, log_weight: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    """Keys that do not exist have no features and weigh nothing."""
    if valid is None:
        return g, log_weight
    return g.masked_fill(~valid[..., None], 0), log_weight.masked_fill(~valid, NEVER)


def linear_step(
    f: Tensor, g: Tensor, v: Tensor, log_weight: Tensor, total: "Total", valid: Tensor | None
) -> tuple[Tensor, "Total"]:
    """Go on from a total: :func:`linear_causal` of more places, and the total after them. Consumes the total."""
    if f.shape[1] == 1 and valid is None and not torch.compiler.is_compiling():
        return _single(f, g, v, log_weight[:, 0], total)
    g, log_weight = _real(g, log_weight, valid)
    top = torch.maximum(highest(log_weight), total.top[:, None])
    out = torch.empty_like(v)
    walk = _Walk(log_weight, top, None, f.dtype, total.top)
    for at in walk:
        out[:, at], _ = walk.step(at, f[:, at], g[:, at], v[:, at], total)
    return out, Total(total.values, total.weights, top[:, -1])


def _single(f: Tensor, g: Tensor, v: Tensor, log_weight: Tensor, total: "Total") -> tuple[Tensor, "Total"]:
    """One place, which exists."""
    top = total.top
    above = log_weight > top + SLACK
    if f.device.type != "cpu" or bool(above.any()):  # only a CPU looks for nothing
        top = log_weight.where(above, top)
        past = (total.top - top).exp()[:, None, None]
        total.values.mul_(past)
        total.weights.mul_(past)
    seen = (g * (log_weight - top).exp()[:, None, None]).transpose(1, 2)
    total.values.addcmul_(seen, v)
    total.weights.add_(seen)
    return total.ask(f), Total(total.values, total.weights, top)


def highest(log_weight: Float[Tensor, "N L"], run: Int[Tensor, "N L"] | None = None) -> Float[Tensor, "N L"]:
    """The largest log weight so far, within each run: of what stands at or before a place, and of nothing later."""
    if not log_weight.shape[-1]:
        return log_weight
    if run is None:
        return log_weight.cummax(-1).values
    top, reach = log_weight, 1
    while reach < log_weight.shape[-1]:  # doubling: after each pass a place knows of twice as many before it
        same = run[:, reach:] == run[:, :-reach]
        before = top[:, :-reach].masked_fill(~same, NEVER)
        top = torch.cat([top[:, :reach], torch.maximum(top[:, reach:], before)], 1)
        reach *= 2
    return top


class _Walk:
    """The chunks of a sequence and what both directions need of each: weights relative to the largest so far."""

    def __init__(
        self, log_weight: Tensor, top: Tensor, run: Tensor | None, kind: torch.dtype, before: Tensor | None = None
    ):
        self.log_weight, self.top, self.run, self.kind, self.before = log_weight, top, run, kind, before

    def __iter__(self) -> Iterator[slice]:
        length = self.top.shape[1]
        for i in range(0, length, CHUNK):
            yield slice(i, min(i + CHUNK, length))

    def weights(self, at: slice) -> tuple[Tensor, Tensor | None]:
        """The weight of each key for each query of the chunk, and that of the state before it for each query."""
        top = self.top[:, at]
        weight = (self.log_weight[:, None, at] - top[..., None]).clamp_(max=0).exp_().to(self.kind).tril_()
        before = self.before[:, None] if self.before is not None else None
        if at.start:
            before = self.top[:, at.start - 1 : at.start]
        past = None if before is None else (before - top).clamp_(max=0).exp_()  # another run may have had more
        if self.run is not None:
            weight.mul_(self.run[:, None, at] == self.run[:, at, None])
            if past is not None:
                past.mul_(self.run[:, at.start - 1 : at.start] == self.run[:, at])
        return weight, None if past is None else past.to(self.kind)[..., None]

    def step(self, at: slice, f: Tensor, g: Tensor, v: Tensor, total: Total) -> tuple[Tensor, Tensor]:
        """The answers of a chunk and their normalisers; the total goes on, in place."""
        weight, past = self.weights(at)
        a = torch.bmm(f, g.transpose(1, 2)).mul_(weight)
        answer, norm = torch.bmm(a, v), a.sum(-1, keepdim=True)
        if past is not None:
            answer.add_(torch.bmm(f, total.values).mul_(past))
            norm.add_(torch.bmm(f, total.weights).mul_(past))
            total.values.mul_(past[:, -1:])
            total.weights.mul_(past[:, -1:])
        norm.masked_fill_(norm == 0, 1)
        seen = (g * weight[:, -1, :, None]).transpose(1, 2)
        total.values.baddbmm_(seen, v)
        total.weights.add_(seen.sum(-1, keepdim=True))
        return answer.div_(norm), norm


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, f: Tensor, g: Tensor, v: Tensor, log_weight: Tensor, top: Tensor, run: Tensor | None
    ) -> Tensor:
        out, norm = v.new_empty(v.shape), v.new_empty(*v.shape[:2], 1)
        total = Total.nothing(v, len(v), f.shape[2], v.shape[2])
        walk, kept = _Walk(log_weight, top, run, f.dtype), []
        for at in walk:
            if any(ctx.needs_input_grad) and at.start:
                kept += [total.values.clone(), total.weights.clone()]
            out[:, at], norm[:, at] = walk.step(at, f[:, at], g[:, at], v[:, at], total)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(f, g, v, log_weight, top, run, out, norm, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        f, g, v, log_weight, top, run, out, norm, *kept = ctx.saved_tensors
        by_values = upstream / norm
        by_norm = -(by_values * out).sum(-1, keepdim=True)
        gf, gg, gv = torch.empty_like(f), torch.empty_like(g), torch.empty_like(v)
        later = Total.nothing(v, len(v), f.shape[2], v.shape[2])  # the gradient of the state after the chunk
        walk = _Walk(log_weight, top, run, f.dtype)
        for i, at in reversed(list(enumerate(walk))):
            weight, past = walk.weights(at)
            q, k, x, gx, gn = f[:, at], g[:, at], v[:, at], by_values[:, at], by_norm[:, at]
            last = weight[:, -1, :, None]
            a = torch.bmm(q, k.transpose(1, 2)).mul_(weight)
            ga = torch.bmm(gx, x.transpose(1, 2)).add_(gn).mul_(weight)
            written = torch.bmm(x, later.values.transpose(1, 2)).add_(later.weights.transpose(1, 2)).mul_(last)
            gg[:, at] = written.baddbmm_(ga.transpose(1, 2), q)
            gv[:, at] = torch.bmm(k, later.values).mul_(last).baddbmm_(a.transpose(1, 2), gx)
            if past is None:
                gf[:, at] = torch.bmm(ga, k)
                continue
            values, weights = kept[2 * i - 2 : 2 * i]
            asked = torch.bmm(gx, values.transpose(1, 2)).addcmul_(gn, weights.transpose(1, 2)).mul_(past)
            gf[:, at] = asked.baddbmm_(ga, k)
            seen = (q * past).transpose(1, 2)
            later.values.mul_(past[:, -1:]).baddbmm_(seen, gx)
            later.weights.mul_(past[:, -1:]).baddbmm_(seen, gn)
        # A log weight multiplies its key's features, so its gradient is theirs along themselves.
        return gf, gg, gv, (g * gg).sum(-1).to(log_weight.dtype), None, None


def _whole(f: Tensor, g: Tensor, v: Tensor, log_weight: Tensor, top: Tensor, run: Tensor | None) -> Tensor:
    """The same without a loop: all chunks and all states at once, for compilers."""
    length = f.shape[1]

    def cut(x: Tensor, fill: float = 0.0) -> Tensor:
        # Always by some places more than needed, so that no shape is special.
        return (
            F.pad(x.movedim(1, -1), (0, CHUNK - length % CHUNK), value=fill)
            .unflatten(-1, (-1, CHUNK))
            .movedim((-2, -1), (1, 2))
        )

    f, g, v, log_weight, top = cut(f), cut(g), cut(v), cut(log_weight, NEVER), cut(top)
    weight = (log_weight[:, :, None] - top[..., None]).clamp(max=0).exp().tril()
    ends = top[:, :, -1]
    before = F.pad(ends[:, :-1], (1, 0), value=NEVER)
    states = (ends[:, None] - before[..., None]).clamp(max=0).exp().tril(-1)  # of chunk j in the state before chunk i
    past = (before[..., None] - top).clamp(max=0).exp()
    if run is not None:
        run = cut(run)
        last = run[:, :, -1]
        previous = F.pad(last[:, :-1], (1, 0), value=-1)
        weight = weight * (run[:, :, None] == run[..., None])
        states = states * (last[:, None] == previous[..., None])
        past = past * (previous[..., None] == run)
    weight, states, past = weight.to(f.dtype), states.to(f.dtype), past.to(f.dtype)[..., None]
    seen = (g * weight[:, :, -1, :, None]).transpose(2, 3)
    values = torch.einsum("Nij,NjRV->NiRV", states, seen @ v)
    weights = torch.einsum("Nij,NjR->NiR", states, seen.sum(-1))
    a = (f @ g.transpose(2, 3)) * weight
    norm = a.sum(-1, keepdim=True) + (f @ weights[..., None]) * past
    out: Tensor = (a @ v + (f @ values) * past) / norm.masked_fill(norm == 0, 1)
    return out.flatten(1, 2)[:, :length]
