"""Dropout and item masking whose noise is a pure function of (seed, step, layer)."""

from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mapsto.collection import Collection, Packed
from mapsto.errors import ConfigError
from mapsto.stream import Clock, stream

__all__ = ["Dropout", "ItemMasking", "Random", "set_clock"]

Batch = TypeVar("Batch", Collection, Packed)


class Random(nn.Module):
    """A module that draws in training: a fresh stream for each call, from (seed, step, part, layer, call)."""

    def __init__(self, rate: float):
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


def keep(shape: torch.Size, rate: float, source: torch.Generator, device: torch.device) -> Tensor:
    """A boolean tensor, True with probability 1 - rate rounded to 1/256, from raw random bytes (8 a draw)."""
    count = shape.numel()
    words = torch.empty((count + 7) // 8, dtype=torch.int64, device=device).random_(-(2**63), None, generator=source)
    return words.view(torch.uint8)[:count].view(shape) >= round(rate * 256)


class Dropout(Random):
    """x_i → x_i b_i / (1 − p) in training, with b_i independent and P(b_i = 0) = p; x in eval mode.

    p is the rate rounded to a multiple of 1/256, and the division uses that very p, so the mean is exact.

    Reference: Srivastava et al., Dropout, JMLR 2014.
    """

    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Drop single numbers."""
        p = round(self.rate * 256) / 256
        if not self.training or p == 0:
            return x
        kept = keep(x.shape, self.rate, self.draw(x.device), x.device)
        return x * kept.to(x.dtype).mul_(1 / (1 - p))


class ItemMasking(Random):
    """Hide whole items in training: with probability p an item becomes zeros (its place stays known).

    A regulariser for maps that must not lean on single items (word dropout, token masking).
    """

    def forward(self, x: Batch) -> Batch:
        """Mask some items of every group."""
        if not self.training or round(self.rate * 256) == 0:
            return x
        kept = keep(x.items.shape[:-1], self.rate, self.draw(x.items.device), x.items.device)
        return x.replace(items=x.items * kept[..., None])
