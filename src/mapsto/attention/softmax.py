"""Exact attention: every key a query may see is weighed by the exponential of their product."""

from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from mapsto.attention import Attention, Bias
from mapsto.functional.attention import attend, check_beta
from mapsto.functional.cache import Cache

__all__ = ["SoftmaxAttention"]


class SoftmaxAttention(Attention):
    """Out_l = Σ_m softargmax_m(β q_l·k_m + bias_lm + Σ_{m<j<=l} decay_j) v_m over the keys that l may see.

    Time O(L·M), memory O(L + M) beside blocks; a step costs O(T · length). Honours every argument of the contract.

    Args:
        beta: inverse temperature; 1/√K by default. Towards ∞ it becomes hard attention, 0 is the mean.

    Example:
        >>> import torch
        >>> q = k = torch.eye(2)[None, None]
        >>> SoftmaxAttention(beta=100.0)(q, k, torch.tensor([[[[3.0], [5.0]]]])).flatten()
        tensor([3., 5.])

    Reference: Vaswani et al., Attention is all you need, 2017.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"allowed", "bias", "decay", "segment"})

    def __init__(self, beta: float | None = None):
        super().__init__()
        check_beta(beta)
        self.beta = beta

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"beta": self.beta}

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
        """Answer every query; see :func:`mapsto.functional.attention.attend`."""
        seen: dict[str, Any] = {"valid": valid, "segment": segment, "allowed": allowed, "bias": bias, "decay": decay}
        return attend(q, k, v, causal=causal, beta=self.beta, **seen)

    def start(self, like: Tensor, capacity: int, *, batch: int, heads: int, key: int, value: int) -> Cache:
        """An empty cache for up to ``capacity`` places a row."""
        return Cache.start(like, capacity, batch=batch, heads=heads, key=key, value=value)

    def write(
        self,
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: Cache,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
    ) -> Cache:
        """Write T places; what is not valid is left out. Consumes the state.

        Raises:
            ConfigError: a row would grow beyond the capacity.
        """
        return state.write(k, v, valid)

    def step(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: Cache,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        bias: Bias | None = None,
    ) -> tuple[Float[Tensor, "B H T V"], Cache]:
        """Write T new places and answer them causally, from all that is written up to each."""
        after = self.write(k, v, state, valid=valid)
        return attend(q, *after.held, **state.seen(q.shape[2], after, valid, bias), beta=self.beta), after

    def read(self, q: Float[Tensor, "B H L K"], state: Cache) -> Float[Tensor, "B H L V"]:
        """Answer queries from all that was written."""
        return attend(q, *state.held, valid=state.valid, beta=self.beta)
