"""One of C classes."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import constraints

from mapsto.likelihoods import Likelihood, refuse, wide

__all__ = ["CategoricalLikelihood"]


class CategoricalLikelihood(Likelihood):
    """log p(x = c | θ) = θ_c − log Σ_j exp θ_j.

    Example:
        >>> p = CategoricalLikelihood(2)
        >>> round(p.log_prob(torch.tensor([0.0, 0.0]), torch.tensor(1)).exp().item(), 3)
        0.5
    """

    def __init__(self, classes: int):
        super().__init__()
        self.width = classes
        self.support = constraints.integer_interval(0, classes - 1)

    def log_prob(self, theta: Float[Tensor, "... C"], x: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Log-probability of the class."""
        flat = F.cross_entropy(wide(theta.reshape(-1, self.width)), x.reshape(-1), reduction="none")
        return -flat.reshape(x.shape)

    def mean(self, theta: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
        """Class probabilities."""
        return torch.softmax(wide(theta), -1)

    def sample(self, theta: Float[Tensor, "... C"], stream: torch.Generator) -> Int[Tensor, "..."]:
        """A class, by inverting the cumulated probabilities."""
        p = self.mean(theta).double().cumsum(-1)
        u = torch.rand(p.shape[:-1], generator=stream, dtype=torch.float64, device=p.device)
        return (p < u[..., None] * p[..., -1:]).sum(-1).clamp(max=self.width - 1)

    def check(self, values: Tensor) -> None:
        """Classes are whole numbers from 0 to C - 1."""
        bad = (values < 0) | (values >= self.width) | (values != values.round())
        refuse(values, bad, f"a class is a whole number from 0 to {self.width - 1}")

    def distribution(self, theta: Float[Tensor, "... C"]) -> torch.distributions.Categorical:
        """``torch.distributions.Categorical``."""
        return torch.distributions.Categorical(logits=theta)
