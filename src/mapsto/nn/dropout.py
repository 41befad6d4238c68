"""Dropout and item masking whose noise is a pure function of (seed, step, layer)."""

from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from mapsto.collection import Collection, Packed
from mapsto.noise import Random

__all__ = ["Dropout", "ItemMasking"]

Batch = TypeVar("Batch", Collection, Packed)


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
