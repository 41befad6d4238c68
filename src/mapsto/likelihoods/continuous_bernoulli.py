"""D numbers between 0 and 1, such as grey values."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from mapsto.likelihoods import Likelihood, refuse, wide

__all__ = ["ContinuousBernoulliLikelihood"]

SMALL = 0.1


class ContinuousBernoulliLikelihood(Likelihood):
    """log p(x | η) = Σ_d η_d x_d − log((e^η_d − 1) / η_d), x in [0, 1]: θ is η, the log-odds of λ.

    The Bernoulli formula λ^x (1 − λ)^(1 − x) alone is no density on [0, 1]: it does not integrate to one, and what it leaves
    out depends on λ.

    Example:
        >>> p = ContinuousBernoulliLikelihood(1)
        >>> round(p.log_prob(torch.tensor([0.3]).logit(), torch.tensor([0.4])).item(), 6)
        0.054994

    Reference: Loaiza-Ganem and Cunningham, The continuous Bernoulli: fixing a pervasive error in variational autoencoders,
    2019.
    """

    support = constraints.unit_interval

    def __init__(self, dims: int = 1):
        super().__init__()
        self.width = dims

    def log_prob(self, theta: Float[Tensor, "... D"], x: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
        """Summed over the D numbers: η (x − ½) − log(sinh(η/2) / (η/2))."""
        eta = wide(theta)
        return (eta * (x - 0.5) - _log_sinhc(0.5 * eta)).sum(-1)

    def mean(self, theta: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """E[x] = ½ + ½ (coth(η/2) − 2/η)."""
        return 0.5 + 0.5 * _langevin(0.5 * wide(theta))

    def sample(self, theta: Float[Tensor, "... D"], stream: torch.Generator) -> Float[Tensor, "... D"]:
        """The inverse of the distribution function at u: log(1 + u (e^η − 1)) / η."""
        eta = wide(theta)
        u = torch.rand(eta.shape, generator=stream, dtype=eta.dtype, device=eta.device)
        # For η < 0 the mirror image: 1 − x has −η.
        size = eta.abs()
        safe = size.clamp(min=1e-6)
        # log(1 + u (e^η − 1)) = η + log(u + (1 − u) e^−η)
        x = 1 + torch.log(u + (1 - u) * torch.exp(-safe)) / safe
        return torch.where(eta < 0, 1 - x, x).clamp(0, 1)

    def check(self, values: Tensor) -> None:
        """Numbers from 0 to 1."""
        refuse(values, ~((values >= 0) & (values <= 1)), "a continuous Bernoulli likelihood needs numbers from 0 to 1")

    def distribution(self, theta: Float[Tensor, "... D"]) -> torch.distributions.Independent:
        """``torch.distributions.ContinuousBernoulli``, independent over D."""
        return torch.distributions.Independent(torch.distributions.ContinuousBernoulli(logits=theta), 1)


def _log_sinhc(y: Tensor) -> Tensor:
    """log(sinh(y) / y), even in y; by its series near 0, where both are alike."""
    near = y.abs() < SMALL
    s = torch.where(near, y, 0).square()
    series = s * (1 / 6 - s * (1 / 180 - s * (1 / 2835 - s / 37800)))
    far = torch.where(near, 1.0, y.abs())
    return torch.where(near, series, far + torch.log1p(-torch.exp(-2 * far)) - torch.log(2 * far))


def _langevin(y: Tensor) -> Tensor:
    """coth(y) − 1/y, the slope of log(sinh(y) / y)."""
    near = y.abs() < SMALL
    s = torch.where(near, y, 0)
    series = s * (1 / 3 - s * s * (1 / 45 - s * s * (2 / 945 - s * s / 4725)))
    far = torch.where(near, 1.0, y)
    return torch.where(near, series, 1 / torch.tanh(far) - 1 / far)
