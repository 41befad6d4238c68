"""What a forecast says of one step: a number a channel, and how far it may be off."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.errors import ConfigError
from mapsto.likelihoods import wide
from mapsto.likelihoods.gaussian import GaussianLikelihood
from mapsto.likelihoods.student import StudentLikelihood
from mapsto.nn.channel import Frame, Moments, samples
from mapsto.nn.target import Target

__all__ = ["LEVEL", "StepTarget"]

LEVEL = 0.95
"""The probability that a forecast's interval holds."""


class StepTarget(Target):
    """C numbers with a spread of their own; each may be unknown (NaN). θ is (B, L, 2C): means first, then raw log σ.

    Args:
        dim: D.
        mean: of each channel.
        scale: of each channel.
        noise: ``gaussian``, or ``student`` for heavy tails.
    """

    kind = "series"

    def __init__(self, dim: int, *, mean: list[float], scale: list[float], noise: str = "gaussian"):
        super().__init__()
        if noise not in ("gaussian", "student"):
            raise ConfigError(f'output.noise: "{noise}" is not one of gaussian, student')
        made = StudentLikelihood(1) if noise == "student" else GaussianLikelihood(1, sigma="datum")
        self.likelihood: GaussianLikelihood | StudentLikelihood = made
        self.head = nn.Linear(dim, 2 * len(mean))
        self.mean, self.scale, self.noise = np.array(mean, np.float64), np.array(scale, np.float64), noise
        self.channels = len(mean)

    @classmethod
    def measure(cls, values: Iterable[Any]) -> dict[str, Any]:
        """Mean and scale of each channel."""
        moments = Moments()
        for value in values:
            moments.add(samples(value)[0])
        return moments.told()

    def settings(self) -> dict[str, Any]:
        """Mean, scale and noise."""
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist(), "noise": self.noise}

    def encode(self, value: Any) -> NDArray:
        """(T, C) standardised in float64, kept in float32; NaN where it is not known."""
        return ((samples(value)[0] - self.mean) / self.scale).astype(np.float32)

    def relate(
        self, theta: Float[Tensor, "B L 2C"], frame: Frame, line: Float[Tensor, "B L C"] | None = None
    ) -> Float[Tensor, "B L 2C"]:
        """μ ↦ origin + unit (line + μ) and log σ ↦ log σ + log unit."""
        mu, raw = wide(theta).chunk(2, -1)
        mu = mu if line is None else mu + line
        return torch.cat([frame.origin[:, None] + frame.unit[:, None] * mu, raw + frame.unit[:, None].log()], -1)

    def each(self, theta: Float[Tensor, "B L 2C"], event: Float[Tensor, "B L C"]) -> Float[Tensor, "B L C"]:
        """Log p of every number that is known, in standardised units; 0 for the others, whose gradient is 0 too."""
        known = torch.isfinite(event)
        split = self._numbers(theta).masked_fill(~known[..., None], 0)
        return self.likelihood.log_prob(split, event.masked_fill(~known, 0)[..., None]).masked_fill(~known, 0)

    def log_likelihood(self, theta: Float[Tensor, "B L 2C"], event: Float[Tensor, "B L C"]) -> Float[Tensor, "B L"]:
        """The density of what is known of a step, in the user's units."""
        unit = torch.from_numpy(np.log(self.scale)).to(event.device, event.dtype)
        return (self.each(theta, event) - torch.isfinite(event) * unit).sum(-1)

    def predict(self, theta: Float[Tensor, "B L 2C"]) -> dict[str, NDArray]:
        """``value``, ``sigma``, and the ends ``low`` and ``high`` of an interval of 95 %: (B, L, C) in the user's units."""
        split = self._numbers(theta)
        value = self.likelihood.mean(split)[..., 0].double().cpu().numpy() * self.scale + self.mean
        sigma = self.likelihood.sigma(split)[..., 0].double().cpu().numpy() * self.scale
        half = self.likelihood.reach(LEVEL) * sigma
        return {"value": value, "sigma": sigma, "low": value - half, "high": value + half}

    def sample(self, theta: Float[Tensor, "B L 2C"], stream: torch.Generator) -> NDArray:
        """(B, L, C) draws, in the user's units."""
        drawn = self.likelihood.sample(self._numbers(theta), stream)[..., 0]
        return drawn.double().cpu().numpy() * self.scale + self.mean

    @staticmethod
    def _numbers(theta: Float[Tensor, "B L 2C"]) -> Float[Tensor, "B L C 2"]:
        return torch.stack(theta.chunk(2, -1), -1)
