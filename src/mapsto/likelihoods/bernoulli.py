"""D yes-or-no values."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from mapsto.likelihoods import Likelihood, refuse, wide

__all__ = ["BernoulliLikelihood"]


class BernoulliLikelihood(Likelihood):
    """log p(x | θ) = Σ_d x_d θ_d − log(1 + exp θ_d), with θ the log-odds and x in {0, 1}.

    Example:
        >>> BernoulliLikelihood(1).log_prob(torch.tensor([-1000.0]), torch.tensor([1.0])).item()
        -1000.0
    """

    support = constraints.boolean

    def __init__(self, dims: int = 1):
        super().__init__()
        self.width = dims

    def log_prob(self, theta: Float[Tensor, "... D"], x: Float[Tensor, "... D"]) -> Float[Tensor, "..."]:
        """Summed over the D values."""
        return -F.binary_cross_entropy_with_logits(wide(theta), x.to(wide(theta).dtype), reduction="none").sum(-1)

    def mean(self, theta: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """The probability of a yes."""
        return torch.sigmoid(wide(theta))

    def sample(self, theta: Float[Tensor, "... D"], stream: torch.Generator) -> Float[Tensor, "... D"]:
        """Zeros and ones."""
        u = torch.rand(theta.shape, generator=stream, device=theta.device)
        return (u < self.mean(theta)).float()

    def check(self, values: Tensor) -> None:
        """Zeros and ones only: grey values need another likelihood."""
        refuse(values, (values != 0) & (values != 1), "a Bernoulli likelihood needs 0 or 1")

    def distribution(self, theta: Float[Tensor, "... D"]) -> torch.distributions.Independent:
        """``torch.distributions.Bernoulli``, independent over D."""
        return torch.distributions.Independent(torch.distributions.Bernoulli(logits=theta), 1)
