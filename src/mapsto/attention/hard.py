"""Hard attention: every query takes the value of the one key that fits best."""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mapsto.attention import Attention, Bias
from mapsto.errors import ConfigError, did_you_mean
from mapsto.functional.attention import check_beta
from mapsto.functional.cache import Cache
from mapsto.functional.choice import Noise, choose
from mapsto.noise import Gumbel

__all__ = ["HardAttention"]

ESTIMATORS = ("straight-through", "gumbel")


class HardAttention(Attention):
    """Out_l = v_m for the visible key m with the largest s_lm = β q_l·k_m + bias_lm + Σ_{m<j<=l} decay_j.

    Of equal logits the lowest m wins, in bfloat16 too, where they are common: the products are made in float32. Exact
    attention tends to it as β grows. Whatever the estimator, v gets the gradient of the choice, in which it is linear;
    the logits get that of a soft choice in its place:

    - ``straight-through``: of softargmax_m(s_lm).
    - ``gumbel``: in training the choice is drawn with probability softargmax_m(s_lm), as the argmax of s + G with Gumbel
      noise G, and the gradient is that of softmax_m((s_lm + G_lm) / τ). τ falls from ``temperature`` to ``final`` over
      the first ``steps`` optimiser steps, by the same factor in each. In eval nothing is drawn.

    A choice is discontinuous: rows whose two best logits lie closer than rounding may change with the company or the
    order of keys; laws S and B hold for all others.

    Time O(L·M), memory O(L + M) beside blocks; a step costs O(T · length). Honours every argument of the contract.

    Args:
        estimator: ``straight-through`` or ``gumbel``.
        beta: inverse temperature of the products; 1/√K by default.
        temperature: τ at the first step, gumbel only.
        final: τ from step ``steps`` on, gumbel only.
        steps: how long τ falls, gumbel only.

    Example:
        >>> q = k = torch.eye(2)[None, None]
        >>> HardAttention()(q, k, torch.tensor([[[[3.0], [5.0]]]])).flatten()
        tensor([3., 5.])

    Reference: Xu et al., Show, attend and tell, 2015; Jang et al., Categorical reparameterization with Gumbel-softmax,
    2017.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"allowed", "bias", "decay", "segment"})

    def __init__(
        self,
        estimator: str = "straight-through",
        beta: float | None = None,
        temperature: float = 1.0,
        final: float = 0.1,
        steps: int = 10_000,
    ):
        super().__init__()
        if estimator not in ESTIMATORS:
            raise ConfigError(
                f'attention.estimator: "{estimator}" is not one of {", ".join(ESTIMATORS)}.'
                f"{did_you_mean(str(estimator), ESTIMATORS)}"
            )
        check_beta(beta)
        for name, value in (("temperature", temperature), ("final", final)):
            if not 0 < value < float("inf"):
                raise ConfigError(f"attention.{name}={value}: expected a finite number above 0")
        if type(steps) is not int or steps < 0:
            raise ConfigError(f"attention.steps={steps}: expected a whole number, 0 or more")
        if estimator != "gumbel" and (temperature, final, steps) != (1.0, 0.1, 10_000):
            raise ConfigError(
                f"attention: temperature, final and steps cool the gumbel estimator, and do nothing to {estimator}. "
                "Use estimator=gumbel, or beta= to sharpen the gradient"
            )
        self.estimator, self.beta = estimator, beta
        self.temperature, self.final, self.steps = temperature, final, steps
        self.noise = Gumbel() if estimator == "gumbel" else None

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        names = ("estimator", "beta", "temperature", "final", "steps")
        return {name: getattr(self, name) for name in names}

    def cooled(self, step: int) -> float:
        """τ of the gradient at an optimiser step; always 1 for ``straight-through``."""
        if self.noise is None:
            return 1.0
        passed = min(1.0, step / self.steps) if self.steps else 1.0
        return self.temperature * (self.final / self.temperature) ** passed

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
        """Answer every query; see :func:`mapsto.functional.choice.choose`."""
        seen: dict[str, Any] = {"valid": valid, "segment": segment, "allowed": allowed, "bias": bias, "decay": decay}
        noise: Noise | None = None
        if self.noise is not None and self.training and self.noise.rate:
            noise = self.noise.tiles(q.device)
        return choose(q, k, v, causal=causal, beta=self.beta, temperature=self._now(), noise=noise, **seen)

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
        """Write T new places and answer them causally, from all that is written up to each. Nothing is drawn."""
        after = self.write(k, v, state, valid=valid)
        return choose(q, *after.held, **state.seen(q.shape[2], after, valid, bias), beta=self.beta), after

    def read(self, q: Float[Tensor, "B H L K"], state: Cache) -> Float[Tensor, "B H L V"]:
        """Answer queries from all that was written. Nothing is drawn."""
        return choose(q, *state.held, valid=state.valid, beta=self.beta)

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
        """The choice over all pairs, without noise, and its straight-through gradient; see the contract."""
        beta = q.shape[-1] ** -0.5 if self.beta is None else self.beta
        least = torch.finfo(torch.float64).min
        logits = beta * q.double() @ k.double().mT + extra
        index = logits.masked_fill(~seen, least).argmax(-1, keepdim=True)
        picked = torch.zeros_like(logits).scatter(-1, index, 1.0) * seen
        soft = torch.softmax((logits / self._now()).masked_fill(~seen, least), -1) * seen
        out: Tensor = picked.to(v.dtype) @ v + (soft - soft.detach()).to(v.dtype) @ v.detach()
        return out

    def _now(self) -> float:
        return self.cooled(0 if self.noise is None else self.noise.clock.step)
