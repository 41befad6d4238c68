"""Where a trainer gets its batches."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mapsto.models.mapper import Batch

__all__ = ["Feed"]


class Feed(Protocol):
    """Where batches come from: an order that is a pure function of the epoch, and the batches themselves."""

    def order(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """The rows of every micro-batch of an epoch."""

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """One micro-batch, on the model's device."""
