"""Whether what an encoder believes is what its decoder means: calibration by simulation."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from mapsto.models.mapper import Batch
from mapsto.models.vae import VAE
from mapsto.stream import stream

__all__ = ["Calibration", "kolmogorov", "ranks"]

DRAWS = 255
SURE = 0.01
"""The p-value, of the worst of all dimensions, below which beliefs are not taken for calibrated."""


@torch.inference_mode()
def ranks(
    model: VAE, z: Float[Tensor, "B Z"], batch: Batch, *, samples: int = DRAWS, seed: int = 0
) -> Float[Tensor, "B Z"]:
    """Where each true z lies among draws of q(z | x), as a share: (r + u) / (S + 1), r of S draws being below it.

    If z ~ p(z), x ~ p(x | z) and q(z | x) = p(z | x), each is uniform. u ~ U(0, 1) makes it so for a finite S.

    Args:
        model: in eval mode.
        z: what was drawn of the prior.
        batch: x, drawn of p(x | z), as the encoder reads it.
        samples: S.
        seed: of the draws.

    Reference: Talts et al., Validating Bayesian inference algorithms with simulation-based calibration, 2018.
    """
    belief = model.believe(batch)
    noise = torch.randn(samples, *z.shape, generator=stream(seed, "ranks")).to(z)
    below = (belief.draw(noise)[0] < z).double().sum(0).cpu()
    return (below + torch.rand(z.shape, generator=stream(seed, "ties"), dtype=torch.float64)) / (samples + 1)


def kolmogorov(shares: Float[NDArray[np.float64], " N"]) -> tuple[float, float]:
    """D = sup |F_N(u) − u| of the uniform distribution, and the probability of one as large.

    p = 2 Σ_k (−1)^(k−1) exp(−2 k² λ²) with λ = (√N + 0.12 + 0.11/√N) D.

    Reference: Stephens, Use of the Kolmogorov-Smirnov, Cramér-von Mises and related statistics without extensive tables,
    1970.
    """
    u, count = np.sort(shares), len(shares)
    steps = np.arange(count) / count
    d = float(max((steps + 1 / count - u).max(), (u - steps).max()))
    scaled = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * d
    if scaled < 0.2:  # the series is of no use there, and p is 1
        return d, 1.0
    p = 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return d, min(1.0, max(0.0, p))


@dataclass(frozen=True)
class Calibration:
    """Of N simulated rows.

    Attributes:
        rows: N.
        dimension: the worst one, from 1.
        distance: its D.
        p: the probability of one as bad among all dimensions, if all were calibrated (Bonferroni).
        shift: the mean of its ranks, less one half: beliefs are that much to one side.
        spread: their variance over that of a uniform distribution: above 1 beliefs are too narrow, below too wide.
    """

    rows: int
    dimension: int
    distance: float
    p: float
    shift: float
    spread: float

    @classmethod
    def of(cls, shares: Float[Tensor, "N Z"]) -> "Calibration":
        """Judge ranks."""
        each = [kolmogorov(column) for column in shares.numpy().T]
        worst = int(np.argmax([d for d, _ in each]))
        own = shares[:, worst]
        shift, spread = float(own.mean() - 0.5), float(own.var(correction=0) * 12)
        return cls(len(shares), worst + 1, each[worst][0], min(1.0, each[worst][1] * len(each)), shift, spread)

    @property
    def verdict(self) -> str:
        """What it comes to, for a person."""
        if self.p > SURE:
            return "what the encoder believes is what the decoder means, as far as so many rows can tell"
        # In standard errors of a uniform distribution: 1/√12 of a share, √0.8 of 12 (u − ½)².
        aside, apart = abs(self.shift) * math.sqrt(12), abs(self.spread - 1) / math.sqrt(0.8)
        lean = "off to one side" if aside > apart else "too narrow" if self.spread > 1 else "too wide"
        return f"beliefs of dimension {self.dimension} are {lean}: q is not p(z | x) of the decoder"
