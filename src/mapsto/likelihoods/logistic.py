"""D levels, such as the 256 of a picture's channel: logistic noise, rounded; or a mixture of it."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from mapsto.likelihoods import Likelihood, floored, refuse, wide

__all__ = ["LogisticLikelihood"]


class LogisticLikelihood(Likelihood):
    """A mixture of K logistic distributions, discretised: x in 0 … L − 1 has the mass of [x − ½, x + ½].

    log p(x) = Σ_d log Σ_k π_dk [σ((x_d + ½ − μ_dk)/s_dk) − σ((x_d − ½ − μ_dk)/s_dk)]; the outermost levels reach to ±∞. θ of
    a dimension is K log-weights, K μ and K log s, the last two in units of half the range, μ about its middle.

    Args:
        dims: D.
        levels: L.
        components: K.

    Example:
        >>> p = LogisticLikelihood(1, levels=2)
        >>> p.log_prob(torch.zeros(3), torch.tensor([1])).exp()
        tensor(0.5000)

    Reference: Salimans et al., PixelCNN++, 2017.
    """

    def __init__(self, dims: int = 1, *, levels: int = 256, components: int = 1):
        super().__init__()
        self.dims, self.levels, self.components = dims, levels, components
        self.width = 3 * dims * components
        self.support = constraints.integer_interval(0, levels - 1)

    def split(self, theta: Float[Tensor, "... width"]) -> tuple[Tensor, Tensor, Tensor]:
        """Log π, μ and log s in units of levels, each (..., D, K)."""
        raw = wide(theta).unflatten(-1, (self.dims, 3, self.components))
        half = (self.levels - 1) / 2
        log_s = floored(raw[..., 2, :]) + math.log(half)
        return torch.log_softmax(raw[..., 0, :], -1), half * (1 + raw[..., 1, :]), log_s

    def log_prob(self, theta: Float[Tensor, "... width"], x: Tensor) -> Float[Tensor, "..."]:
        """Summed over the D levels.

        With a = (x + ½ − μ)/s and b = (x − ½ − μ)/s, log(σ(a) − σ(b)) = log σ(a) + log σ(−b) + log(1 − e^(b − a)), and a − b
        is 1/s for all x: nothing cancels however small the mass.
        """
        log_share, mu, log_s = self.split(theta)
        x = x.to(mu.dtype)[..., None]
        narrow = torch.exp(-log_s)
        above, below = F.logsigmoid((x + 0.5 - mu) * narrow), F.logsigmoid((mu - x + 0.5) * narrow)
        few = narrow < 1e-3  # there log(1 − e^−w) is log w − w/2, and w itself may be too small for a number
        wide_apart = torch.log(-torch.expm1(-torch.where(few, 1.0, narrow)))
        inside = above + below + torch.where(few, -log_s - 0.5 * narrow, wide_apart)
        mass = torch.where(x < 0.5, above, torch.where(x > self.levels - 1.5, below, inside))
        return (log_share + mass).logsumexp(-1).sum(-1)

    def mean(self, theta: Float[Tensor, "... width"]) -> Float[Tensor, "... D"]:
        """E[x] = Σ_{v < L − 1} P(x > v), in O(D K L)."""
        log_share, mu, log_s = self.split(theta)
        narrow = torch.exp(-log_s)
        beyond = torch.zeros_like(mu)
        for v in range(self.levels - 1):
            beyond = beyond + torch.sigmoid((mu - v - 0.5) * narrow)
        return (log_share.exp() * beyond).sum(-1)

    def sample(self, theta: Float[Tensor, "... width"], stream: torch.Generator) -> Float[Tensor, "... D"]:
        """A component, logistic noise, rounded and held within the range."""
        log_share, mu, log_s = self.split(theta)
        u, v = torch.rand((2, *mu.shape[:-1], 1), generator=stream, dtype=torch.float64, device=mu.device)
        k = (log_share.double().exp().cumsum(-1) < u).sum(-1, keepdim=True).clamp(max=self.components - 1)
        x = mu.gather(-1, k) + log_s.gather(-1, k).exp() * torch.logit(v, 1e-12)
        return x[..., 0].round().clamp(0, self.levels - 1).to(mu.dtype)

    def check(self, values: Tensor) -> None:
        """Levels from 0 to L - 1."""
        bad = ~((values >= 0) & (values < self.levels) & (values == values.round()))
        refuse(values, bad, f"a logistic likelihood needs whole numbers from 0 to {self.levels - 1}")

    def distribution(self, theta: Float[Tensor, "... width"]) -> torch.distributions.Distribution:
        """Torch has none.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("torch has no discretised logistic distribution")
