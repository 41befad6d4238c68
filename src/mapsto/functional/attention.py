"""Softargmax and exact attention: by torch's fused kernels or by our own tiles, whichever is faster where it runs."""

import functools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mapsto.errors import ConfigError
from mapsto.functional.block import Visible, blockwise, fading
from mapsto.process import has_avx512, slow_mkl

__all__ = ["HUGE", "attend", "check_beta", "check_sizes", "softargmax", "weighted"]

HUGE = 1e18
"""A query beyond this may overflow when multiplied by a key."""

NATIVE = (torch.float32, torch.float64)
"""What every device multiplies as it is."""

MASK = 1 << 22
"""Entries of a mask made at once for torch's kernels."""

SHORT = 1 << 16
"""Scores of one head below which a row is short."""


def softargmax(s: Float[Tensor, "..."], beta: float | None = None, dim: int = -1) -> Float[Tensor, "..."]:
    """softargmax_β(s)_m = exp(β s_m) / Σ_m' exp(β s_m').

    β → ∞ tends to the one-hot argmax, β = 0 is uniform. The largest score is subtracted first, so that any finite
    scores give finite weights.

    Args:
        s: scores.
        beta: inverse temperature; 1 if None. (:func:`attend` takes 1/√K: it knows how wide the keys are.)
        dim: the dimension of the scores of one choice.

    Example:
        >>> softargmax(torch.tensor([0.0, 1.0, 2.0]), beta=0.0)
        tensor([0.3333, 0.3333, 0.3333])
    """
    return torch.softmax(s if beta is None else beta * s, dim)


def attend(
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
) -> Float[Tensor, "B H L V"]:
    """Exact attention: out_l = Σ_m softargmax_m(β q_l·k_m + bias_lm + Σ_{m<j<=l} decay_j) v_m over the seen keys m.

    A key m is seen by a query l iff ``valid[b, m]``, ``segment[b, l] == segment[b, m]``, ``allowed[b, h, l, m]`` and,
    if causal, m <= l. A query that sees nothing gets zeros. What stands at keys that are not valid changes nothing,
    not even a NaN; nor do queries whose answers nobody uses.

    Time O(L·M); memory O(L + M) beside blocks of 256 to 512 queries by M keys, except under ``torch.compile`` and
    ``torch.export``, where masks are made whole. The logits and all sums are float32 at least. On CPUs, float16, and
    bfloat16 without matrix units for it, are computed in float32: native products are up to 100 times slower.

    Args:
        q: queries.
        k: keys.
        v: values.
        valid: which keys exist; True = it may be seen, as in all of these.
        segment: which document an item is of (L == M).
        allowed: which keys a query may look at.
        causal: query l sees keys m <= l (L == M).
        bias: ``bias(queries, keys)`` gives the (B|1, H|1, l, m) block to add to the logits of those ranks. Gradients
            reach its parameters.
        decay: log γ_m <= 0, causal only: key m is weighed by Π_{m<j<=l} γ_j. Ignored where not valid.
        beta: inverse temperature, 1/√K by default.

    Raises:
        ConfigError: sizes that do not belong together.
    """
    check_sizes(q, k, v, causal or segment is not None, causal, decay)
    if beta is None:
        beta = 1 / math.sqrt(q.shape[-1])
    if 0 in (q.shape[0], q.shape[1], q.shape[2], k.shape[2]):
        return q @ k.transpose(-1, -2) @ v
    masks = (valid, segment, allowed, bias, decay)
    if q.shape[2] == 1 and not _traced(q) and all(mask is None for mask in masks) and _native(q):
        return F.scaled_dot_product_attention(q, k, v, scale=beta)  # a step: one query sees all that is held
    fade = None if decay is None else fading(decay, None if valid is None else valid[:, None])
    visible = Visible(q.device, valid, segment, allowed, causal, bias, fade)
    if q.device.type != "cpu":
        return _fused(q, k, v, visible, beta)
    if torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return _on_cpu(q, k, v, visible, beta)
    return _on_cpu(q, k, v, visible, beta)


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, visible: Visible, beta: float) -> Tensor:
    kind = q.dtype
    if not _native(q) or (kind == torch.bfloat16 and _backward_is_slow(q, k, v)):
        q, k, v = q.float(), k.float(), v.float()
    way = blockwise if _tiles_win(q, k, v, visible) else _fused
    return way(q, k, v, visible, beta).to(kind)


def _backward_is_slow(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether something is learnt by torch's kernel in bfloat16 that is learnt faster in float32: by the shapes.

    Its backward pass costs 0.15 ms a head and block of 64 queries, whatever it has to do: of 49 items and heads 16 wide
    it took 13 times as long as in float32 (Sapphire Rapids), of 256 items 3 times, of 256 items and heads 64 wide 1.1.
    """
    learning = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return learning and (q.shape[3] < 64 or q.shape[2] * k.shape[2] < SHORT)


def weighted(weights: Float[Tensor, "... L M"], v: Float[Tensor, "... M V"]) -> Float[Tensor, "... L V"]:
    """Σ_m w_lm v_m / Σ_m w_lm; zeros where no weight is above zero."""
    total = weights.sum(-1, keepdim=True)
    return (weights / total.where(total != 0, 1.0)) @ v


def check_beta(beta: float | None) -> None:
    """Refuse what is no inverse temperature.

    Raises:
        ConfigError: says what is expected.
    """
    if beta is not None and (isinstance(beta, bool) or not 0 <= beta < float("inf")):
        raise ConfigError(f"attention.beta={beta}: expected a finite number, 0 or more. Leave it out for 1/√K")


def check_sizes(q: Tensor, k: Tensor, v: Tensor, square: bool, causal: bool, decay: Tensor | None) -> None:
    """Refuse queries, keys and values that do not belong together.

    Args:
        q: queries.
        k: keys.
        v: values.
        square: whether there must be as many queries as keys.
        causal: whether attention is causal.
        decay: log of the forgetting, causal only.

    Raises:
        ConfigError: says which sizes they have, and which are expected.
    """

    def shape(x: Tensor) -> str:
        return "×".join(map(str, x.shape))

    if not q.dim() == k.dim() == v.dim() == 4:
        raise ConfigError(
            f"attention: q is {shape(q)}, k {shape(k)}, v {shape(v)}; expected batch × heads × items × width for each"
        )
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise ConfigError(
            f"attention: q is {shape(q)}, k {shape(k)}, v {shape(v)}; batch and heads must be the same, q and k "
            "equally wide, k and v equally many"
        )
    if square and q.shape[2] != k.shape[2]:
        raise ConfigError(
            f"attention: causal attention and segments need as many queries as keys, got {q.shape[2]} and {k.shape[2]}"
        )
    if decay is not None and not causal:
        raise ConfigError("attention: decay counts the places between a key and a later query; use it with causal=True")


def _traced(q: Tensor) -> bool:
    """Whether more than the answer is asked for."""
    return torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.is_autocast_enabled(q.device.type)


def _native(q: Tensor) -> bool:
    """Whether torch's kernel multiplies these numbers as they are."""
    return q.dtype in NATIVE or not q.is_cpu or (q.dtype == torch.bfloat16 and _matrix_units())


def _matrix_units() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware, accumulating in float32, inside torch's own kernel (AMX)."""
    return not torch.compiler.is_compiling() and _amx()


@functools.cache
def _amx() -> bool:
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False))


def _tiles_win(q: Tensor, k: Tensor, v: Tensor, visible: Visible) -> bool:
    """Whether our own tiles are to be used: by the machine and the shapes, never by what is in the batch.

    For long rows they took 0.55 of the time of torch's kernel on Zen 5, where its products reach half of the peak
    (:func:`mapsto.process.slow_mkl`), but 1.2 of it on Zen 3 and 1.3 to 1.9 on Sapphire Rapids, where they reach all.
    They also win where :func:`mapsto.process.tune_process` found oneDNN's products to be faster, since the kernel never
    uses them. For short rows that are masked or trained they took 0.6 to 0.9 of the kernel made lawful on Zen 3, which
    costs several passes over small tensors, and 1.2 to 1.4 with Intel's AVX-512. The kernel knows neither values of
    another width nor a learned decay.
    """
    if torch.compiler.is_compiling() or q.dtype not in (torch.float32, torch.float64):
        return False
    learning, bias = torch.is_grad_enabled(), visible.bias
    if bias is not None and learning and bias(slice(0, 1), slice(0, 1)).requires_grad:
        return False  # its parameters get their gradients from autograd
    if visible.fade is not None or q.shape[3] != v.shape[3]:
        return True
    if slow_mkl() or torch.backends.mkldnn.matmul.fp32_precision == "bf16":  # type: ignore[attr-defined]
        return True
    short = q.shape[2] * k.shape[2] <= SHORT and (learning or visible.valid is not None)
    return short and not has_avx512()


def _fused(q: Tensor, k: Tensor, v: Tensor, visible: Visible, beta: float) -> Tensor:
    """The kernels of torch, made lawful; in blocks of queries where a mask of all would not fit."""
    if visible.valid is not None:
        gone = ~visible.valid[:, None, :, None]
        k, v = k.masked_fill(gone, 0), v.masked_fill(gone, 0)
    bad = None
    if torch.is_grad_enabled():
        # A query that is not finite would give every key a NaN gradient (0 · NaN), even if nobody asks for its answer.
        bad = ~(q.detach().abs().amax(-1, keepdim=True) < HUGE)
        if q.is_cpu and not torch.compiler.is_compiling() and not bool(bad.any()):
            bad = None  # to look costs nothing here, and spares four passes that would change nothing
        else:
            q = q.masked_fill(bad, 0)
    masks = (visible.valid, visible.segment, visible.allowed, visible.bias, visible.fade)
    if all(mask is None for mask in masks):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=visible.causal, scale=beta)
    else:
        blocks = list(_blocks(q, k, visible))
        again = len(blocks) > 1 and torch.is_grad_enabled() and (visible.bias is not None or visible.fade is not None)
        parts = [
            checkpoint(_part, q, k, v, visible, beta, rows, use_reentrant=False, preserve_rng_state=False)
            if again
            else _part(q, k, v, visible, beta, rows)
            for rows in blocks
        ]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    return out if bad is None else out.masked_fill(bad, torch.nan)


def _blocks(q: Tensor, k: Tensor, visible: Visible) -> Iterator[slice]:
    batch, heads, queries, _ = q.shape
    if torch.compiler.is_compiling() or (visible.plain and visible.bias is None and visible.fade is None):
        yield slice(0, queries)
        return
    if visible.bias is not None or visible.fade is not None:
        batch *= heads
    block = max(64, MASK // (batch * k.shape[2]))
    if visible.causal:
        block = min(block, 512)  # a block skips the keys after its last query
    for i in range(0, queries, block):
        yield slice(i, min(i + block, queries))


def _part(q: Tensor, k: Tensor, v: Tensor, visible: Visible, beta: float, rows: slice) -> Tensor:
    everyone, keys = slice(0, q.shape[0]), visible.keys(rows, k.shape[2])
    seen, extra = visible.seen(everyone, rows, keys), visible.extra(everyone, rows, keys)
    q, k, v = q[:, :, rows], k[:, :, keys], v[:, :, keys]
    if seen is None:
        mask = None if extra is None else extra.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=beta)
    # A query that sees nothing sees everything for the kernel, and gets its zeros afterwards: finite both ways.
    blind = ~seen.any(-1, keepdim=True)
    mask = seen | blind
    if extra is not None:
        mask = extra.to(q.dtype).masked_fill(~mask, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=beta).masked_fill(blind, 0)
