"""D counts that spread wider than Poisson's."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import constraints

from mapsto.likelihoods import Likelihood, refuse_uncounted, rising, wide

__all__ = ["NegativeBinomialLikelihood"]

FASTER = 10.0
LEAST, MOST = math.log(1e-3), math.log(1e6)


class NegativeBinomialLikelihood(Likelihood):
    """Counts of mean m and variance m + m²/r: a Poisson rate that itself varies as a gamma distribution of shape r.

    log p(x | m, r) = Σ_d log Γ(x+r) − log Γ(r) − log x! + r log(r/(r+m)) + x log(m/(r+m)), with m = ``scale`` · g(θ), g(u) =
    e^u below 0 and 1 + u above, and one r_d a dimension for all data, which is learned, starts at 1 and stays between 1e-3
    and 1e6 (where it is Poisson's).

    Args:
        dims: D.
        scale: what a mean is about; the mean count of the data is a good one.

    Example:
        >>> log_p = NegativeBinomialLikelihood(1).log_prob(torch.zeros(1), torch.zeros(1))  # m = r = 1
        >>> round(log_p.exp().item(), 3)
        0.5

    Reference: Lopez et al., Deep generative modeling for single-cell transcriptomics, 2018.
    """

    support = constraints.nonnegative_integer

    def __init__(self, dims: int = 1, *, scale: float = 1.0):
        super().__init__()
        self.width = dims
        self.scale = scale
        self.log_shape = nn.Parameter(torch.zeros(dims))

    def split(self, theta: Float[Tensor, "... D"]) -> tuple[Tensor, Tensor, Tensor]:
        """m, log m and log r."""
        g, log_g = rising(wide(theta))
        raw = (FASTER * self.log_shape).to(g.dtype)
        # A clamp that leaves a slope of a thousandth, so that an r at its end can come back.
        log_r = raw.clamp(LEAST, MOST) + 1e-3 * (raw - raw.clamp(LEAST, MOST)).tanh()
        return self.scale * g, log_g + g.new_tensor(self.scale).log(), log_r.expand_as(g)

    def log_prob(self, theta: Float[Tensor, "... D"], x: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
        """Summed over the D counts."""
        _, log_m, log_r = self.split(theta)
        x = x.to(log_m.dtype)
        r = log_r.exp()
        total = torch.logaddexp(log_r, log_m)
        ways = torch.lgamma(x + r) - torch.lgamma(r) - torch.lgamma(x + 1)
        return (ways + r * (log_r - total) + x * (log_m - total)).sum(-1)

    def mean(self, theta: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """The means m."""
        return self.split(theta)[0]

    def sample(self, theta: Float[Tensor, "... D"], stream: torch.Generator) -> Float[Tensor, "... D"]:
        """A Poisson count of a rate m · γ / r, γ of a gamma distribution of shape r."""
        m, _, log_r = self.split(theta)
        r = log_r.exp()
        gamma = torch._standard_gamma(r.detach().contiguous(), generator=stream)
        return torch.poisson(m * gamma / r, generator=stream)

    def check(self, values: Tensor) -> None:
        """Whole numbers from 0 on."""
        refuse_uncounted(values, "a negative binomial likelihood needs counts: 0, 1, 2 and so on")

    def distribution(self, theta: Float[Tensor, "... D"]) -> torch.distributions.Independent:
        """``torch.distributions.NegativeBinomial``, independent over D."""
        _, log_m, log_r = self.split(theta)
        return torch.distributions.Independent(
            torch.distributions.NegativeBinomial(log_r.exp(), logits=log_m - log_r, validate_args=False), 1
        )
