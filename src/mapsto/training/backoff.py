"""N-gram language models: what any model that writes sequences has to beat.

Interpolated Kneser-Ney with three discounts an order ("modified", Chen and Goodman 1999). With h the k - 1 ids before,
h' = h without the farthest one, and for each order k = n ... 1

    p_k(w | h) = (c_k(h w) - D_k(c_k(h w))) / c_k(h) + gamma_k(h) p_{k-1}(w | h')
    gamma_k(h) = (sum over w of D_k(c_k(h w))) / c_k(h),   p_k = p_{k-1} where h was never seen,

p_0 = 1 / (V - 1): every id but BEGIN, which nothing writes, can come; UNKNOWN and END are ids like the others. The
highest order has c_n = counts; lower ones have the number of different ids seen before (h w), or its count if it starts
with BEGIN, before which nothing stands. D(0) = 0, and D(1), D(2), D(3 and more) = 1 - 2 Y n_2 / n_1,
2 - 3 Y n_3 / n_2, 3 - 4 Y n_4 / n_3 with Y = n_1 / (n_1 + 2 n_2), n_i the n-grams of that order with c_k = i; an order
where one of them is no number above 0 has 1/2, 1, 3/2.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapsto.errors import ConfigError, DataError
from mapsto.training.weight import Floats
from mapsto.vocabulary import BEGIN, END

__all__ = ["Backoff", "Unigram", "tuned_order"]

Ids = NDArray[np.int64]
Rows = tuple[ArrayLike, ArrayLike]  # ids (total,) and offsets (N + 1,), as of a Ragged


@dataclass
class Backoff:
    """An n-gram model of rows of ids: each id given the n - 1 before it, among them the row's BEGIN; END is written too.

    Attributes:
        order: n, at least 1.
        size: V, how many ids there are; all are below it.

    Example:
        >>> model = Backoff(order=2, size=5).fit([3, 4, 3, 4, 3], [0, 5])
        >>> np.exp(model.log_prob([3, 4], [0, 2])).round(2)  # of 3 after BEGIN, 4 after 3, END after 4
        array([0.69, 0.46, 0.13])
    """

    order: int
    size: int
    levels: list["_Level"] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ConfigError: an order below 1, or not one id besides BEGIN and END.
        """
        if self.order < 1 or self.size <= END:
            raise ConfigError(f"n-gram model: order {self.order}, {self.size} ids.   Expected at least 1 and {END + 1}")

    def fit(self, ids: ArrayLike, offsets: ArrayLike) -> Self:
        """Count the rows; gives itself. Time O(n T log T), memory O(n T) for T ids.

        Args:
            ids: (total,) whole numbers from 0 to V - 1, none of them BEGIN; the END of a row is not among them.
            offsets: (N + 1,): row i is ``ids[offsets[i]:offsets[i + 1]]``.

        Raises:
            DataError: an id that is none or BEGIN; names the row.
        """
        stream, depth = self._stream(ids, offsets)
        gram = np.zeros(len(stream), np.int64)  # that ends here: of k - 1 ids, then of k
        places = np.arange(len(stream))  # where a gram of k ids ends
        keys, grams, ends = [], [], []
        for k in range(1, self.order + 1):
            places = places[depth[places] >= k - 1]
            key, first, inverse = np.unique(
                gram[places] * self.size + stream[places - k + 1], return_index=True, return_inverse=True
            )
            before, gram = gram, np.full(len(stream), -1)
            gram[places] = inverse
            context = before[places[first] - 1] if k > 1 else np.zeros(len(key), np.int64)
            keys.append(key)
            ends.append(context)
            grams.append(np.bincount(inverse, minlength=len(key)))
        self.levels = []
        for k in range(self.order):
            count = grams[k]
            if k + 1 < self.order:
                seen = np.bincount(keys[k + 1] // self.size, minlength=len(count))
                count = np.where(keys[k] % self.size == BEGIN, count, seen)
            if k == 0:
                count = np.where(keys[0] == BEGIN, 0, count)  # never written
            self.levels.append(_Level.of(keys[k], ends[k], count, len(keys[k - 1]) if k else 1))
        return self

    def log_prob(self, ids: ArrayLike, offsets: ArrayLike) -> Floats:
        """(total + N,) log p in nats of each row's ids and of its END, row after row.

        Args:
            ids: (total,) as for :meth:`fit`.
            offsets: (N + 1,).

        Raises:
            DataError: an id that is none or BEGIN; names the row.
        """
        assert self.levels, "fit comes first"
        stream, depth = self._stream(ids, offsets)
        events = np.flatnonzero(depth)
        p = np.full(len(events), 1 / (self.size - 1))
        gram = np.zeros(len(stream), np.int64)  # that ends here, of k - 1 ids, -1 if it was never seen
        for k, level in enumerate(self.levels, 1):
            context = gram[events - 1] if k > 1 else np.zeros(len(events), np.int64)
            there = np.flatnonzero((gram >= 0) & (depth >= k - 1))
            found = np.full(len(stream), -1)
            found[there] = level.find(gram[there] * self.size + stream[there - k + 1])
            p = level.mix(context, found[events], p)
            gram = found
        return np.log(p)

    def _stream(self, ids: ArrayLike, offsets: ArrayLike) -> tuple[Ids, Ids]:
        # BEGIN, the ids and END of all rows, and how far each of them is from its BEGIN
        values, ends = np.asarray(ids), np.asarray(offsets, np.int64)
        values = values[ends[0] : ends[-1]].astype(np.int64)
        ends = ends - ends[0]
        bad = np.flatnonzero((values < 0) | (values >= self.size) | (values == BEGIN))
        if len(bad):
            row = int(np.searchsorted(ends, bad[0], side="right")) - 1
            raise DataError(
                f"row {row}: id {values[bad[0]]} cannot be written.   Expected 0 to {self.size - 1}, and not BEGIN, {BEGIN}"
            )
        rows = np.arange(len(ends) - 1)
        starts = ends[:-1] + 2 * rows
        stream = np.full(len(values) + 2 * len(rows), END)
        stream[starts] = BEGIN
        lengths = np.diff(ends)
        stream[np.arange(len(values)) + np.repeat(2 * rows + 1, lengths)] = values
        return stream, np.arange(len(stream)) - np.repeat(starts, lengths + 2)


class _Level(NamedTuple):
    """One order's tables."""

    keys: Ids  # sorted: the number of the gram without its first id, times V, plus that id
    share: Floats  # by gram h w: (c - D(c)) / c(h)
    left: Floats  # by context h: gamma(h)

    @classmethod
    def of(cls, keys: Ids, context: Ids, count: Ids, contexts: int) -> "_Level":
        taken = _discounts(count)[np.minimum(count, 3)]
        total = np.bincount(context, count, contexts)
        seen = total > 0
        # where nothing was seen, all is left
        left = np.divide(np.bincount(context, taken, contexts), total, out=np.ones(contexts), where=seen)
        share = np.divide(count - taken, total[context], out=np.zeros(len(count)), where=seen[context])
        return cls(keys, share, left)

    def find(self, key: Ids) -> Ids:
        place = np.searchsorted(self.keys, key)
        place[place == len(self.keys)] = 0
        if not len(self.keys):
            return np.full(len(key), -1)
        return np.where(self.keys[place] == key, place, -1)

    def mix(self, context: Ids, gram: Ids, lower: Floats) -> Floats:
        # -1: a context or a gram that was never seen; the tables' last entry then stands for nothing
        left, share = np.append(self.left, 1.0), np.append(self.share, 0.0)
        return share[gram] + left[context] * lower


@dataclass
class Unigram(Backoff):
    """How often each id comes, whatever stands before it: the order 1."""

    order: int = field(init=False, default=1)


def tuned_order(train: Rows, val: Rows, size: int, *, orders: Sequence[int] = range(1, 9)) -> Backoff:
    """The model of the order that does best on the validation rows, fitted to the training rows.

    From short to long, until the validation nll no longer falls. Without validation rows the shortest is taken.

    Example:
        >>> coins = np.random.default_rng(0).integers(3, 5, 400)
        >>> tuned_order((coins[:200], [0, 200]), (coins[200:], [0, 200]), 5).order
        1
    """
    best, least = None, np.inf
    for order in sorted(orders):
        model = Backoff(order, size).fit(*train)
        log_p = model.log_prob(*val)
        loss = -float(log_p.mean()) if len(log_p) else np.inf
        if best is not None and not loss < least:
            break
        best, least = model, loss
    if best is None:
        raise ConfigError("n-gram model: no orders to choose from.   Expected orders such as (1, 2, 3)")
    return best


def _discounts(count: Ids) -> Floats:
    n = np.bincount(np.minimum(count, 5), minlength=5)[:5].astype(float)
    if (n[1:5] > 0).all():
        y = n[1] / (n[1] + 2 * n[2])
        d = np.array([0.0, *(i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3))])
        if (d[1:] > 0).all():
            return d
    return np.array([0.0, 0.5, 1.0, 1.5])
