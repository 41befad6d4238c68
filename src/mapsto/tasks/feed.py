"""Batches of some rows of a store: what the training loop and evaluation are fed with."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mapsto.data.order import batches
from mapsto.data.store import Store
from mapsto.models.mapper import Batch, Mapper
from mapsto.ragged import Rows

__all__ = ["StoreFeed"]


class StoreFeed:
    """Batches of some rows of a store: the training loop's feed, and evaluation's.

    Attributes:
        rows: what batches are made of.
        texts: the rows of the store that they are of.

    Args:
        store: all rows.
        rows: those to use.
        model: whose inputs and output gather.
        tokens: most items in a batch, padding included.
        batch_rows: most rows in a batch.
        seed: of the order.
        device: where batches go.
        targets: whether batches hold the target.
    """

    def __init__(
        self,
        store: Store,
        rows: NDArray[np.int64],
        model: Mapper,
        *,
        tokens: int,
        batch_rows: int = 256,
        seed: int = 0,
        device: torch.device | str = "cpu",
        targets: bool = True,
    ):
        self.store, self.rows, self.texts, self.model = store, rows, rows, model
        self.tokens, self.batch_rows, self.seed, self.device = tokens, batch_rows, seed, torch.device(device)
        parts: list[tuple[str, str, Any]] = [(n, f"{i}.", m) for i, (n, m) in enumerate(model.sources.items())]
        self.parts = [*parts, ("target", "t.", model.output)] if targets else parts
        self.columns = {
            name: {c[len(prefix) :]: column for c, column in store.columns.items() if c.startswith(prefix)}
            for name, prefix, _ in self.parts
        }
        found = [part.lengths(self.columns[name]) for name, _, part in self.parts]
        self.lengths = np.broadcast_to(sum(found), len(store))[rows]

    def order(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of an epoch, as rows of the store."""
        found = batches(self.lengths, tokens=self.tokens, rows=self.batch_rows, seed=self.seed, epoch=epoch)
        return [self.rows[batch] for batch in found]

    def once(self) -> list[NDArray[np.int64]]:
        """Every row once, in order of length: for evaluation."""
        found = batches(self.lengths, tokens=self.tokens, rows=self.batch_rows, seed=0, epoch=0, shuffle=False)
        return [self.rows[batch] for batch in found]

    @property
    def owners(self) -> NDArray[np.int64]:
        """The row of the store that each of ``rows`` is of."""
        return self.rows

    def place(self, row: int) -> int:
        """The row of the store that a row of a batch is of."""
        return row

    def take(self, name: str, rows: NDArray[np.int64]) -> dict[str, Rows]:
        """The columns of one input, or of "target", for some rows."""
        return {c: column.take(rows) for c, column in self.columns[name].items()}

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """Gather a batch."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, _, part in self.parts:
            tensors = part.gather(self.take(name, rows))
            if self.device.type != "cpu":
                tensors = {n: t.to(self.device, non_blocking=True) for n, t in tensors.items()}
            found[name] = tensors
        return found
