"""Exact attention a tile at a time: some rows of the batch, some queries, all their keys, never all of L × M at once.

A tile is two matrix products over all heads and one softmax. The backward computes the weights anew, unless the rows
are so short that the weights take no more room than the queries, keys and values that are saved anyway.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Bias", "Visible", "blockwise", "fading"]

Bias = Callable[[slice, slice], Tensor]
"""``bias(queries, keys)`` gives the (B|1, H|1, l, m) block to add to the logits of those ranks."""

SCORES = 1 << 20
"""Scores of a tile that groups rows of the batch, so that the tile stays in the cache."""

QUERIES = 256
"""Queries of a tile of one long row: the fastest of 32, 64, 128, 256 in float32, forward and backward."""


def fading(decay: Float[Tensor, "*N M"], valid: Bool[Tensor, "*N M"] | None = None) -> Float[Tensor, "*N M"]:
    """Σ_{j<=m} log γ_j over the valid keys: key m is weighed by exp(fade_l - fade_m) for query l.

    In float64, because the difference of two long sums is what counts.
    """
    return (decay if valid is None else decay.masked_fill(~valid, 0)).double().cumsum(-1)


@dataclass(frozen=True)
class Visible:
    """What the queries may see, and what is added to their logits, made block by block.

    Attributes:
        device: where the blocks are made.
        valid: which keys exist.
        segment: which document an item is of.
        allowed: which keys a query may look at.
        causal: query l sees keys m <= l.
        bias: a block of the logits' bias, by ranks.
        fade: running sums of the log decay, by :func:`fading`.
    """

    device: torch.device
    valid: Bool[Tensor, "B M"] | None = None
    segment: Int[Tensor, "B M"] | None = None
    allowed: Bool[Tensor, "#B #H L M"] | None = None
    causal: bool = False
    bias: Callable[[slice, slice], Tensor] | None = None
    fade: Float[Tensor, "B H M"] | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing hides a key but, perhaps, that it does not exist."""
        return self.segment is None and self.allowed is None and not self.causal

    def keys(self, rows: slice, count: int) -> slice:
        """The keys that some of these queries might see: not those after the last of them, if causal."""
        return slice(0, rows.stop if self.causal else count)

    def seen(self, batch: slice, rows: slice, keys: slice) -> Bool[Tensor, "#B #H #l m"] | None:
        """True where a key may be seen, or None if all may."""
        parts = []
        if self.valid is not None:
            parts.append(self.valid[batch, None, None, keys])
        if self.segment is not None:
            segment = self.segment[batch]
            parts.append(segment[:, None, rows, None] == segment[:, None, None, keys])
        if self.allowed is not None:
            parts.append(_of(self.allowed, batch)[:, :, rows, keys])
        if self.causal:
            query = torch.arange(rows.start, rows.stop, device=self.device)
            parts.append((torch.arange(keys.start, keys.stop, device=self.device) <= query[:, None])[None, None])
        if not parts:
            return None
        seen = parts[0]
        for part in parts[1:]:
            seen = seen & part
        return seen

    def extra(self, batch: slice, rows: slice, keys: slice) -> Float[Tensor, "#B #H l m"] | None:
        """What is added to the logits: the bias, and the sum of the decays from the key to the query."""
        extra = None if self.bias is None else _of(self.bias(rows, keys), batch)
        if self.fade is None:
            return extra
        fade = self.fade[batch]
        faded = fade[:, :, rows, None] - fade[:, :, None, keys]
        return faded if extra is None else faded + extra


def blockwise(
    q: Float[Tensor, "B H L K"],
    k: Float[Tensor, "B H M K"],
    v: Float[Tensor, "B H M V"],
    visible: Visible,
    beta: float,
) -> Float[Tensor, "B H L V"]:
    """Attention(q, k, v)_l = Σ_m softargmax_β(k q_l)_m v_m over the visible keys, in tiles.

    Memory: O(block · M) beside the inputs. The bias gets no gradient. A query whose answer is not finite
    gives its keys and values no gradient.
    """
    out: Tensor = _Blockwise.apply(q, k, v, visible.fade, visible, beta)
    return out


def _clean(x: Tensor, valid: Tensor | None) -> Tensor:
    """(B·H, M, ·) with zeros where nothing is valid: by index, five times faster than a masked fill."""
    flat = x.flatten(0, 1)
    if valid is not None:
        if flat.data_ptr() == x.data_ptr():
            flat = flat.clone()
        row, item = torch.nonzero(~valid, as_tuple=True)
        flat.view(x.shape)[row, :, item] = 0
    return flat


def _of(block: Tensor, batch: slice) -> Tensor:
    return block[batch] if block.shape[0] > 1 else block  # not len, which export takes for a constant


def _tiles(size: torch.Size, count: int, visible: Visible) -> Iterator[tuple[slice, slice, slice]]:
    """Rows of the batch, queries and keys of each tile."""
    batch, heads, queries, _ = size
    whole = heads * queries * count
    if whole <= SCORES:
        group = max(1, SCORES // max(1, whole))
        for b in range(0, batch, group):
            yield slice(b, min(b + group, batch)), slice(0, queries), slice(0, count)
        return
    for b in range(batch):
        for i in range(0, queries, QUERIES):
            rows = slice(i, min(i + QUERIES, queries))
            yield slice(b, b + 1), rows, visible.keys(rows, count)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, fade: Tensor | None, visible: Visible, beta: float
    ) -> Tensor:
        size, count = q.shape, k.shape[2]
        q, k, v = q.flatten(0, 1), _clean(k, visible.valid), _clean(v, visible.valid)
        keep = count <= 2 * (k.shape[2] + v.shape[2])
        out = q.new_empty(*q.shape[:2], v.shape[2])
        scores = _Scores(q, k, size, visible, beta)
        kept = []
        for batch, rows, keys in _tiles(size, count, visible):
            n = scores.heads(batch)
            p, blind = scores.weights(batch, rows, keys, keep=keep)
            torch.bmm(p, v[n, keys], out=(answer := out[n, rows]))
            if blind is not None:
                answer.unflatten(0, (-1, size[1])).masked_fill_(blind, 0)
            if keep:
                kept.append(p)
        ctx.save_for_backward(q, k, v, out, *kept)
        ctx.rest = size, visible, beta
        return out.view(*size[:3], v.shape[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *kept = ctx.saved_tensors
        size, visible, beta = ctx.rest
        g = g.flatten(0, 1)
        # 0 · NaN is NaN: what is not finite (a padded query, say) must be taken out, whatever its gradient is.
        bad = out.sum(-1, keepdim=True).isfinite().logical_not()
        if poisoned := bool(bad.any()):
            q, g, out = (t.masked_fill(bad, 0) for t in (q, g, out))
        mean = (g * out).sum(-1, keepdim=True)
        gq, gk, gv, none = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), q.new_zeros(1, 1, 1)
        if visible.causal:
            gk.zero_(), gv.zero_()  # the first block does not reach them all
        gf = None if visible.fade is None else torch.zeros_like(visible.fade)
        scores = _Scores(q, k, size, visible, beta)
        for i, (batch, rows, keys) in enumerate(_tiles(size, k.shape[1], visible)):
            n = scores.heads(batch)
            qb, gb = q[n, rows], g[n, rows]
            if kept:
                p, blind = kept[i], scores.blind(visible.seen(batch, rows, keys))
                if poisoned:
                    p = p.masked_fill(bad[n, rows], 0)
            else:
                p, blind = scores.weights(batch, rows, keys, keep=False)
            if blind is not None:
                p, qb, gb = (t.unflatten(0, (-1, size[1])).masked_fill(blind, 0).flatten(0, 1) for t in (p, qb, gb))
            more = int(visible.causal or rows.start > 0)
            gv[n, keys].baddbmm_(p.transpose(1, 2), gb, beta=more)
            # The gradient of the logits, p ∘ (g vᵀ − Σ p ∘ g vᵀ), where the sum is g · out.
            ds = torch.bmm(gb, v[n, keys].transpose(1, 2), out=scores.room("scores", *p.shape))
            ds.sub_(mean[n, rows]).mul_(p)
            torch.baddbmm(none, ds, k[n, keys], beta=0, alpha=beta, out=gq[n, rows])
            gk[n, keys].baddbmm_(ds.transpose(1, 2), qb, beta=more, alpha=beta)
            if gf is not None:
                four = ds.unflatten(0, (-1, size[1]))
                gf[batch, :, rows] += four.sum(-1, dtype=gf.dtype)
                gf[batch, :, keys] -= four.sum(-2, dtype=gf.dtype)
        heads = size[:2]
        return gq.unflatten(0, heads), gk.unflatten(0, heads), gv.unflatten(0, heads), gf, None, None


class _Scores:
    """The weights of any tile, computed the same way forward and backward."""

    def __init__(self, q: Tensor, k: Tensor, size: torch.Size, visible: Visible, beta: float):
        self.q, self.size, self.visible, self.beta = q, size, visible, beta
        self.keys = k.transpose(1, 2)
        if size[1] * size[2] * k.shape[1] > SCORES:
            self.keys = self.keys.contiguous()  # read by every block of queries
        # Not -inf: a query that sees nothing must stay finite until it gets its zeros. A quarter, so that adding a
        # logit never overflows. Added, not filled in: that is ten times faster.
        self.floor = torch.finfo(q.dtype).min / 4
        self.nothing = q.new_zeros(1, 1, 1)
        self.space: dict[str, Tensor] = {}
        self.given: Tensor | None = None
        if visible.valid is not None and visible.plain:
            self.given = self.hide(visible.valid).repeat_interleave(size[1], 0)[:, None]

    def hide(self, seen: Tensor) -> Tensor:
        """What to add to the logits of the keys that are not seen."""
        return (~seen).to(self.q.dtype).mul_(self.floor)

    def room(self, name: str, *shape: int) -> Tensor:
        """Room for a tile, used again by the next one: fresh memory costs more than what is written to it."""
        count = math.prod(shape)
        if name not in self.space or self.space[name].numel() < count:
            self.space[name] = self.q.new_empty(count)
        return self.space[name][:count].view(shape)

    def heads(self, batch: slice) -> slice:
        return slice(batch.start * self.size[1], batch.stop * self.size[1])

    @staticmethod
    def blind(seen: Tensor | None) -> Tensor | None:
        """Which queries see nothing, if any does."""
        if seen is None:
            return None
        blind = ~seen.any(-1, keepdim=True)
        return blind if bool(blind.any()) else None

    def weights(self, batch: slice, rows: slice, keys: slice, *, keep: bool) -> tuple[Tensor, Tensor | None]:
        """The weights, in room of their own if they are kept; and which queries see nothing, if any does."""
        n = self.heads(batch)
        q, k = self.q[n, rows], self.keys[n, :, keys]
        shape = (*q.shape[:2], k.shape[2])
        s = self.room("scores", *shape)
        if self.given is None:
            torch.baddbmm(self.nothing, q, k, beta=0, alpha=self.beta, out=s)
        else:
            torch.baddbmm(self.given[n], q, k, alpha=self.beta, out=s)
        four = s.view(-1, self.size[1], *s.shape[1:])
        if (extra := self.visible.extra(batch, rows, keys)) is not None:
            four.add_(extra)
        seen = self.visible.seen(batch, rows, keys)
        if seen is not None and self.given is None:
            four.add_(self.hide(seen))
        p = torch.softmax(s, -1, out=self.q.new_empty(shape) if keep else self.room("weights", *shape))
        return p, self.blind(seen)
