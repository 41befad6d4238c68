"""What noise the data has: an open set. A kind is one file here; ``gaussian.py`` holds ``GaussianLikelihood``."""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import constraints

from mapsto import kinds
from mapsto.errors import DataError

__all__ = ["Likelihood", "floored", "refuse", "refuse_uncounted", "rising", "wide"]

FLOOR = math.log(1e-4)


def wide(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The same numbers in float32, or in float64 if they are that already: what densities are computed in."""
    return x if x.dtype == torch.float64 else x.float()


def floored(raw: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Log σ = f + ½ (u + √(u² + ¼)) with f = log 1e-4 and u = raw − f: about raw, but σ never falls below 1e-4.

    Its gradient never is zero, so that a σ that fell too far can rise again.
    """
    above = raw - FLOOR
    return FLOOR + 0.5 * (above + torch.sqrt(above * above + 0.25))


def rising(raw: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    """G and log g of a rate: g(u) = e^u below 0 and 1 + u above it, whose slope is continuous, so that no θ overflows."""
    above, below = raw.clamp(min=0), raw.clamp(max=0)
    return below.exp() + above, below + torch.log1p(above)


def refuse(values: Tensor, bad: Tensor, needs: str) -> None:
    """Refuse data, naming the first row (first axis) that has a bad number.

    Args:
        values: the data.
        bad: of the same shape, which of them are no data.
        needs: who needs what, such as "a Poisson likelihood needs counts".

    Raises:
        DataError: with the row and its first bad number.
    """
    if bad.any():
        row = int(bad.reshape(len(values), -1).any(1).nonzero()[0])
        found = values[row][bad[row]].reshape(-1)[0].item()
        raise DataError(f"row {row + 1}: {needs}, found {found:g}")


def refuse_uncounted(values: Tensor, needs: str) -> None:
    """Refuse what is no count: 0, 1, 2 and so on; as :func:`refuse`."""
    refuse(values, ~(torch.isfinite(values) & (values >= 0) & (values == values.round())), needs)


class Likelihood(nn.Module, ABC):
    """The contract of every likelihood p(x | θ).

    θ is what a linear layer gives, (..., width), any real numbers; x is one event at each place.

    Attributes:
        width: how many numbers θ has for one event.
        support: which numbers an event may hold.
    """

    width: int
    support: constraints.Constraint

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
        """The same as a torch distribution: for users, and the oracle of the tests.

        Raises:
            NotImplementedError: torch has none.
        """


__getattr__ = kinds.lazy("likelihoods")
