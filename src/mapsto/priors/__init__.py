"""What is believed of a latent variable before anything is seen: an open set. ``standard.py`` holds ``StandardPrior``."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mapsto import kinds
from mapsto.posteriors import Belief

__all__ = ["Prior"]


class Prior(nn.Module, ABC):
    """The contract of every prior p(z).

    Attributes:
        latent: Z.
    """

    latent: int

    @abstractmethod
    def log_prob(self, z: Float[Tensor, "... Z"]) -> Float[Tensor, "..."]:
        """Log p(z) in nats."""

    @abstractmethod
    def sample(self, count: int, stream: torch.Generator) -> Float[Tensor, "N Z"]:
        """Draws."""

    @abstractmethod
    def kl(self, belief: Belief) -> Float[Tensor, "B Z"] | None:
        """Terms that add up to KL(q ‖ p); None where there is no closed form, and log q(z) − log p(z) is averaged."""


__getattr__ = kinds.lazy("priors")
