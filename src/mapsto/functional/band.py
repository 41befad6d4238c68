"""Exact attention within a band of ranks: time and memory grow with the length, not with its square.

On CPUs it goes a tile at a time (``_tiled``); compiled, exported and on GPUs without a loop (``_folded``).
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mapsto.errors import ConfigError
from mapsto.functional.attention import HUGE, check_sizes
from mapsto.functional.rank import Bias, Ranked

__all__ = ["attend_band"]

ROWS = 64
"""Queries of a tile: the fastest of 32, 64, 128, 256 at a window of 256; the more, the more keys nobody sees."""

SCORES = 1 << 18
"""Scores of a tile beyond which rows of the batch are taken apart, so that it stays in the cache."""

FOLD = 128
"""Queries of a block where there is no loop, at most: enough to be worth the copies of the keys around it."""


def attend_band(
    q: Float[Tensor, "B H L K"],
    k: Float[Tensor, "B H L K"],
    v: Float[Tensor, "B H L V"],
    *,
    window: int,
    shared: int = 0,
    valid: Bool[Tensor, "B L"] | None = None,
    segment: Int[Tensor, "B L"] | None = None,
    allowed: Bool[Tensor, "#B #H L L"] | None = None,
    causal: bool = False,
    bias: Bias | None = None,
    decay: Float[Tensor, "B H L"] | None = None,
    beta: float | None = None,
) -> Float[Tensor, "B H L V"]:
    """:func:`~mapsto.functional.attention.attend` over the keys m with |r(l) − r(m)| < window, r the rank.

    A rank counts the valid items of a row from 0; a query that is not valid has none, sees nothing and gets zeros. The
    first ``shared`` ranks see all and are seen by all, though causal attention never looks ahead.

    Time O(L · (window + shared)), memory O(L) beside one tile, forward and backward, which computes the weights anew.
    Under ``torch.compile`` and ``torch.export``, and on GPUs, there is no loop and the memory is
    O(L · (window + shared)); only a bias, which can be asked for slices alone, is then made whole.

    Args:
        q: queries.
        k: keys.
        v: values.
        window: w >= 1; causal: w keys, oneself among them, else 2w − 1.
        shared: how many first ranks see all and are seen by all.
        valid: which items exist. They need not come first, but a bias is then put together piece by piece.
        segment: which document an item is of.
        allowed: which keys a query may look at; it is read block by block.
        causal: query l sees keys m <= l.
        bias: added to the logits, block by block. Gradients reach its parameters.
        decay: log γ_m <= 0, causal only: key m is weighed by Π_{m<j<=l} γ_j.
        beta: inverse temperature, 1/√K by default.

    Raises:
        ConfigError: sizes that do not belong together; other queries than keys.
    """
    check_sizes(q, k, v, False, causal, decay)
    if q.shape[2] != k.shape[2]:
        raise ConfigError(
            f"attention: a window knows ranks within one sequence, got {q.shape[2]} queries and {k.shape[2]} keys. "
            "Use attention=softmax where one collection looks at another"
        )
    beta = 1 / math.sqrt(q.shape[-1]) if beta is None else beta
    if 0 in q.shape[:3]:
        return q @ k.transpose(-1, -2) @ v
    kind = q.dtype
    looped = q.device.type == "cpu" and not torch.compiler.is_compiling()
    if q.device.type == "cpu" and kind in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    if valid is not None:
        hole = ~valid[:, None, :, None]
        q, k, v = (x.masked_fill(hole, 0) for x in (q, k, v))
    bad = None
    if torch.is_grad_enabled():
        # A query that is not finite would give every key a NaN gradient (0 · NaN), even if nobody asks for its answer.
        bad = ~(q.detach().abs().amax(-1, keepdim=True) < HUGE)
        q = q.masked_fill(bad, 0)
    pairs = Ranked.build(valid, segment, decay, allowed, bias, causal=causal, window=window, shared=shared, look=looped)
    q, k, v = (pairs.sort(x) for x in (q, k, v))
    with torch.autocast(q.device.type, enabled=False):
        out = pairs.unsort((_tiled if looped else _folded)(q, k, v, pairs, beta).to(kind))
    if valid is not None:
        out = out.masked_fill(hole, 0)
    return out if bad is None else out.masked_fill(bad, torch.nan)


class _Cut:
    """Spans of a tensor's items, whose gradients cost no more than the spans, where slices' cost the whole tensor."""

    def __init__(self, x: Float[Tensor, "b H L K"]):
        self.x = x
        self.parts = x.split(ROWS, 2) if x.requires_grad and torch.is_grad_enabled() else None

    def take(self, spans: list[slice]) -> Float[Tensor, "b*H m K"]:
        """Some spans, one behind the other."""
        if self.parts is None:
            pieces = [self.x[:, :, span] for span in spans]
        else:
            pieces = [piece for span in spans for piece in self._pieces(self.parts, span)]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)).flatten(0, 1)

    @staticmethod
    def _pieces(parts: tuple[Tensor, ...], span: slice) -> Iterator[Tensor]:
        for i in range(span.start // ROWS, (span.stop - 1) // ROWS + 1):
            yield parts[i][:, :, max(0, span.start - i * ROWS) : span.stop - i * ROWS]


def _tiled(q: Tensor, k: Tensor, v: Tensor, pairs: Ranked, beta: float) -> Tensor:
    batch, heads, count, _ = q.shape
    rows = list(_rows(pairs, heads, count))
    widest = max(sum(s.stop - s.start for s in pairs.spans(r, count)) * (r.stop - r.start) for r in rows)
    group = max(1, SCORES // (heads * widest))
    again = torch.is_grad_enabled() and len(rows) * batch > group
    groups = zip(*(x.split(group) for x in (q, k, v)), strict=True)
    answers = []
    for i, (qs, ks, vs) in enumerate(groups):
        run = partial(_tile, _Cut(qs), _Cut(ks), _Cut(vs), pairs, beta, slice(i * group, i * group + len(qs)))
        parts = [checkpoint(run, r, use_reentrant=False, preserve_rng_state=False) if again else run(r) for r in rows]
        answers.append(parts[0] if len(parts) == 1 else torch.cat(parts, 2))
    return answers[0] if len(answers) == 1 else torch.cat(answers)


def _rows(pairs: Ranked, heads: int, count: int) -> Iterator[slice]:
    """The queries of each tile: few where they see all keys, and then those that see a band."""
    ends = min(pairs.shared, count)
    step = ROWS if pairs.causal else min(ROWS, max(1, SCORES // (heads * count)))
    for i in range(0, ends, step):
        yield slice(i, min(i + step, ends))
    for i in range(ends, count, ROWS):
        yield slice(i, min(i + ROWS, count))


def _tile(q: _Cut, k: _Cut, v: _Cut, pairs: Ranked, beta: float, batch: slice, rows: slice) -> Tensor:
    size, heads, count, _ = q.x.shape
    spans = pairs.spans(rows, count)
    queries, keys, values = q.take([rows]), k.take(spans), v.take(spans)
    hide = pairs.band(rows, spans, queries)
    if (seen := pairs.seen(batch, rows, spans)) is not None:
        hide = hide + (~seen).to(hide.dtype).mul_(pairs.floor(hide))
    add = hide
    if (extra := pairs.extra(batch, rows, spans)) is not None:
        add = hide + extra.to(hide.dtype)
    if len(add) == 1:
        logits = torch.baddbmm(add.expand(size, heads, -1, -1).flatten(0, 1), queries, keys.mT, alpha=beta)
    else:
        logits = torch.baddbmm(add.new_zeros(1, 1, 1), queries, keys.mT, beta=0, alpha=beta)
        logits = logits.unflatten(0, (size, heads)).add_(add).flatten(0, 1)
    out = torch.bmm(torch.softmax(logits, -1), values).unflatten(0, (size, heads))
    return out if pairs.allowed is None else out.masked_fill((hide < 0).all(-1, keepdim=True), 0)


def _folded(q: Tensor, k: Tensor, v: Tensor, pairs: Ranked, beta: float) -> Tensor:
    """Blocks of queries, each beside copies of the keys it might see, as if they were rows of the batch."""
    count, window, shared, device = q.shape[2], pairs.window, pairs.shared, q.device
    size = max(min(FOLD, window), 16, shared)
    blocks = (count + size - 1) // size + 1  # never one alone: a graph would be made for it
    halo = torch.sym_min(window - 1, count)
    ahead = 0 if pairs.causal else halo
    rows = (torch.arange(blocks, device=device) * size)[:, None] + torch.arange(size, device=device)
    keys = (torch.arange(blocks, device=device) * size)[:, None] + torch.arange(-halo, size + ahead, device=device)
    # The shared keys stand before the band of each block, and are hidden in it.
    keys = torch.cat([torch.arange(shared, device=device).expand(blocks, -1), keys.where(keys >= shared, -1)], 1)
    q = F.pad(q, (0, 0, 0, blocks * size - count))
    seen, extra = pairs.gathered(rows[:, :, None], keys[:, None], count)
    near = keys.clamp(0, count - 1)

    def fold(x: Tensor) -> Tensor:
        return x.expand(q.shape[0], -1, -1, -1, -1).transpose(1, 2).flatten(0, 1)

    mixed = _mix(
        fold(q.unflatten(2, (blocks, size))),
        fold(k[:, :, near]),
        fold(v[:, :, near]),
        fold(seen),
        None if extra is None else fold(extra),
        beta,
    )
    out = mixed.unflatten(0, (-1, blocks)).transpose(1, 2).flatten(2, 3)
    if shared and not pairs.causal:
        first, every = torch.arange(shared, device=device), torch.arange(count, device=device)
        seen, extra = pairs.gathered(first[None, :, None], every[None, None], count)
        ends = _mix(q[:, :, :shared], k, v, seen[:, :, 0], None if extra is None else extra[:, :, 0], beta)
        out = torch.cat([ends, out[:, :, shared:]], 2)
    return out[:, :, :count]


def _mix(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, extra: Tensor | None, beta: float) -> Tensor:
    blind = ~seen.any(-1, keepdim=True)
    mask = seen | blind
    if extra is not None:
        mask = extra.to(q.dtype).masked_fill(~mask, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=beta).masked_fill(blind, 0)
