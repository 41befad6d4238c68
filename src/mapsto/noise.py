"""Modules that draw in training: what they draw is a pure function of (seed, step, part, layer, call)."""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from mapsto.errors import ConfigError
from mapsto.stream import Clock, stream

__all__ = ["Gumbel", "Random", "set_clock"]


class Random(nn.Module):
    """A module that draws in training: a fresh stream for each call, from (seed, step, part, layer, call).

    Attributes:
        purpose: what names its streams.
    """

    purpose: ClassVar[str] = "dropout"

    def __init__(self, rate: float = 0.0):
        super().__init__()
        if not 0 <= rate < 1:
            raise ConfigError(f"dropout: a rate is from 0 to below 1, got {rate}")
        self.rate = rate
        self.clock = Clock()
        self.layer = 0
        self._now = (-1, -1)
        self._call = 0

    def draw(self, device: torch.device) -> torch.Generator:
        """The stream for this call."""
        now = (self.clock.step, self.clock.part)
        self._call = self._call + 1 if now == self._now else 0
        self._now = now
        return stream(self.clock.seed, self.purpose, *now, self.layer, self._call, device=device)

    def extra_repr(self) -> str:
        """The rate."""
        return f"rate={self.rate}"


class Gumbel(Random):
    """Gumbel noise for choices in training: argmax_m (s_m + G_m) picks m with probability softargmax(s)_m.

    Its rate is what the noise is multiplied by: 1, or 0 in a model at rest.

    Reference: Gumbel, Statistical theory of extreme values, 1954.
    """

    purpose: ClassVar[str] = "gumbel"

    def __init__(self) -> None:
        super().__init__()
        self.rate = 1.0

    def tiles(self, device: torch.device) -> Callable[[int, torch.Size], Tensor]:
        """The noise of this call, made tile by tile: the same number and shape give the same noise."""
        seed, rate = self.draw(device).initial_seed(), self.rate

        def tile(number: int, shape: torch.Size) -> Tensor:
            source = stream(seed, self.purpose, number, device=device)
            return torch.empty(shape, device=device).exponential_(generator=source).log_().mul_(-rate)

        return tile


def set_clock(model: nn.Module, clock: Clock) -> None:
    """Let all random modules of a model read one clock, each as a layer of its own; calls are counted from the first."""
    for layer, module in enumerate(m for m in model.modules() if isinstance(m, Random)):
        module.clock, module.layer = clock, layer
        module._now = (-1, -1)
