"""D counts, each with a spread that its mean settles."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from mapsto.likelihoods import Likelihood, refuse_uncounted, rising, wide

__all__ = ["PoissonLikelihood"]


class PoissonLikelihood(Likelihood):
    """log p(x | r) = Σ_d x_d log r_d − r_d − log x_d!, with the rate r = ``scale`` · g(θ), g(u) = e^u below 0, 1 + u above.

    Args:
        dims: D.
        scale: what a rate is about; the mean count of the data is a good one.

    Example:
        >>> PoissonLikelihood(1, scale=2.0).log_prob(torch.zeros(1), torch.tensor([0.0]))
        tensor(-2.)
    """

    support = constraints.nonnegative_integer

    def __init__(self, dims: int = 1, *, scale: float = 1.0):
        super().__init__()
        self.width = dims
        self.scale = scale

    def log_prob(self, theta: Float[Tensor, "... D"], x: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
        """Summed over the D counts."""
        g, log_g = rising(wide(theta))
        x = x.to(g.dtype)
        rate, log_rate = self.scale * g, log_g + g.new_tensor(self.scale).log()
        return (x * log_rate - rate - torch.lgamma(x + 1)).sum(-1)

    def mean(self, theta: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """The rate."""
        return self.scale * rising(wide(theta))[0]

    def sample(self, theta: Float[Tensor, "... D"], stream: torch.Generator) -> Float[Tensor, "... D"]:
        """Counts, as floating-point numbers."""
        return torch.poisson(self.mean(theta), generator=stream)

    def check(self, values: Tensor) -> None:
        """Whole numbers from 0 on."""
        refuse_uncounted(values, "a Poisson likelihood needs counts: 0, 1, 2 and so on")

    def distribution(self, theta: Float[Tensor, "... D"]) -> torch.distributions.Independent:
        """``torch.distributions.Poisson``, independent over D."""
        return torch.distributions.Independent(torch.distributions.Poisson(self.mean(theta)), 1)
