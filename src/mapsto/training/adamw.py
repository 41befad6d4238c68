"""AdamW on one vector of weights, without the 50 to 150 µs a step that an optimiser object for any model costs."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["AdamW"]


class AdamW:
    """Adam with decoupled weight decay.

    m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²,
    w ← (1 − η λ) w − η m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε), with λ on the first weights only.

    It calls the kernel of ``torch.optim.AdamW(fused=True)``, so the bits are the same; where a torch has no such
    kernel the formula is computed as it stands.

    Args:
        weights: (P,) changed in place.
        split: how many of them, from the first, decay.
        decay: λ.
        betas: β₁, β₂.
        eps: ε.

    Attributes:
        mean: (P,) m.
        square: (P,) v.
        count: (1,) t, float32 as the kernel wants it: exact up to 16 million steps.

    Reference: Loshchilov & Hutter, Decoupled weight decay regularization, 2019.
    """

    def __init__(
        self,
        weights: Float[Tensor, " P"],
        split: int,
        *,
        decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
    ):
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)
        self.count = torch.zeros(1, device=weights.device)
        self.betas, self.eps = betas, eps
        self._sizes = [split, len(weights) - split]
        w, m, v = (x.split(self._sizes) for x in (weights, self.mean, self.square))
        self._parts = [(w[0], m[0], v[0], decay), (w[1], m[1], v[1], 0.0)]
        self._step = self.count.view(())  # the same number, in the shape the kernel wants
        self._kernel = getattr(torch, "_fused_adamw_", None)

    def step(self, gradient: Float[Tensor, " P"], lr: float) -> None:
        """One step along a gradient."""
        self.count += 1
        for (w, m, v, decay), g in zip(self._parts, gradient.split(self._sizes), strict=True):
            if self._kernel is None:
                self._plain(w, m, v, g, lr, decay)
                continue
            state: Any = ([w], [g], [m], [v], [], [self._step])
            rates = {"lr": lr, "beta1": self.betas[0], "beta2": self.betas[1], "weight_decay": decay, "eps": self.eps}
            self._kernel(*state, **rates, amsgrad=False, maximize=False)

    def _plain(self, w: Tensor, m: Tensor, v: Tensor, g: Tensor, lr: float, decay: float) -> None:
        (a, b), t = self.betas, float(self.count)
        m.lerp_(g, 1 - a)
        v.mul_(b).addcmul_(g, g, value=1 - b)
        scale = v.div(1 - b**t).sqrt_().add_(self.eps)
        w.mul_(1 - lr * decay).addcdiv_(m, scale, value=-lr / (1 - a**t))
