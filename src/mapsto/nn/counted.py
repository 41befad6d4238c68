"""Numbers that are counts: a likelihood of theirs, and when it suits a column better than a normal distribution."""

import math

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import constraints

from mapsto.likelihoods import Likelihood
from mapsto.likelihoods.negative_binomial import NegativeBinomialLikelihood

__all__ = ["CountedLikelihood", "counts", "marginal", "suits"]

MOST = 1e6
"""The largest count: as a standardised number in float32, each below it is still told from the next."""


class CountedLikelihood(Likelihood):
    """A negative binomial distribution of one count, told as a standardised number: x = (count − mean) / scale.

    Args:
        mean: of the counts.
        scale: their standard deviation.
    """

    support = constraints.real

    def __init__(self, mean: float, scale: float):
        super().__init__()
        self.centre, self.scale = mean, scale
        self.count = NegativeBinomialLikelihood(1, scale=mean)
        self.width = self.count.width

    def raw(self, x: Float[Tensor, "... 1"]) -> Float[Tensor, "... 1"]:
        """The counts of standardised numbers."""
        return (x * self.scale + self.centre).round().clamp(min=0)

    def log_prob(self, theta: Float[Tensor, "... 1"], x: Float[Tensor, "... 1"]) -> Float[Tensor, "..."]:
        """Log of the probability of the count."""
        return self.count.log_prob(theta, self.raw(x))

    def mean(self, theta: Float[Tensor, "... 1"]) -> Float[Tensor, "... 1"]:
        """The standardised mean."""
        return (self.count.mean(theta) - self.centre) / self.scale

    def sigma(self, theta: Float[Tensor, "... 1"]) -> Float[Tensor, "... 1"]:
        """The standardised standard deviation, √(m + m²/r) of the count."""
        m, _, log_r = self.count.split(theta)
        return (m + m * m * (-log_r).exp()).sqrt() / self.scale

    def shape(self, theta: Float[Tensor, "... 1"]) -> Float[Tensor, "... 1"]:
        """R, below which a mean spreads wider than Poisson's."""
        return self.count.split(theta)[2].exp()

    def sample(self, theta: Float[Tensor, "... 1"], stream: torch.Generator) -> Float[Tensor, "... 1"]:
        """Counts, standardised."""
        return (self.count.sample(theta, stream) - self.centre) / self.scale

    def check(self, values: Tensor) -> None:
        """Standardised counts."""
        self.count.check((values * self.scale + self.centre).mul(1e3).round().div(1e3))

    def distribution(self, theta: Float[Tensor, "... 1"]) -> torch.distributions.Distribution:
        """That of the count itself, not of the standardised number."""
        return self.count.distribution(theta)


def counts(x: NDArray[np.float64]) -> bool:
    """Whether all numbers are counts: 0, 1, 2 and so on, none above a million."""
    return bool(((x >= 0) & (x <= MOST) & (x == np.round(x))).all())


def suits(x: NDArray[np.float64]) -> bool:
    """Whether a column is of counts that a negative binomial distribution fits better than a normal one.

    Both by their moments; the normal density of a whole number stands for the probability of the unit about it. Years and
    sizes in whole centimetres are counts by their looks, but spread far less than counts of their mean do.
    """
    if len(x) < 2 or not counts(x) or not x.var() > 0:
        return False
    known = torch.from_numpy(x)
    return float(marginal(known, known).mean()) > -0.5 * (math.log(2 * math.pi * float(x.var())) + 1)


@torch.no_grad()
def marginal(known: Float[Tensor, " N"], asked: Float[Tensor, " M"]) -> Float[Tensor, " M"]:
    """Log p of counts by the negative binomial distribution that has the mean and variance of the known ones."""
    mean, variance = float(known.mean()), float(known.var(correction=0))
    shape = mean * mean / (variance - mean) if variance > mean else math.inf
    p = NegativeBinomialLikelihood(1, scale=mean).double()
    p.log_shape.fill_(math.log(min(max(shape, 1e-3), 1e6)) / 10)
    return p.log_prob(asked.new_zeros(len(asked), 1), asked[:, None])
