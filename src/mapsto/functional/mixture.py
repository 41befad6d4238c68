"""Mixtures: of normal distributions, fitted by expectation-maximisation; and quantiles of any."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import betainc
from torch import Tensor

__all__ = ["Mixture", "count_quantile", "normal_quantile"]

LOG_TAU = math.log(2 * math.pi)


@dataclass(frozen=True)
class Mixture:
    """p(x) = Σ_k π_k N(x; μ_k, Σ_k).

    Attributes:
        log_share: (K,) log π_k.
        means: (K, D) μ_k.
        covariances: (K, D, D) Σ_k.
    """

    log_share: Float[Tensor, " K"]
    means: Float[Tensor, "K D"]
    covariances: Float[Tensor, "K D D"]

    @classmethod
    def start(cls, x: Float[Tensor, "N D"], components: int, stream: torch.Generator) -> "Mixture":
        """Equal shares about K rows far from each other, each with the covariance of all data.

        The first row is drawn, each further one with a probability proportional to its squared distance from the nearest
        before it (k-means++: Arthur and Vassilvitskii, 2007).
        """
        chosen = [int(torch.randint(len(x), (), generator=stream))]
        for _ in range(components - 1):
            far = torch.cdist(x, x[chosen]).amin(1).square()
            chosen.append(int(torch.multinomial(far + far.mean() * 1e-12 + 1e-300, 1, generator=stream)))
        y = x - x.mean(0)
        covariance = y.T @ y / len(x)
        return cls(x.new_full((components,), -math.log(components)), x[chosen], covariance.expand(components, -1, -1))

    def em(self, x: Float[Tensor, "N D"], *, floor: float = 1e-6) -> Iterator[tuple["Mixture", float]]:
        """Expectation-maximisation, for ever: the mixture and its mean log-likelihood after each step.

        It never falls, but where a component shrinks onto fewer rows than it has directions: ``floor``, a share of the
        variance of all data, is the least variance of a component in any direction, and holds it there.
        """
        least = floor * float((x - x.mean(0)).square().mean())
        model = self
        yield model, float(model.log_likelihood(x).mean())
        while True:
            weight = model.responsibility(x)
            mass = weight.sum(0).clamp(min=torch.finfo(x.dtype).tiny)
            means = weight.T @ x / mass[:, None]
            y = x - means[:, None]
            covariances = torch.einsum("nk,knd,kne->kde", weight, y, y) / mass[:, None, None]
            values, vectors = torch.linalg.eigh(covariances)
            covariances = (vectors * values.clamp(min=least)[:, None]) @ vectors.mT
            model = Mixture(torch.log(mass / len(x)), means, covariances)
            yield model, float(model.log_likelihood(x).mean())

    def parts(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Log π_k + log N(x; μ_k, Σ_k)."""
        factor = torch.linalg.cholesky(self.covariances)
        y = torch.linalg.solve_triangular(factor, (x - self.means[:, None]).mT, upper=False)
        log_det = 2 * torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
        dims = self.means.shape[1]
        return (self.log_share - 0.5 * (dims * LOG_TAU + log_det))[None] - 0.5 * y.square().sum(1).T

    def log_likelihood(self, x: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Log p(x)."""
        return self.parts(x).logsumexp(1)

    def responsibility(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """p(k | x)."""
        return torch.softmax(self.parts(x), 1)


def normal_quantile(
    p: float, weight: Float[Tensor, "S ..."], mean: Float[Tensor, "S ..."], sigma: Float[Tensor, "S ..."]
) -> Float[Tensor, "..."]:
    """Where Σ_s w_s Φ((x − μ_s) / σ_s) = p, by bisection between the quantiles of the single ones: 52 halvings.

    Args:
        p: above 0 and below 1.
        weight: w ≥ 0, which sum to 1 over S.
        mean: μ.
        sigma: σ > 0.
    """
    each = mean + sigma * torch.special.ndtri(torch.as_tensor(p, dtype=mean.dtype, device=mean.device))
    low, high = each.amin(0), each.amax(0)
    for _ in range(52):
        middle = 0.5 * (low + high)
        below = (weight * torch.special.ndtr((middle - mean) / sigma)).sum(0) < p
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


def count_quantile(
    p: float, weight: Float[Tensor, "S ..."], mean: Float[Tensor, "S ..."], shape: Float[Tensor, "S ..."]
) -> Float[Tensor, "..."]:
    """The least count x of which Σ_s w_s P(X_s ≤ x) ≥ p, X_s negative binomial of mean m_s and variance m_s + m_s²/r_s.

    P(X ≤ x) = I_{r/(r+m)}(r, x + 1), the regularised incomplete beta function; by bisection among whole numbers.

    Args:
        p: above 0 and below 1.
        weight: w ≥ 0, which sum to 1 over S.
        mean: m > 0.
        shape: r > 0.
    """
    w, m, r = (t.double().cpu().numpy() for t in (weight, mean, shape))
    share = r / (r + m)

    def reached(x: np.ndarray) -> np.ndarray:
        return np.asarray((w * betainc(r, x + 1, share)).sum(0) >= p)

    low, high = np.full(m.shape[1:], -1.0), np.full(m.shape[1:], 1.0)
    while not (done := reached(high)).all():
        low, high = np.where(done, low, high), np.where(done, high, 2 * high)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        there = reached(middle)
        low, high = np.where(there, low, middle), np.where(there, middle, high)
    return torch.from_numpy(high).to(mean)
