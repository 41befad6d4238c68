"""Modules that draw in training: what they draw is a pure function of (seed, step, part, layer, call)."""

import torch
from torch import nn

from mapsto.errors import ConfigError
from mapsto.stream import Clock, stream

__all__ = ["Random", "set_clock"]


class Random(nn.Module):
    """A module that draws in training: a fresh stream for each call, from (seed, step, part, layer, call)."""

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
        return stream(self.clock.seed, "dropout", *now, self.layer, self._call, device=device)

    def extra_repr(self) -> str:
        """The rate."""
        return f"rate={self.rate}"


def set_clock(model: nn.Module, clock: Clock) -> None:
    """Let all random modules of a model read one clock, each as a layer of its own; calls are counted from the first."""
    for layer, module in enumerate(m for m in model.modules() if isinstance(m, Random)):
        module.clock, module.layer = clock, layer
        module._now = (-1, -1)
