"""Prefix sums with forgetting: what a memory holds after every item, in a fixed number of steps."""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mapsto.errors import ConfigError

__all__ = ["scan"]

CHUNK = 16
"""Places walked one after the other; all chunks at once."""

DOUBLINGS = 16
"""In a compiled scan, whose length is not known when it is compiled; else as many as there need be."""

MOST = CHUNK * ((1 << DOUBLINGS) - 3)
"""Places a compiled scan can take."""


def scan(
    x: Float[Tensor, "*B N D"],
    log_forget: Float[Tensor, "..."] | float | None = None,
    *,
    start: Float[Tensor, "*B D"] | None = None,
    reverse: bool = False,
) -> Float[Tensor, "*B N D"]:
    """h_t = γ_t h_{t-1} + x_t = Σ_{i<=t} (Π_{i<j<=t} γ_j) x_i along the items, with γ = exp(log_forget).

    Chunks of 16 places are walked in parallel; the end of each takes over those 1, 2, 4, … chunks before it; and what
    a chunk begins with is added to its places, faded. Nothing is divided by a product of γ's, and a product that underflows
    is a memory that is gone: stable for every γ in (0, 1], in float32 at least. A long product is the exponential of a
    sum of logarithms, so that the rounding of a γ near 1 does not add up over the items. Every step is elementwise: a
    later item changes no earlier answer by a single bit.

    Memory O(N D); time O(N D), and O(N D log₂(N / 16) / 16) for the ends; about 50 + 8 log₂ N operations, however long
    the rows. The backward is one scan the other way. Compiled and exported whole for any N up to a million.

    Args:
        x: what is written at each item, (B, N, D) or (B, H, N, D).
        log_forget: log γ <= 0 in any shape that broadcasts to that of x: a number, (H, 1, 1) for one a head, (D,) for
            one a channel, (…, N, 1) or (…, N, D) if the input decides. None forgets nothing: γ = 1.
        start: h before the first item; zeros if None.
        reverse: from the last item to the first: h_t = γ_t h_{t+1} + x_t.

    Raises:
        ConfigError: a shape that does not broadcast, or too many items for a compiled scan.

    Example:
        >>> scan(torch.ones(1, 4, 1), torch.tensor(0.5).log()).flatten()
        tensor([1.0000, 1.5000, 1.7500, 1.8750])

    Reference: Hillis and Steele, Data parallel algorithms, 1986; Martin and Cundy, Parallelizing linear recurrent
    neural nets over sequence length, 2018.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    items = x.to(wide)
    log = torch.as_tensor(0.0 if log_forget is None else log_forget, device=x.device).to(wide)
    log = log.reshape((1,) * (x.dim() - log.dim()) + log.shape)
    if log.dim() != x.dim() or any(g not in (1, n) for g, n in zip(log.shape, x.shape, strict=True)):
        raise ConfigError(
            f"scan: log_forget is {tuple(log.shape)}, x {tuple(x.shape)}; expected one that broadcasts to x"
        )
    if x.shape[-2] == 0:
        return x
    if start is not None:
        first = slice(-1, None) if reverse else slice(0, 1)
        met = items[..., first, :] + log[..., first, :].exp() * start[..., None, :].to(wide)
        rest = items[..., :-1, :] if reverse else items[..., 1:, :]
        items = torch.cat([rest, met] if reverse else [met, rest], -2)
    return _scan(items, log, reverse).to(x.dtype)


def _scan(x: Tensor, log: Tensor, reverse: bool) -> Tensor:
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and (x.requires_grad or log.requires_grad)):
        return _walk(x, log, reverse)  # a compiler finds its own backward
    out: Tensor = _Scan.apply(x, log, reverse)
    return out


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, log: Tensor, reverse: bool) -> Tensor:
        h = _walk(x, log, reverse)
        ctx.save_for_backward(h, log)
        ctx.reverse = reverse
        return h

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        # dx_t = upstream_t + γ_{t+1} dx_{t+1}, and dlog γ_t = Σ dx_t γ_t h_{t-1}.
        h, log = ctx.saved_tensors
        step = (1, -1) if ctx.reverse else (-1, 1)
        dx = _scan(upstream, log if log.shape[-2] == 1 else F.pad(log, (0, 0, *step)), not ctx.reverse)
        if not ctx.needs_input_grad[1]:
            return dx, None, None
        return dx, (dx * log.exp() * F.pad(h, (0, 0, *step[::-1]))).sum_to_size(log.shape), None


def _walk(x: Tensor, log: Tensor, reverse: bool) -> Tensor:
    """The scan, out of place."""
    places = x.shape[-2]
    if torch.compiler.is_compiling():
        if places > MOST:
            raise ConfigError(f"scan: {places} items; a compiled scan takes at most {MOST}")
        size, count, doublings = CHUNK, places // CHUNK + 3, DOUBLINGS  # no size is 1, so none is special
    else:
        size = min(places, CHUNK)
        count = -(-places // size)
        doublings = (count - 1).bit_length()
    order = range(size - 1, -1, -1) if reverse else range(size)
    single = log.shape[-2] == 1
    h, fade = _chunks(x, size, count), [log] * size if single else _chunks(log, size, count)
    gate = [log.exp()] * size if single else _chunks(log.exp(), size, count)
    for before, now in pairwise(order):
        h[now] = torch.addcmul(h[now], h[before], gate[now])
        fade[now] = fade[now] + fade[before]
    whole = torch.stack(h, -2)
    if doublings:
        ends = _double(h[order[-1]], fade[order[-1]], reverse, doublings)
        ends = F.pad(ends[..., 1:, :], (0, 0, 0, 1)) if reverse else F.pad(ends[..., :-1, :], (0, 0, 1, 0))
        whole = torch.addcmul(whole, torch.stack(fade, -2).exp_(), ends[..., None, :])
    return whole.flatten(-3, -2)[..., :places, :]


def _double(h: Tensor, log: Tensor, reverse: bool, doublings: int) -> Tensor:
    """The scan of the chunks' ends: each takes over what stands 1, 2, 4, … before it."""
    count = h.shape[-2]
    rank = torch.arange(count, device=h.device)
    for s in (1 << k for k in range(doublings)):
        before = (rank + s).clamp(max=count - 1) if reverse else (rank - s).clamp(min=0)
        first = (rank + s >= count if reverse else rank < s)[:, None]
        h = torch.addcmul(h, log.exp().masked_fill(first, 0), h.index_select(-2, before))
        log = log + (log if log.shape[-2] == 1 else log.index_select(-2, before).masked_fill(first, 0))
    return h


def _chunks(x: Tensor, size: int, count: int) -> list[Tensor]:
    """The first items of all chunks, the second ones, …; zeros fill up the last chunk."""
    return list(F.pad(x, (0, 0, 0, count * size - x.shape[-2])).unflatten(-2, (-1, size)).unbind(-2))
