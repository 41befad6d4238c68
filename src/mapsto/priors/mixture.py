"""A mixture of normal distributions, learned with the model."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mapsto.posteriors import Belief
from mapsto.priors import Prior

__all__ = ["MixturePrior"]


class MixturePrior(Prior):
    """p(z) = Σ_k π_k N(z; μ_k, diag σ_k²), all of it learned.

    The best prior for the ELBO is the mean of q(z | x) over the data; a mixture comes near it. The components are learned
    themselves, and not as beliefs about learned inputs (VampPrior), which would tie the prior to one kind of data.

    Args:
        latent: Z.
        components: K.

    Reference: Tomczak and Welling, VAE with a VampPrior, 2018 (where it is the prior "MoG").
    """

    def __init__(self, latent: int, *, components: int = 16):
        super().__init__()
        self.latent = latent
        self.means = nn.Parameter(torch.zeros(components, latent))
        self.log_sigma = nn.Parameter(torch.zeros(components, latent))
        self.log_share = nn.Parameter(torch.zeros(components))

    @torch.no_grad()
    def reset(self, stream: torch.Generator) -> None:
        """Means are drawn from N(0, I), so that components differ."""
        self.means.copy_(torch.randn(self.means.shape, generator=stream))
        self.log_sigma.zero_()
        self.log_share.zero_()

    def log_prob(self, z: Float[Tensor, "... Z"]) -> Float[Tensor, "..."]:
        """In O(K Z)."""
        # |(z − μ)/σ|² = z² σ⁻² − 2 z μ σ⁻² + μ² σ⁻²: two products, and no (…, K, Z) in between
        precision = torch.exp(-2 * self.log_sigma)
        square = (
            z.square() @ precision.T - 2 * z @ (self.means * precision).T + (self.means.square() * precision).sum(-1)
        )
        log_det = self.log_sigma.sum(-1) + 0.5 * self.latent * math.log(2 * math.pi)
        return (torch.log_softmax(self.log_share, 0) - log_det - 0.5 * square).logsumexp(-1)

    def sample(self, count: int, stream: torch.Generator) -> Float[Tensor, "N Z"]:
        """A component, and a draw of it."""
        device = self.means.device
        u = torch.rand(count, 1, generator=stream, dtype=torch.float64).to(device)
        k = (torch.softmax(self.log_share.double(), 0).cumsum(0) < u).sum(1).clamp(max=len(self.means) - 1)
        noise = torch.randn(count, self.latent, generator=stream).to(device)
        return self.means[k] + self.log_sigma[k].exp() * noise

    def kl(self, belief: Belief) -> None:
        """There is no closed form."""
