"""Linear attention: out_l = Σ_m w_m (f_l·g_m) v_m / Σ_m w_m (f_l·g_m) without any L × M weights.

f and g are features of queries and keys, none of them negative; w_m = exp(log_weight_m) keeps what would overflow or
underflow in a feature (the size of its key, the forgetting since then) in a logarithm. Sums are stabilised by the
largest log weight *so far*, key by key, so nothing looks at what comes later.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from mapsto.functional.attention import HUGE
from mapsto.functional.feature import Exponential

__all__ = ["NEVER", "guarded", "linear_attend", "normalised", "parted", "through_features", "wide"]

NEVER = -1e30
"""The log weight of nothing: finite, so that differences are."""


CACHED = 1 << 20
"""Logits that are worked on at a time."""


def wide(kind: torch.dtype) -> torch.dtype:
    """The type sums are taken in: float32 at least."""
    return torch.promote_types(kind, torch.float32)


def guarded(
    q: Float[Tensor, "B H L K"],
    k: Float[Tensor, "B H M K"],
    v: Float[Tensor, "B H M V"],
    valid: Bool[Tensor, "B M"] | None,
    answer: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
) -> Float[Tensor, "B H L V"]:
    """What stands at padding reaches no answer and no gradient, not even a NaN; sums are in float32 at least.

    Args:
        q: queries. One that is not finite gets a NaN for an answer, and gives no other number one.
        k: keys.
        v: values.
        valid: which keys exist.
        answer: is given q (N, L, K), k (N, M, K), v (N, M, V) and valid (N, M) with N = B·H, of a type that can be
            summed in, with zeros where not valid, and gives (N, L, V).
    """
    kind, heads = q.dtype, q.shape[1]
    if 0 in (q.shape[0], heads, q.shape[2], k.shape[2]):
        empty: Tensor = q @ k.transpose(-1, -2) @ v
        return empty
    q, k, v = (x.to(wide(kind)) for x in (q, k, v))
    if valid is not None:
        gone = ~valid[:, None, :, None]
        k, v = k.masked_fill(gone, 0), v.masked_fill(gone, 0)
        valid = valid.repeat_interleave(heads, 0)
    bad = None
    if torch.is_grad_enabled():
        bad = ~(q.detach().abs().amax(-1, keepdim=True) < HUGE)
        q = q.masked_fill(bad, 0)
    with torch.autocast(q.device.type, enabled=False):
        out = answer(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), valid).unflatten(0, (-1, heads))
    return (out if bad is None else out.masked_fill(bad, torch.nan)).to(kind)


def normalised(x: Float[Tensor, "N M K"], features: Exponential) -> tuple[Float[Tensor, "N M R"], Float[Tensor, "N M"]]:
    """Features that sum to one, and log Σ_r φ_r(x): φ(x) is one times the exponential of the other.

    What would underflow in a feature is kept at the smallest number that can be divided by (1e-30 in float32), so that a
    normaliser with a key to see is never zero.
    """
    p, total = parted(features.logits(x))
    return p, total - features.size * (x * x).sum(-1)


def parted(logits: Float[Tensor, "N M R"]) -> tuple[Float[Tensor, "N M R"], Float[Tensor, "N M"]]:
    """Exp(logits) as numbers that sum to one, kept from underflow as in :func:`normalised`, and the log of their sum."""
    if torch.compiler.is_compiling():
        return torch.softmax(logits, -1).clamp(min=_least(logits.dtype)), torch.logsumexp(logits, -1)
    p, total = _Softmax.apply(logits) if torch.is_grad_enabled() else _softmax(logits)
    return p, total


def _least(kind: torch.dtype) -> float:
    return 1e-30 if kind == torch.float32 else 1e-300


def _softmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax and log Σ exp in one: log Σ exp(x) = x_max − log p_max takes no exponential again."""
    p = torch.softmax(x, -1)
    total = x.amax(-1) - p.amax(-1).log()
    return p.clamp_(min=_least(x.dtype)), total


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        p, total = _softmax(x)
        ctx.save_for_backward(p)
        return p, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, of_total: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        shift = of_total - torch.linalg.vecdot(g, p)
        return (g + shift[..., None]).mul_(p)


def through_features(
    q: Float[Tensor, "N L K"],
    k: Float[Tensor, "N M K"],
    v: Float[Tensor, "N M V"],
    features: Exponential,
    valid: Bool[Tensor, "N M"] | None = None,
) -> Float[Tensor, "N L V"]:
    """Every query sees every valid key, by :class:`Exponential` features: two softmaxes, and no stabiliser at all.

    z_r = Σ_m φ_r(k_m), u_r = Σ_m φ_r(k_m) v_m / z_r, and Σ_r φ_r(q_l) z_r u_r / Σ_r φ_r(q_l) z_r is a softmax over
    features of the logits rows_r·q_l + log z_r: any factor of a query, its own size included, cancels. The same
    estimate as written out, but nothing overflows, underflows or is divided by a small number.

    Time O((L + M) R (K + V)), memory O((L + M) R).

    Args:
        q: queries.
        k: keys.
        v: values; zeros where not valid.
        features: of R rows.
        valid: which keys exist. A group without any answers zeros.
    """
    out: Tensor
    if torch.compiler.is_compiling():
        logits = _keys(k, features, valid)
        z, u = torch.logsumexp(logits, -1), torch.softmax(logits, -1) @ v
        out = torch.softmax(features.logits(q) + z[:, None], -1) @ u
    else:
        out = _Through.apply(q, k, v, features, valid)
    if valid is not None:
        out = out.masked_fill(~valid.any(-1)[:, None, None], 0)
    return out


def _keys(k: Tensor, features: Exponential, valid: Tensor | None) -> Float[Tensor, "N R M"]:
    """Log φ of every key, the features first."""
    size = (k * k).sum(-1)[:, None] * -features.size
    if valid is not None:
        size = size.masked_fill(~valid[:, None], NEVER)
    rows = features.rows.expand(k.shape[0], -1, -1)
    return torch.baddbmm(size + features.shift[:, None], rows, k.transpose(1, 2))


class _Through(torch.autograd.Function):
    """The two softmaxes, some groups at a time so that their logits stay in the cache.

    The backward of each needs two products more than the forward, and no third.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, features: Exponential, valid: Tensor | None) -> Tensor:
        out = v.new_empty(*q.shape[:2], v.shape[2])
        rows, keep, kept = features.rows.T, any(ctx.needs_input_grad), []
        for n in _groups(len(q), features.rows.shape[0] * max(q.shape[1], k.shape[1])):
            logits = _keys(k[n], features, None if valid is None else valid[n])
            p = torch.softmax(logits, -1)
            # log Σ exp(x) = x_max − log p_max: two passes that only read, where logsumexp takes exponentials again.
            z = logits.amax(-1) - p.amax(-1).log()
            u = torch.bmm(p, v[n])
            t = torch.baddbmm((z + features.shift)[:, None], q[n], rows.expand(len(u), -1, -1))
            torch.softmax(t, -1, out=t)
            torch.bmm(t, u, out=out[n])
            if keep:
                kept += [p, u, t]
        if keep:
            ctx.save_for_backward(q, k, v, out, features.rows, *kept)
            ctx.size = features.size
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, rows, *kept = ctx.saved_tensors
        gq, gk, gv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for i, n in enumerate(_groups(len(q), len(rows) * max(q.shape[1], k.shape[1]))):
            p, u, t = kept[3 * i : 3 * i + 3]
            up, heads = g[n], rows.expand(len(u), -1, -1)
            gu = torch.bmm(t.transpose(1, 2), up)
            gt = torch.bmm(up, u.transpose(1, 2)).sub_((up * out[n]).sum(-1, keepdim=True)).mul_(t)
            torch.bmm(gt, heads, out=gq[n])
            gz = gt.sum(1) - torch.linalg.vecdot(gu, u)  # of a row's logits, what is the same for all its keys
            torch.bmm(p.transpose(1, 2), gu, out=gv[n])
            gp = torch.bmm(gu, v[n].transpose(1, 2)).add_(gz[..., None]).mul_(p)
            torch.baddbmm((-2 * ctx.size * gp.sum(1))[..., None] * k[n], gp.transpose(1, 2), heads, out=gk[n])
        return gq, gk, gv, None, None


def _groups(count: int, entries: int) -> list[slice]:
    size = max(1, CACHED // max(1, entries))
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]


def linear_attend(
    f: Float[Tensor, "N L R"],
    g: Float[Tensor, "N M R"],
    v: Float[Tensor, "N M V"],
    log_weight: Float[Tensor, "N M"] | None = None,
    valid: Bool[Tensor, "N M"] | None = None,
) -> Float[Tensor, "N L V"]:
    """Every query sees every valid key. Time O((L + M) R V), memory O(R V) beside the features.

    Args:
        f: features of the queries, >= 0.
        g: features of the keys, >= 0.
        v: values; zeros where not valid.
        log_weight: log w.
        valid: which keys exist. A query without a key to see answers zeros.
    """
    if log_weight is not None:
        if valid is not None:
            log_weight = log_weight.masked_fill(~valid, NEVER)
        top = log_weight.detach().amax(-1, keepdim=True) if log_weight.shape[-1] else 0.0
        g = g * (log_weight - top).exp().to(g.dtype)[..., None]
    if valid is not None:
        g = g.masked_fill(~valid[..., None], 0)
    total = f @ g.sum(1, keepdim=True).transpose(1, 2)
    out: Tensor = f @ (g.transpose(1, 2) @ v)
    return out / torch.where(total == 0, 1, total)
