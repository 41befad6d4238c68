"""What an encoder believes of a latent variable: an open set; ``normal.py`` holds ``NormalPosterior``."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from mapsto import kinds
from mapsto.functional.divergence import dims_normal
from mapsto.likelihoods import Likelihood, refuse, wide

__all__ = ["Belief", "NormalBelief", "Posterior", "held"]


MOST = 10.0


def held(raw: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Log σ = 10 tanh(raw / 10): about raw, but never beyond e^±10, whatever θ is."""
    return MOST * torch.tanh(raw / MOST)


class Belief(ABC):
    """q(z | x) of the rows of a batch; of (..., B, Z) where there are more axes.

    Attributes:
        mean: (B, Z) E[z].
        sigma: (B, Z) the standard deviation of each z_j by itself.
    """

    mean: Float[Tensor, "B Z"]
    sigma: Float[Tensor, "B Z"]

    @abstractmethod
    def draw(self, noise: Float[Tensor, "S B Z"]) -> tuple[Float[Tensor, "S B Z"], Float[Tensor, "S B"]]:
        """Z and log q(z | x): draws of q if the noise is of N(0, I), with a gradient to θ."""

    def place(self, noise: Float[Tensor, "S B Z"]) -> Float[Tensor, "S B Z"]:
        """The z of :meth:`draw` alone."""
        return self.draw(noise)[0]

    @abstractmethod
    def log_prob(self, z: Float[Tensor, "S B Z"]) -> Float[Tensor, "S B"]:
        """Log q(z | x) in nats."""

    @abstractmethod
    def kl(self) -> Float[Tensor, "B Z"] | None:
        """Terms, none negative, that add up to KL(q ‖ N(0, I)); None where there is no closed form."""


@dataclass(frozen=True)
class NormalBelief(Belief):
    """q(z | x) = N(μ, diag σ²).

    Attributes:
        mean: (B, Z) μ.
        log_sigma: (B, Z) log σ.
    """

    mean: Float[Tensor, "B Z"]
    log_sigma: Float[Tensor, "B Z"]

    @cached_property
    def sigma(self) -> Float[Tensor, "B Z"]:  # type: ignore[override]
        """σ."""
        return self.log_sigma.exp()

    def draw(self, noise: Float[Tensor, "S B Z"]) -> tuple[Float[Tensor, "S B Z"], Float[Tensor, "S B"]]:
        """Z = μ + σ ε, log q = −½ Σ (ε² + 2 log σ + log 2π)."""
        constant = self.log_sigma.sum(-1) + 0.5 * math.log(2 * math.pi) * noise.shape[-1]
        return self.place(noise), -0.5 * noise.square().sum(-1) - constant

    def place(self, noise: Float[Tensor, "S B Z"]) -> Float[Tensor, "S B Z"]:
        """Z = μ + σ ε."""
        return self.mean + self.sigma * noise

    def log_prob(self, z: Float[Tensor, "S B Z"]) -> Float[Tensor, "S B"]:
        """Log N(z; μ, diag σ²)."""
        return self.draw((z - self.mean) / self.sigma)[1]

    def kl(self) -> Float[Tensor, "B Z"]:
        """½ (μ_j² + σ_j² − log σ_j² − 1)."""
        return dims_normal(self.mean, self.sigma, self.log_sigma)


class Posterior(Likelihood):
    """The contract of every kind: θ, which a linear layer gives, ↦ a belief about z; it is a likelihood of z, too.

    Attributes:
        latent: Z.
        width: how many numbers θ has.
    """

    latent: int
    support = constraints.real

    @abstractmethod
    def forward(self, theta: Float[Tensor, "... width"]) -> Belief:
        """The belief; at θ = 0 it is N(0, I), or close to it."""

    def log_prob(self, theta: Float[Tensor, "... width"], x: Float[Tensor, "... Z"]) -> Float[Tensor, "..."]:
        """Log q(z | θ)."""
        return self(wide(theta)).log_prob(x)  # type: ignore[no-any-return]

    def mean(self, theta: Float[Tensor, "... width"]) -> Float[Tensor, "... Z"]:
        """E[z]."""
        return self(wide(theta)).mean  # type: ignore[no-any-return]

    def sigma(self, theta: Float[Tensor, "... width"]) -> Float[Tensor, "... Z"]:
        """The standard deviation of each number."""
        return self(wide(theta)).sigma  # type: ignore[no-any-return]

    def sample(self, theta: Float[Tensor, "... width"], stream: torch.Generator) -> Float[Tensor, "... Z"]:
        """One draw at each place."""
        theta = wide(theta)
        noise = torch.randn(*theta.shape[:-1], self.latent, generator=stream, dtype=theta.dtype, device=theta.device)
        return self(theta).draw(noise)[0]  # type: ignore[no-any-return]

    def check(self, values: Tensor) -> None:
        """Finite numbers only."""
        refuse(values, ~torch.isfinite(values), "a latent vector needs finite numbers")


__getattr__ = kinds.lazy("posteriors")
