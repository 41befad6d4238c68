"""Ragged columns: rows of different lengths, end to end in one array, and the batches gathered from them whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ragged", "Rows", "evenly"]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one array.

    Attributes:
        values: (total, ...) the items of all rows, one row after the other; may be a memory map.
        offsets: (rows + 1,) int64: row i is ``values[offsets[i]:offsets[i + 1]]``.
    """

    values: NDArray
    offsets: NDArray[np.int64]

    @classmethod
    def pack(cls, rows: Sequence[NDArray]) -> "Ragged":
        """Put rows end to end.

        Example:
            >>> Ragged.pack([np.array([1, 2]), np.array([3])]).offsets
            array([0, 2, 3])
        """
        lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return cls(np.concatenate(rows) if rows else np.zeros(0, np.float32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(rows,) the number of items of each row."""
        return np.diff(self.offsets)

    @cached_property
    def table(self) -> NDArray | None:
        """(rows, n, ...) the same values, where all rows are of one length n; else None."""
        lengths = self.lengths
        if not len(lengths) or (lengths != lengths[0]).any():
            return None
        values = np.asarray(self.values)  # a memory map's own class makes each later call slower
        values = values[self.offsets[0] : self.offsets[-1]]
        return values.reshape(len(lengths), int(lengths[0]), *values.shape[1:])

    def take(self, rows: NDArray[np.int64]) -> "Rows":
        """A view of some rows, gathered when it is read."""
        return Rows(self, rows)


@dataclass(frozen=True)
class Rows:
    """Some rows of a ragged column, in an order of their own."""

    column: Ragged
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(B,) the number of items of each row."""
        return self.column.offsets[self.rows + 1] - self.column.offsets[self.rows]

    def pad(self) -> tuple[NDArray, NDArray[np.bool_]]:
        """Gather the rows into one array, filled up with zeros: values (B, N, ...) and valid (B, N).

        One indexing for the whole batch. N is the longest row's length.

        Example:
            >>> Ragged.pack([np.array([1, 2]), np.array([3])]).take(np.array([1, 0])).pad()[0]
            array([[3, 0],
                   [1, 2]])
        """
        starts = self.column.offsets.take(self.rows)
        lengths = self.column.offsets.take(self.rows + 1) - starts
        longest = int(lengths.max(initial=0))
        place = np.arange(longest)
        valid = place < lengths[:, None]
        if len(self.column.values) == 0:
            return np.zeros((len(self), longest, *self.column.values.shape[1:]), self.column.values.dtype), valid
        index = starts[:, None] + place
        # Clipped: the padding of the last rows would point beyond the end.
        values = self.column.values.take(index, axis=0, mode="clip")
        if int(lengths.min(initial=longest)) < longest:
            values[~valid] = 0  # few places if lengths are similar, so faster than a product; and no 0 * NaN
        return values, valid

    def flat(self) -> tuple[NDArray, NDArray[np.int64]]:
        """The rows end to end, without padding: values (sum of lengths, ...) and lengths (B,)."""
        lengths = self.lengths
        ends = np.cumsum(lengths)
        index = np.arange(int(ends[-1]) if len(ends) else 0)
        index += np.repeat(self.column.offsets[self.rows] - (ends - lengths), lengths)
        if not len(index):
            return self.column.values[:0], lengths
        return self.column.values.take(index, axis=0, mode="clip"), lengths

    def dense(self) -> NDArray:
        """The rows as (B, n, ...), all of one length n (a fixed-size column)."""
        if len(self.rows) and (table := self.column.table) is not None:
            return table.take(self.rows, axis=0)
        lengths = self.lengths
        length = int(lengths[0]) if len(lengths) else 0
        assert (lengths == length).all(), "rows of a fixed-size column differ in length"
        index = self.column.offsets[self.rows, None] + np.arange(length)
        if not index.size:
            return np.zeros((*index.shape, *self.column.values.shape[1:]), self.column.values.dtype)
        return self.column.values.take(index, axis=0, mode="clip")


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """Up to ``most`` of so many rows, evenly from the first to the last.

    Example:
        >>> evenly(9, 3)
        array([0, 4, 8])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
