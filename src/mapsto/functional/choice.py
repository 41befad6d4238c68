"""Hard attention: the value of the one key that fits best, with a gradient as if the choice had been soft."""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mapsto.functional.attention import HUGE, check_sizes
from mapsto.functional.block import Visible, fading

__all__ = ["Noise", "choose"]

Noise = Callable[[int, torch.Size], Tensor]
"""``noise(number, shape)`` gives the noise on the logits of one tile, the same whenever it is asked."""

SCORES = 1 << 20
"""Scores of a tile, so that it stays in the cache; on other devices than CPUs, 16 times as many."""

QUERIES = 256
"""Queries of a tile, at most."""


def choose(
    q: Float[Tensor, "B H L K"],
    k: Float[Tensor, "B H M K"],
    v: Float[Tensor, "B H M V"],
    *,
    valid: Bool[Tensor, "B M"] | None = None,
    segment: Int[Tensor, "B M"] | None = None,
    allowed: Bool[Tensor, "#B #H L M"] | None = None,
    causal: bool = False,
    bias: Callable[[slice, slice], Tensor] | None = None,
    decay: Float[Tensor, "B H M"] | None = None,
    beta: float | None = None,
    temperature: float = 1.0,
    noise: Noise | None = None,
) -> Float[Tensor, "B H L V"]:
    """out_l = v_m with m = argmax_m s_lm, s_lm = β q_l·k_m + bias_lm + Σ_{m<j<=l} decay_j + noise_lm, seen keys only.

    Of equal logits the lowest m wins. A query that sees nothing gets zeros. Gradients are straight-through: v gets that
    of the choice, in which it is linear; s gets that of softmax_m(s_lm / τ) in place of the one-hot choice.

    Time O(L·M), memory O(L + M) beside tiles of queries, forward and backward, which computes the logits anew; under
    ``torch.compile`` and ``torch.export`` there is one tile. The logits are float32 at least on every device.

    Args:
        q: queries.
        k: keys.
        v: values.
        valid: which keys exist.
        segment: which document an item is of (L == M).
        allowed: which keys a query may look at.
        causal: query l sees keys m <= l (L == M).
        bias: added to the logits, block by block. Gradients reach its parameters.
        decay: log γ_m <= 0, causal only. Ignored where not valid.
        beta: inverse temperature of the products, 1/√K by default.
        temperature: τ of the gradient.
        noise: of the logits, tile by tile.

    Raises:
        ConfigError: sizes that do not belong together.

    Reference: Bengio et al., Estimating or propagating gradients through stochastic neurons, 2013; Jang et al.,
    Categorical reparameterization with Gumbel-softmax, 2017.
    """
    check_sizes(q, k, v, causal or segment is not None, causal, decay)
    beta = 1 / math.sqrt(q.shape[-1]) if beta is None else beta
    if 0 in (*q.shape[:3], k.shape[2]):
        return q @ k.transpose(-1, -2) @ v
    kind = q.dtype
    if kind in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    if valid is not None:
        hole = ~valid[:, None, :, None]
        k, v = k.masked_fill(hole, 0), v.masked_fill(hole, 0)
    # A query that is not finite chooses nothing, and would give every key a NaN gradient (0 · NaN).
    bad = ~(q.detach().abs().amax(-1, keepdim=True) < (HUGE if torch.is_grad_enabled() else torch.inf))
    q = q.masked_fill(bad, 0)
    fade = None if decay is None else fading(decay, None if valid is None else valid[:, None])
    visible = Visible(q.device, valid, segment, allowed, causal, bias, fade)

    with torch.autocast(q.device.type, enabled=False):
        out = _tiled(q, k, v, visible, beta, temperature, noise)
    return out.masked_fill(bad, torch.nan).to(kind)


def _tiled(
    q: Tensor, k: Tensor, v: Tensor, visible: Visible, beta: float, temperature: float, noise: Noise | None
) -> Tensor:
    (batch, heads, queries, _), count = q.shape, k.shape[2]
    if torch.compiler.is_compiling():
        return _tile(q, k, v, visible, beta, temperature, noise, 0, slice(0, batch), slice(0, queries))
    scores = SCORES if q.device.type == "cpu" else 16 * SCORES
    step = min(queries, QUERIES, max(1, scores // (heads * count)))
    group = max(1, scores // (heads * count * step))
    rows = [slice(i, min(i + step, queries)) for i in range(0, queries, step)]
    again = torch.is_grad_enabled() and len(rows) * batch > group
    number, answers = 0, []
    for i, (qs, ks, vs) in enumerate(zip(*(x.split(group) for x in (q, k, v)), strict=True)):
        part = slice(i * group, i * group + len(qs))
        answer = []
        for tile, wanted in zip(qs.split(step, 2), rows, strict=True):
            run = partial(_tile, tile, ks, vs, visible, beta, temperature, noise, number, part, wanted)
            answer.append(checkpoint(run, use_reentrant=False, preserve_rng_state=False) if again else run())
            number += 1
        answers.append(answer[0] if len(answer) == 1 else torch.cat(answer, 2))
    return answers[0] if len(answers) == 1 else torch.cat(answers)


def _tile(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visible,
    beta: float,
    temperature: float,
    noise: Noise | None,
    number: int,
    batch: slice,
    rows: slice,
) -> Tensor:
    keys = visible.keys(rows, k.shape[2])
    k, v = k[:, :, keys], v[:, :, keys]
    logits = q @ k.mT * beta
    if (extra := visible.extra(batch, rows, keys)) is not None:
        logits = logits + extra.to(logits.dtype)
    if noise is not None:
        logits = logits + noise(number, logits.shape).to(logits.dtype)
    # Finite, so that a query that sees nothing has finite gradients until it gets its zeros.
    floor = torch.finfo(logits.dtype).min / 4
    if (seen := visible.seen(batch, rows, keys)) is not None:
        logits = logits.masked_fill(~seen, floor)
    best, index = logits.detach().max(-1, keepdim=True)
    out = v.gather(2, index.expand(-1, -1, -1, v.shape[3]))
    if logits.requires_grad:
        soft = torch.softmax((logits - best) / temperature, -1) @ v.detach()
        out = out + (soft - soft.detach())
    return out if seen is None else out.masked_fill(best <= floor, 0)
