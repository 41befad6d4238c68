"""A memory that is written and read: a store of fixed size that associates values with keys, and may forget."""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mapsto.attention import Attention, Bias
from mapsto.errors import ConfigError
from mapsto.functional.attention import check_sizes
from mapsto.functional.causal import LinearState, in_runs, linear_causal, linear_step
from mapsto.functional.linear import guarded, linear_attend, parted, wide

__all__ = ["MemoryAttention"]

OPEN = 4.0  # σ(4) = .98: a gate that forgets little before it has learned


class MemoryAttention(Attention):
    """S_t = γ_t S_{t−1} + φ(k_t) v_tᵀ, z_t = γ_t z_{t−1} + φ(k_t), read as φ(q)ᵀS / φ(q)ᵀz, with φ = elu + 1.

    Keys are written one after the other, and every write forgets a share 1 − γ of what was there. Causally a query reads
    what is written up to its own place; otherwise all that is written, which was forgotten up to the last key. What is
    not valid is neither written nor forgets anything. Time O(L K V), memory O(K V) beside the inputs; a step costs the
    same at any length.

    Args:
        gamma: what is kept at each write, 0 < γ <= 1.
        gated: γ_t = σ(θ_hᵀk_t + b_h) instead, learned a head, starting at .98 (after ``bind``).

    Reference: Katharopoulos et al., Transformers are RNNs, 2020; Yang et al., Gated linear attention, 2024.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"decay", "segment"})

    def __init__(self, gamma: float = 1.0, *, gated: bool = False):
        super().__init__()
        if type(gated) is not bool:
            raise ConfigError(f"attention.gated={gated}: expected true or false")
        if type(gamma) not in (float, int) or not 0 < gamma <= 1:
            raise ConfigError(f"attention.gamma={gamma}: expected a number above 0, up to 1 (which never forgets)")
        if gated and gamma != 1:
            raise ConfigError(f"attention.gamma={gamma}: a gated memory learns what to keep.   Leave gamma out")
        self.gamma, self.gated = float(gamma), gated
        self.gate: nn.Parameter | None = None
        self.open: nn.Parameter | None = None

    @property
    def exempt(self) -> dict[str, str]:
        """Forgetting knows an order."""
        if self.gated or self.gamma < 1:
            return {"S": "what was written first is forgotten most, so the order of keys counts"}
        return {}

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"gamma": self.gamma, "gated": self.gated}

    def bind(self, heads: int, key: int, stream: torch.Generator | None = None) -> "MemoryAttention":
        """A fresh module; a gated one with a gate of its own for each head."""
        bound = MemoryAttention(**self.settings())
        if self.gated:
            bound.gate = nn.Parameter(torch.zeros(heads, key))
            bound.open = nn.Parameter(torch.full((heads,), OPEN))
        return bound

    def _fade(self, k: Float[Tensor, "N M K"], valid: Tensor | None) -> Float[Tensor, "N M"] | None:
        """The sum of log γ up to each place, in float64; None if nothing is forgotten."""
        if self.gated:
            if self.gate is None or self.open is None:
                logits = k.new_full(k.shape[:2], OPEN)
            else:
                heads = len(self.gate)
                gate, begin = self.gate.to(k.dtype), self.open.to(k.dtype)
                logits = torch.einsum("BHMK,HK->BHM", k.unflatten(0, (-1, heads)), gate) + begin[:, None]
                logits = logits.flatten(0, 1)
            log_gamma = F.logsigmoid(logits)
        elif self.gamma < 1:
            log_gamma = k.new_full(k.shape[:2], math.log(self.gamma))
        else:
            return None
        return (log_gamma if valid is None else log_gamma.masked_fill(~valid, 0)).double().cumsum(-1)

    def forward(
        self,
        q: Float[Tensor, "B H L K"],
        k: Float[Tensor, "B H M K"],
        v: Float[Tensor, "B H M V"],
        *,
        valid: Bool[Tensor, "B M"] | None = None,
        segment: Int[Tensor, "B M"] | None = None,
        allowed: Bool[Tensor, "#B #H L M"] | None = None,
        causal: bool = False,
        bias: Bias | None = None,
        decay: Float[Tensor, "B H M"] | None = None,
    ) -> Float[Tensor, "B H L V"]:
        """Answer every query. Segments only where causal.

        Raises:
            ConfigError: what it cannot honour, or sizes that do not belong together.
        """
        self.refuse(allowed=allowed, bias=bias)
        check_sizes(q, k, v, causal or segment is not None, causal, decay)
        if segment is not None and not causal:
            raise ConfigError("memory attention honours segment with causal=True only.   Pack the collection instead")
        heads = q.shape[1]

        def answer(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
            exists = torch.ones(k.shape[:2], dtype=torch.bool, device=k.device) if valid is None else valid
            given = k.new_zeros(k.shape[:2], dtype=torch.float64)
            if decay is not None:  # counts all places between, whosever they are
                given = decay.flatten(0, 1).double().masked_fill(~exists, 0).cumsum(-1)
            run = back = None
            if segment is not None:  # a document forgets by its own keys only
                run, (q, k, v, given, exists), back = in_runs(
                    segment.repeat_interleave(heads, 0), q, k, v, given, exists
                )
            fade = self._fade(k, None if valid is None and segment is None else exists)
            f, (g, log_weight) = torch.softmax(log_lift(q), -1), parted(log_lift(k))
            if fade is not None or decay is not None:
                log_weight = log_weight - given if fade is None else log_weight - fade - given
            mask = exists if valid is not None else None
            if not causal:
                return linear_attend(f, g, v, log_weight, mask)
            out = linear_causal(f, g, v, log_weight, valid=mask, run=run)
            return out if back is None else out.gather(1, back.expand_as(out))

        return guarded(q, k, v, valid, answer)

    def reference(
        self,
        q: Float[Tensor, "B H L K"],
        k: Float[Tensor, "B H M K"],
        v: Float[Tensor, "B H M V"],
        *,
        seen: Bool[Tensor, "B H L M"],
        extra: Float[Tensor, "B H L M"],
        valid: Bool[Tensor, "B M"],
    ) -> Float[Tensor, "B H L V"]:
        """The same over all pairs: weights φ(q)·φ(k_m) times what is kept of the m-th key after the last that is seen."""
        weights = lift(q.double()) @ lift(k.double()).transpose(-1, -2)
        fade = self._fade(k.double().flatten(0, 1), None)
        if fade is not None:
            log_gamma = torch.diff(fade, prepend=fade.new_zeros(len(fade), 1)).unflatten(0, q.shape[:2])
            kept = -(log_gamma[:, :, None] * seen).cumsum(-1)  # only what a query sees makes its memory forget
            last = kept.masked_fill(~seen, -torch.inf).amax(-1, keepdim=True).clamp(min=-1e30)
            weights = weights * (kept - last).clamp(max=0).exp()
        weights = (weights * extra.exp() * seen).to(v.dtype)
        total = weights.sum(-1, keepdim=True)
        out: Tensor = (weights / total.where(total != 0, 1.0)) @ v
        return out

    def start(self, like: Tensor, capacity: int, *, batch: int, heads: int, key: int, value: int) -> LinearState:
        """An empty store; its size does not depend on ``capacity``."""
        return LinearState.start(like, batch, heads, key, value)

    def write(
        self,
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: LinearState,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
    ) -> LinearState:
        """Write T pairs. Consumes the state."""
        return self.step(k, k, v, state, valid=valid)[1]

    @torch.no_grad()
    def step(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: LinearState,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        bias: Bias | None = None,
    ) -> tuple[Float[Tensor, "B H T V"], LinearState]:
        """Write T new pairs, and read at each what is written up to it."""
        self.refuse(bias=bias)
        tops: list[Tensor] = []

        def answer(q: Tensor, k: Tensor, v: Tensor, exists: Tensor | None) -> Tensor:
            fade = self._fade(k, exists)
            f, (g, log_weight) = torch.softmax(log_lift(q), -1), parted(log_lift(k))
            log_weight = log_weight if fade is None else log_weight - fade
            out, top = linear_step(f, g, v, log_weight, state, valid=exists)
            tops.append(top if fade is None else (top + fade[:, -1]).to(k.dtype))  # counted from here on
            return out

        out = guarded(q, k, v, valid, answer)
        written = k.shape[2] if valid is None else valid.sum(1)
        return out, state.after(tops[0], written) if tops else state

    def read(self, q: Float[Tensor, "B H L K"], state: LinearState) -> Float[Tensor, "B H L V"]:
        """Read all that is written; writes nothing."""
        with torch.autocast(q.device.type, enabled=False):
            out = state.total.ask(torch.softmax(log_lift(q.to(wide(q.dtype))), -1).flatten(0, 1))
        return out.unflatten(0, q.shape[:2]).to(q.dtype)


def lift(x: Float[Tensor, "... K"]) -> Float[Tensor, "... K"]:
    """Elu(x) + 1 > 0, without the difference that loses all digits far below zero."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def log_lift(x: Float[Tensor, "... K"]) -> Float[Tensor, "... K"]:
    """Log of :func:`lift`: a query's size cancels and a key's goes into its weight, so that neither can underflow."""
    return torch.where(x > 0, torch.log1p(x.clamp(min=0)), x)
