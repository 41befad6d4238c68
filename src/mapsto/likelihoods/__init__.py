"""What noise the data has: an open set. A kind is one file here; ``gaussian.py`` holds ``GaussianLikelihood``."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mapsto import kinds

__all__ = ["Likelihood", "wide"]


def wide(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The same numbers in float32, or in float64 if they are that already: what densities are computed in."""
    return x if x.dtype == torch.float64 else x.float()


class Likelihood(nn.Module, ABC):
    """The contract of every likelihood p(x | θ).

    θ is what a linear layer gives, (..., width), any real numbers; x is one event at each place.

    Attributes:
        width: how many numbers θ has for one event.
    """

    width: int

    @abstractmethod
    def log_prob(self, theta: Float[Tensor, "... width"], x: Tensor) -> Float[Tensor, "..."]:
        """Log p(x | θ) in nats, summed over the dimensions of the event."""

    @abstractmethod
    def mean(self, theta: Float[Tensor, "... width"]) -> Tensor:
        """E[x | θ]; class probabilities where x is a class."""

    @abstractmethod
    def sample(self, theta: Float[Tensor, "... width"], stream: torch.Generator) -> Tensor:
        """One draw at each place."""

    @abstractmethod
    def check(self, values: Tensor) -> None:
        """Refuse data outside the support, naming the first such row (first axis).

        Raises:
            DataError: with the row, the value and what to do.
        """

    @abstractmethod
    def distribution(self, theta: Float[Tensor, "... width"]) -> Any:
        """The same as a torch distribution: for users, and the oracle of the tests."""


__getattr__ = kinds.lazy("likelihoods")
