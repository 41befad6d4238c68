"""Normal, each dimension by itself."""

from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from mapsto.posteriors import NormalBelief, Posterior, held

__all__ = ["NormalPosterior"]


class NormalPosterior(Posterior):
    """q(z | x) = N(μ, diag σ²): θ is μ and log σ, held within ±10.

    Args:
        latent: Z.

    Example:
        >>> import torch
        >>> belief = NormalPosterior(2)(torch.zeros(1, 4))
        >>> belief.kl().tolist()
        [[0.0, 0.0]]

    Reference: Kingma and Welling, Auto-encoding variational Bayes, 2014.
    """

    def __init__(self, latent: int):
        super().__init__()
        self.latent, self.width = latent, 2 * latent

    def forward(self, theta: Float[Tensor, "... width"]) -> NormalBelief:
        """μ and log σ."""
        return NormalBelief(theta[..., : self.latent], held(theta[..., self.latent :]))

    def distribution(self, theta: Float[Tensor, "... width"]) -> Distribution:
        """``torch.distributions.Normal``, independent over Z."""
        belief = self(theta)
        return Independent(Normal(belief.mean, belief.sigma), 1)
