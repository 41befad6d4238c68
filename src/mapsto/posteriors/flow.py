"""What a normal distribution becomes when it is bent: any shape, with a density that is known."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from mapsto.errors import ConfigError
from mapsto.posteriors import Belief, NormalBelief, Posterior, held

__all__ = ["FlowBelief", "FlowPosterior"]

MOST = 3.0
PROBES = 256


class Still(nn.Linear):
    """A linear layer that starts at zero."""

    @torch.no_grad()
    def reset(self, stream: torch.Generator) -> None:
        """Zeros."""
        self.weight.zero_()
        self.bias.zero_()


class Coupling(nn.Module):
    """z ↦ z where m = 1, and μ(m z, h) + z e^{s(m z, h)} elsewhere: known half by half, so it is inverted as easily."""

    def __init__(self, latent: int, context: int, hidden: int, odd: int):
        super().__init__()
        self.odd = odd
        self.inner = nn.Linear(latent + context, hidden)
        self.outer = Still(hidden, 2 * latent)  # at first nothing is bent

    def forward(self, z: Float[Tensor, "... Z"], context: Float[Tensor, "... C"]) -> tuple[Tensor, Tensor]:
        """μ and s, zero where z is kept."""
        kept = ((torch.arange(z.shape[-1], device=z.device) + self.odd) % 2).to(z.dtype)
        known = torch.cat((z * kept, context.expand(*z.shape[:-1], -1)), -1)
        mu, raw = self.outer(torch.tanh(self.inner(known))).chunk(2, -1)
        return mu * (1 - kept), MOST * torch.tanh(raw / MOST) * (1 - kept)


@dataclass(frozen=True)
class FlowBelief(Belief):
    """q(z | x): a draw of a normal distribution, sent through couplings.

    Attributes:
        base: what is bent.
        context: (B, C) what the couplings know of x.
        layers: the couplings.
    """

    base: NormalBelief
    context: Float[Tensor, "B C"]
    layers: Sequence[nn.Module]

    def _probed(self) -> Float[Tensor, "S B Z"]:
        shape, latent = self.context.shape[:-1], self.base.mean.shape[-1]
        even = torch.quasirandom.SobolEngine(latent).draw(PROBES + 1)[1:]  # the first point is 0, whose normal is −∞
        probe = torch.special.ndtri(even.double()).to(self.context)
        return self.draw(probe.reshape(-1, *[1] * len(shape), probe.shape[-1]).expand(-1, *shape, -1))[0]

    @property
    def mean(self) -> Float[Tensor, "B Z"]:  # type: ignore[override]
        """The mean of 256 draws, spread evenly and the same at every call."""
        return self._probed().mean(0)

    @property
    def sigma(self) -> Float[Tensor, "B Z"]:  # type: ignore[override]
        """The deviation of the same draws."""
        return self._probed().std(0)

    def draw(self, noise: Float[Tensor, "S B Z"]) -> tuple[Float[Tensor, "S B Z"], Float[Tensor, "S B"]]:
        """Log q(z) = log q(z₀) − Σ of the couplings' s."""
        z, log_q = self.base.draw(noise)
        for layer in self.layers:
            mu, s = layer(z, self.context)
            z, log_q = mu + z * s.exp(), log_q - s.sum(-1)
        return z, log_q

    def log_prob(self, z: Float[Tensor, "S B Z"]) -> Float[Tensor, "S B"]:
        """The couplings inverted, from the last to the first."""
        bent = torch.zeros_like(z[..., 0])
        for layer in reversed(self.layers):
            mu, s = layer(z, self.context)
            z, bent = (z - mu) * (-s).exp(), bent + s.sum(-1)
        return self.base.log_prob(z) - bent

    def kl(self) -> None:
        """There is no closed form."""


class FlowPosterior(Posterior):
    """A normal distribution sent through K affine couplings, each of which changes one half of z, given the other and x.

    θ is μ, log σ and the C numbers that the couplings know of x.

    Args:
        latent: Z ≥ 2.
        layers: K.
        hidden: width inside a coupling.
        context: C.

    Reference: Dinh, Sohl-Dickstein and Bengio, Density estimation using Real NVP, 2017; Rezende and Mohamed, Variational
    inference with normalizing flows, 2015.
    """

    def __init__(self, latent: int, *, layers: int = 4, hidden: int = 64, context: int = 16):
        super().__init__()
        if latent < 2:
            raise ConfigError("posterior: a flow bends one half of z given the other.   Use normal for one dimension")
        self.latent, self.width = latent, 2 * latent + context
        self.layers = nn.ModuleList(Coupling(latent, context, hidden, i % 2) for i in range(layers))

    def forward(self, theta: Float[Tensor, "... width"]) -> FlowBelief:
        """Base and context."""
        z = self.latent
        base = NormalBelief(theta[..., :z], held(theta[..., z : 2 * z]))
        return FlowBelief(base, theta[..., 2 * z :], list(self.layers))

    def distribution(self, theta: Float[Tensor, "... width"]) -> Distribution:
        """Torch has none.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("torch has no flow of couplings")
