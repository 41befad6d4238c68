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
from mapsto.ragged import evenly

__all__ = ["CountedLikelihood", "counts", "marginal", "suits"]

ROWS, LEAST = 4000, 30
"""Rows that a column is judged by; the least of them for each number beside it."""
SURE = 3.0
"""Deviations below Poisson's variance at which a column spreads too little."""
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


def suits(x: NDArray[np.float64], beside: NDArray[np.float64]) -> bool:
    """Whether a column is of counts that a negative binomial distribution fits better than a normal one.

    Both by their moments; the normal density of a whole number stands for the probability of the unit about it. Years and
    sizes in whole centimetres are counts by their looks, but spread far less than counts of their mean do; and so does a
    speed in whole knots about what the speed an hour ago lets one expect: what is left of a column, when a linear map of
    the others is taken off it, must still spread as widely as Poisson's distribution does. What comes in steps of five was
    measured, not counted.

    Args:
        x: (N,) the column.
        beside: (N, C) other numbers of the same rows, NaN where one is not known; if there are enough rows that know all,
            those are looked at.
    """
    if len(x) < 2 or not counts(x) or not x.var() > 0 or np.gcd.reduce(x.astype(np.int64)) > 1:
        return False
    known = ~np.isnan(beside)
    whole = np.flatnonzero(known.all(1))
    if len(whole) < LEAST * (1 + beside.shape[1]):
        whole = np.arange(len(x))
    shown = whole[evenly(len(whole), ROWS)]
    some = np.where(known[shown], beside[shown], 0.0)
    centred = np.where(known[shown], some - some.sum(0) / np.maximum(1, known[shown].sum(0)), 0.0)
    others = np.concatenate([np.ones((len(shown), 1)), centred / np.maximum(centred.std(0), 1e-300)], 1)
    left = x[shown] - others @ np.linalg.lstsq(others, x[shown], rcond=None)[0]
    mean = float(x[shown].mean())
    known_to = math.sqrt((2 * mean * mean + mean) / len(left))  # a deviation of the variance of so many Poisson counts
    if left.var() < mean - SURE * known_to:
        return False
    own = torch.from_numpy(x)
    return float(marginal(own, own).mean()) > -0.5 * (math.log(2 * math.pi * float(x.var())) + 1)


@torch.no_grad()
def marginal(known: Float[Tensor, " N"], asked: Float[Tensor, " M"]) -> Float[Tensor, " M"]:
    """Log p of counts by the negative binomial distribution that has the mean and variance of the known ones."""
    mean, variance = float(known.mean()), float(known.var(correction=0))
    shape = mean * mean / (variance - mean) if variance > mean else math.inf
    p = NegativeBinomialLikelihood(1, scale=mean).double()
    p.log_shape.fill_(math.log(min(max(shape, 1e-3), 1e6)) / 10)
    return p.log_prob(asked.new_zeros(len(asked), 1), asked[:, None])
