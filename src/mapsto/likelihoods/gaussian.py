"""D real numbers with normal noise."""

import math
from statistics import NormalDist

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mapsto.errors import ConfigError, DataError
from mapsto.likelihoods import Likelihood, floored, wide

__all__ = ["GaussianLikelihood"]

FASTER = 10.0


class GaussianLikelihood(Likelihood):
    """log p(x | μ, σ) = −½ Σ_d [((x_d − μ_d)/σ_d)² + 2 log σ_d + log 2π].

    Args:
        dims: D.
        sigma: ``shared``: one learned σ_d for all data, starting at 1 (θ is μ; log σ_d is ten times a parameter, so that
            an optimiser with steps of one size for all moves it in time); ``datum``: a σ_d of its own for every event
            (θ is μ and the raw log σ).

    σ never falls below 1e-4 (:func:`~mapsto.likelihoods.floored`).

    Example:
        >>> p = GaussianLikelihood(1)
        >>> round(p.log_prob(torch.zeros(1), torch.zeros(1)).item(), 3)
        -0.926
    """

    def __init__(self, dims: int = 1, *, sigma: str = "shared"):
        super().__init__()
        if sigma not in ("shared", "datum"):
            raise ConfigError(f'likelihood.sigma: "{sigma}" is not one of shared, datum')
        self.dims = dims
        self.width = dims if sigma == "shared" else 2 * dims
        self.log_sigma = nn.Parameter(torch.zeros(dims)) if sigma == "shared" else None

    def split(self, theta: Float[Tensor, "... width"]) -> tuple[Float[Tensor, "... D"], Float[Tensor, "... D"]]:
        """μ and log σ."""
        theta = wide(theta)
        raw = theta[..., self.dims :] if self.log_sigma is None else (FASTER * self.log_sigma).expand_as(theta)
        return theta[..., : self.dims], floored(raw)

    def log_prob(self, theta: Float[Tensor, "... width"], x: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
        """Summed over the D numbers."""
        mu, log_sigma = self.split(theta)
        scaled = (x - mu) * torch.exp(-log_sigma)
        return -0.5 * (scaled * scaled + 2 * log_sigma + math.log(2 * math.pi)).sum(-1)

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
        bad = ~torch.isfinite(values)
        if bad.any():
            row = int(bad.reshape(len(values), -1).any(1).nonzero()[0])
            raise DataError(f"row {row + 1}: a Gaussian likelihood needs finite numbers, found {values[row].tolist()}")

    def distribution(self, theta: Float[Tensor, "... width"]) -> torch.distributions.Independent:
        """``torch.distributions.Normal``, independent over D."""
        mu, log_sigma = self.split(theta)
        return torch.distributions.Independent(torch.distributions.Normal(mu, log_sigma.exp()), 1)
