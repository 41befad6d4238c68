"""N(0, I)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mapsto.posteriors import Belief
from mapsto.priors import Prior

__all__ = ["StandardPrior"]


class StandardPrior(Prior):
    """p(z) = N(0, I).

    Args:
        latent: Z.
    """

    def __init__(self, latent: int):
        super().__init__()
        self.latent = latent

    def log_prob(self, z: Float[Tensor, "... Z"]) -> Float[Tensor, "..."]:
        """−½ (|z|² + Z log 2π)."""
        return -0.5 * (z.square().sum(-1) + self.latent * math.log(2 * math.pi))

    def sample(self, count: int, stream: torch.Generator) -> Float[Tensor, "N Z"]:
        """Normal numbers."""
        return torch.randn(count, self.latent, generator=stream)

    def kl(self, belief: Belief) -> Float[Tensor, "B Z"] | None:
        """As the belief has it."""
        return belief.kl()
