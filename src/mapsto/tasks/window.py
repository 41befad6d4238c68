"""Batches of windows of long texts: what a language model learns from."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapsto.data.order import batches
from mapsto.data.store import Store
from mapsto.models.mapper import Mapper
from mapsto.ragged import Ragged, Rows
from mapsto.stream import stream_numpy
from mapsto.tasks.feed import StoreFeed
from mapsto.vocabulary import BEGIN

__all__ = ["WindowFeed", "make_feed"]


def make_feed(store: Store, rows: NDArray[np.int64], model: Mapper, **settings: Any) -> StoreFeed:
    """The batches of some rows of a store, whole or in windows, as the model's output has it."""
    kind = WindowFeed if getattr(model.output, "window", 0) else StoreFeed
    return kind(store, rows, model, **settings)


class WindowFeed(StoreFeed):
    """Windows of W tokens that tile each row's text, every token once an epoch; no window reaches over a row's end.

    In epoch e the first window of a row is cut short by r(seed, e, row) of 0 … W - 1 tokens, so that windows begin
    elsewhere each time; for evaluation they begin at the text's. A window knows the token before it, and so the first
    of its tokens is predicted from that, and only the first of a text from the begin token. What stands for a row here
    is a window: its first token's place in the store, times W + 1, plus its length.

    Takes the arguments of :class:`~mapsto.tasks.feed.StoreFeed`; W is the output's ``window``.
    """

    def __init__(self, *args: Any, **named: Any):
        super().__init__(*args, **named)
        self.width: int = self.model.output.window  # type: ignore[assignment]
        self.rows = self._windows(np.zeros(len(self.texts), np.int64))
        self.lengths = self.rows % (self.width + 1)

    def order(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of an epoch."""
        cut = stream_numpy(self.seed, "window", epoch).integers(self.width, size=len(self.store))[self.texts]
        return self._batches(self._windows(cut), epoch, shuffle=True)

    def once(self) -> list[NDArray[np.int64]]:
        """Every window once, in order of length: for evaluation."""
        return self._batches(self.rows, 0, shuffle=False)

    def _batches(self, windows: NDArray[np.int64], epoch: int, *, shuffle: bool) -> list[NDArray[np.int64]]:
        lengths = windows % (self.width + 1)
        found = batches(lengths, tokens=self.tokens, rows=self.batch_rows, seed=self.seed, epoch=epoch, shuffle=shuffle)
        return [windows[batch] for batch in found]

    def _windows(self, cut: NDArray[np.int64]) -> NDArray[np.int64]:
        """All windows of the texts, the first of each shorter by ``cut``."""
        offsets, width = self.columns["target"]["ids"].offsets, self.width
        begin, end = offsets[self.texts], offsets[self.texts + 1]
        count = -(-(end - begin + cut) // width)  # a text of fewer tokens than the cut has one window all the same
        text = np.repeat(np.arange(len(count)), count)
        place = np.arange(len(text)) - np.repeat(np.cumsum(count) - count, count)
        first = (begin - cut)[text] + place * width
        starts, ends = np.maximum(first, begin[text]), np.minimum(first + width, end[text])
        real = ends > starts
        return (starts * (width + 1) + ends - starts)[real]

    def take(self, name: str, rows: NDArray[np.int64]) -> dict[str, Rows]:
        """The ids of windows, and the token before each."""
        column = self.columns[name]["ids"]
        starts, lengths = np.divmod(rows, self.width + 1)
        edges = np.stack([starts, starts + lengths], 1).ravel()  # each window between an even edge and the next
        before = column.values[np.maximum(starts - 1, 0)].astype(np.int32)
        before[np.isin(starts, column.offsets)] = BEGIN
        each = np.arange(len(rows), dtype=np.int64)
        return {
            "ids": Ragged(column.values, edges).take(2 * each),
            "before": Ragged(before, np.arange(len(rows) + 1)).take(each),
        }

    @property
    def owners(self) -> NDArray[np.int64]:
        """The row of the store that each window is of."""
        return self._owners(self.rows)

    def place(self, window: int) -> int:
        """The row of the store that a window is of."""
        return int(self._owners(np.array([window]))[0])

    def _owners(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        offsets = self.columns["target"]["ids"].offsets
        return np.searchsorted(offsets, windows // (self.width + 1), side="right") - 1
