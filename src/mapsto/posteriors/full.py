"""Normal, with dimensions that may go together."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from mapsto.functional.divergence import dims_cholesky
from mapsto.posteriors import Belief, Posterior, held

__all__ = ["FullBelief", "FullPosterior"]


@dataclass(frozen=True)
class FullBelief(Belief):
    """q(z | x) = N(μ, LLᵀ).

    Attributes:
        mean: (B, Z) μ.
        factor: (B, Z, Z) L, lower triangular with a positive diagonal.
    """

    mean: Float[Tensor, "B Z"]
    factor: Float[Tensor, "B Z Z"]

    @property
    def sigma(self) -> Float[Tensor, "B Z"]:  # type: ignore[override]
        """The roots of the diagonal of LLᵀ."""
        return self.factor.square().sum(-1).sqrt()

    def draw(self, noise: Float[Tensor, "S B Z"]) -> tuple[Float[Tensor, "S B Z"], Float[Tensor, "S B"]]:
        """Z = μ + L ε, log q = −½ |ε|² − Σ log L_jj − Z/2 log 2π."""
        constant = (
            torch.diagonal(self.factor, dim1=-2, dim2=-1).log().sum(-1) + 0.5 * math.log(2 * math.pi) * noise.shape[-1]
        )
        z = self.mean + torch.einsum("...ij,...j->...i", self.factor, noise)
        return z, -0.5 * noise.square().sum(-1) - constant

    def log_prob(self, z: Float[Tensor, "S B Z"]) -> Float[Tensor, "S B"]:
        """Log N(z; μ, LLᵀ)."""
        factor = self.factor.expand(*z.shape, z.shape[-1])
        noise = torch.linalg.solve_triangular(factor, (z - self.mean)[..., None], upper=False)[..., 0]
        return self.draw(noise)[1]

    def kl(self) -> Float[Tensor, "B Z"]:
        """½ (μ_j² + Σ_k L_jk² − 1) − log L_jj: KL(q(z_j | z_<j) ‖ N(0, 1)) on average over q, by the chain rule."""
        return dims_cholesky(self.mean, self.factor)


class FullPosterior(Posterior):
    """q(z | x) = N(μ, LLᵀ): θ is μ, log L_jj (held within ±10) and the numbers below the diagonal, in units of L_jj.

    Args:
        latent: Z; θ has Z (Z + 3) / 2 numbers.
    """

    def __init__(self, latent: int):
        super().__init__()
        self.latent, self.width = latent, latent * (latent + 3) // 2
        self.row, self.column = (x.tolist() for x in np.tril_indices(latent, -1))

    def forward(self, theta: Float[Tensor, "... width"]) -> FullBelief:
        """μ and L."""
        z = self.latent
        diagonal = held(theta[..., z : 2 * z]).exp()
        factor = torch.diag_embed(diagonal)
        factor[..., self.row, self.column] = theta[..., 2 * z :] * diagonal[..., self.row]
        return FullBelief(theta[..., :z], factor)

    def distribution(self, theta: Float[Tensor, "... width"]) -> Distribution:
        """``torch.distributions.MultivariateNormal``."""
        belief = self(theta)
        return MultivariateNormal(belief.mean, scale_tril=belief.factor)
