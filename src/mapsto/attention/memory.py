"""A memory that is written and read: a store of fixed size that associates values with keys, and may forget."""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mapsto.attention import Attention, Bias
from mapsto.errors import ConfigError
from mapsto.functional.attention import check_sizes, weighted
from mapsto.functional.block import fading
from mapsto.functional.causal import LinearState
from mapsto.functional.linear import guarded, linear_attend, parted
from mapsto.functional.retrieval import advance, look_back, recall

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
        return fading(log_gamma, valid)

    def _mapped(self, q: Tensor, k: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Features of queries, up to a factor each, and of keys; the log size of each key; what was forgotten up to it."""
        return torch.softmax(log_lift(q), -1), *parted(log_lift(k)), self._fade(k, valid)

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
            if not causal:
                f, g, log_weight, fade = self._mapped(q, k, valid)
                return linear_attend(f, g, v, log_weight if fade is None else log_weight - fade, valid)
            given = None if decay is None else fading(decay.flatten(0, 1), valid)
            runs = None if segment is None else segment.repeat_interleave(heads, 0)
            return look_back(q, k, v, self._mapped, valid=valid, fade=given, segment=runs)

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
        return weighted((weights * extra.exp() * seen).to(v.dtype), v)

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
        return advance(q, k, v, state, self._mapped, valid)

    def read(self, q: Float[Tensor, "B H L K"], state: LinearState) -> Float[Tensor, "B H L V"]:
        """Read all that is written; writes nothing."""
        return recall(q, state, lambda x: torch.softmax(log_lift(x), -1))


def lift(x: Float[Tensor, "... K"]) -> Float[Tensor, "... K"]:
    """Elu(x) + 1 > 0, without the difference that loses all digits far below zero."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def log_lift(x: Float[Tensor, "... K"]) -> Float[Tensor, "... K"]:
    """Log of :func:`lift`: a query's size cancels and a key's goes into its weight, so that neither can underflow."""
    return torch.where(x > 0, torch.log1p(x.clamp(min=0)), x)
