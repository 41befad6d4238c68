"""D real numbers with noise of heavy tails."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import constraints

from mapsto.likelihoods import Likelihood, floored, refuse, wide

__all__ = ["StudentLikelihood"]

LEAST, MOST, START = 2.1, 100.0, 8.0
FASTER = 10.0


class StudentLikelihood(Likelihood):
    """Student's t with a standard deviation σ_d for every event, and ν degrees of freedom for all data, which are learned.

    log p(x | μ, σ, ν) = Σ_d [log Γ((ν+1)/2) − log Γ(ν/2) − ½ log(πν) − log s_d − (ν+1)/2 log(1 + ((x_d − μ_d)/s_d)²/ν)],
    with s_d = σ_d √((ν − 2)/ν), so that σ_d is a standard deviation as a Gaussian's is. θ is μ and the raw log σ.

    ν lies between 2.1 (there is a variance for ν > 2 only) and 100 (which is Gaussian but for the farthest tails), and
    starts at 8: ν = 2.1 + 97.9 · sigmoid(10 · parameter), ten times so that an optimiser with steps of one size for all
    moves it in time. σ never falls below 1e-4 (:func:`~mapsto.likelihoods.floored`).

    Args:
        dims: D.

    Example:
        >>> p = StudentLikelihood(1)
        >>> far = torch.tensor([6.0])
        >>> p.log_prob(torch.zeros(2), far) > -0.5 * 36 - 0.919  # six σ away: likelier than under a Gaussian
        tensor(True)

    Reference: Lange, Little and Taylor, Robust statistical modeling using the t distribution, 1989.
    """

    support = constraints.real

    def __init__(self, dims: int = 1):
        super().__init__()
        self.dims, self.width = dims, 2 * dims
        share = (START - LEAST) / (MOST - LEAST)
        self.freedom = nn.Parameter(torch.tensor(math.log(share / (1 - share)) / FASTER))

    @property
    def nu(self) -> Float[Tensor, ""]:
        """ν."""
        return LEAST + (MOST - LEAST) * torch.sigmoid(FASTER * wide(self.freedom))

    def split(self, theta: Float[Tensor, "... width"]) -> tuple[Float[Tensor, "... D"], Float[Tensor, "... D"]]:
        """μ and log σ."""
        theta = wide(theta)
        return theta[..., : self.dims], floored(theta[..., self.dims :])

    def log_prob(self, theta: Float[Tensor, "... width"], x: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
        """Summed over the D numbers."""
        mu, log_sigma = self.split(theta)
        nu = self.nu.to(mu.dtype)
        log_s = log_sigma + 0.5 * torch.log((nu - 2) / nu)
        z = (x - mu) * torch.exp(-log_s)
        constant = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * torch.log(math.pi * nu)
        return (constant - log_s - (nu + 1) / 2 * torch.log1p(z * z / nu)).sum(-1)

    def mean(self, theta: Float[Tensor, "... width"]) -> Float[Tensor, "... D"]:
        """μ."""
        return self.split(theta)[0]

    def sigma(self, theta: Float[Tensor, "... width"]) -> Float[Tensor, "... D"]:
        """The standard deviation."""
        return self.split(theta)[1].exp()

    def reach(self, level: float) -> float:
        """How many σ to either side of μ hold ``level`` of the probability."""
        from scipy.special import stdtrit

        nu = float(self.nu.detach())
        return float(stdtrit(nu, 0.5 + level / 2)) * math.sqrt((nu - 2) / nu)

    def sample(self, theta: Float[Tensor, "... width"], stream: torch.Generator) -> Float[Tensor, "... D"]:
        """μ + s ε / √(g/ν), with ε normal and g of a χ² distribution with ν degrees of freedom."""
        mu, log_sigma = self.split(theta)
        nu = self.nu.detach().to(mu.dtype)
        noise = torch.randn(mu.shape, generator=stream, dtype=mu.dtype, device=mu.device)
        g = 2 * torch._standard_gamma((nu / 2).expand(mu.shape).contiguous(), generator=stream)
        return mu + log_sigma.exp() * torch.sqrt((nu - 2) / g) * noise

    def check(self, values: Tensor) -> None:
        """Finite numbers only."""
        refuse(values, ~torch.isfinite(values), "a Student likelihood needs finite numbers")

    def distribution(self, theta: Float[Tensor, "... width"]) -> torch.distributions.Independent:
        """``torch.distributions.StudentT``, independent over D."""
        mu, log_sigma = self.split(theta)
        nu = self.nu.to(mu.dtype)
        scale = log_sigma.exp() * torch.sqrt((nu - 2) / nu)
        return torch.distributions.Independent(torch.distributions.StudentT(nu, mu, scale), 1)
