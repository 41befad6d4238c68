"""D real numbers with normal noise."""

import math
from statistics import NormalDist

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import constraints

from mapsto.errors import ConfigError
from mapsto.likelihoods import Likelihood, floored, refuse, wide

__all__ = ["GaussianLikelihood", "learned", "normal"]

FASTER = 10.0
SIGMAS = ("shared", "dims", "datum")


def normal(
    mu: Float[Tensor, "... D"], log_sigma: Float[Tensor, "... D"], x: Float[Tensor, "... D"]
) -> Float[Tensor, "... D"]:
    """Log N(x; μ, σ²), each number by itself."""
    scaled = (x - mu) * torch.exp(-log_sigma)
    return -0.5 * (scaled * scaled + 2 * log_sigma + math.log(2 * math.pi))


def learned(raw: Float[Tensor, " D"]) -> Float[Tensor, " D"]:
    """Log σ of what all data share, from its parameter."""
    return floored(FASTER * raw)


class GaussianLikelihood(Likelihood):
    """log p(x | μ, σ) = −½ Σ_d [((x_d − μ_d)/σ_d)² + 2 log σ_d + log 2π].

    Args:
        dims: D.
        sigma: ``shared``: one learned σ for all dimensions and all data; ``dims``: a σ_d of each dimension for all data;
            ``datum``: a σ_d of its own for every event (θ is μ and the raw log σ); a positive number: fixed. What all data
            share starts at 1, and its logarithm is ten times a parameter, so that an optimiser with steps of one size for
            all moves it in time.

    A σ that is learned never falls below 1e-4 (:func:`~mapsto.likelihoods.floored`). Fixed at 1 it says that differences far
    below 1 are noise: a VAE of numbers in [0, 1] then ignores its latent variable.

    Example:
        >>> p = GaussianLikelihood(1)
        >>> round(p.log_prob(torch.zeros(1), torch.zeros(1)).item(), 3)
        -0.926
    """

    support = constraints.real

    def __init__(self, dims: int = 1, *, sigma: str | float = "shared"):
        super().__init__()
        fixed = None if isinstance(sigma, str) else float(sigma)
        if sigma not in SIGMAS if fixed is None else not 0 < fixed < math.inf:
            raise ConfigError(f"likelihood.sigma: {sigma} is not one of {', '.join(SIGMAS)}, and no positive number")
        self.dims, self.fixed = dims, fixed
        self.width = 2 * dims if sigma == "datum" else dims
        shared = {"shared": 1, "dims": dims}.get(str(sigma), 0)
        self.log_sigma = nn.Parameter(torch.zeros(shared)) if shared else None

    def split(self, theta: Float[Tensor, "... width"]) -> tuple[Float[Tensor, "... D"], Float[Tensor, "... D"]]:
        """μ and log σ."""
        theta = wide(theta)
        mu = theta[..., : self.dims]
        if self.fixed is not None:
            return mu, torch.full_like(mu, math.log(self.fixed))
        if self.log_sigma is None:
            return mu, floored(theta[..., self.dims :])
        return mu, learned(self.log_sigma).to(mu.dtype).expand_as(mu)

    def log_prob(self, theta: Float[Tensor, "... width"], x: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
        """Summed over the D numbers."""
        return normal(*self.split(theta), x).sum(-1)

    def mean(self, theta: Float[Tensor, "... width"]) -> Float[Tensor, "... D"]:
        """μ."""
        return self.split(theta)[0]

    def sigma(self, theta: Float[Tensor, "... width"]) -> Float[Tensor, "... D"]:
        """The standard deviation."""
        return self.split(theta)[1].exp()

    def reach(self, level: float) -> float:
        """How many σ to either side of μ hold ``level`` of the probability: 1.96 hold 0.95."""
        return NormalDist().inv_cdf(0.5 + level / 2)

    def sample(self, theta: Float[Tensor, "... width"], stream: torch.Generator) -> Float[Tensor, "... D"]:
        """μ + σ ε."""
        mu, log_sigma = self.split(theta)
        noise = torch.randn(mu.shape, generator=stream, dtype=mu.dtype, device=mu.device)
        return mu + log_sigma.exp() * noise

    def check(self, values: Tensor) -> None:
        """Finite numbers only."""
        refuse(values, ~torch.isfinite(values), "a Gaussian likelihood needs finite numbers")

    def distribution(self, theta: Float[Tensor, "... width"]) -> torch.distributions.Independent:
        """``torch.distributions.Normal``, independent over D."""
        mu, log_sigma = self.split(theta)
        return torch.distributions.Independent(torch.distributions.Normal(mu, log_sigma.exp()), 1)
