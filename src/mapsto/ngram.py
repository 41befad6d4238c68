"""Counts of n-grams of ragged rows of ids, hashed into the columns of a sparse matrix."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from mapsto.errors import DataError

__all__ = ["ngrams"]


def ngrams(
    values: NDArray,
    offsets: NDArray[np.int64],
    *,
    sizes: Sequence[int] = (1, 2),
    buckets: int = 2**18,
    bound: int | None = None,
) -> sparse.csr_array:
    """(N, F) counts of the n-grams of ragged rows, which never reach over the end of a row.

    An n-gram's column is a hash of its ids. With a ``bound`` the sizes that have few enough n-grams, bound^n, get
    columns of their own, without collisions, and the larger ones are hashed into what is left.

    Args:
        values: (total,) ids, whole numbers not below 0.
        offsets: (N + 1,): row i is ``values[offsets[i]:offsets[i + 1]]``.
        sizes: the n of the n-grams.
        buckets: the most columns; F is less if every n-gram has its own.
        bound: all ids are below it (a vocabulary's size).

    Raises:
        DataError: an id that is negative, or not below the bound; names the row.

    Example:
        >>> ngrams(np.array([1, 0, 1, 1]), np.array([0, 3, 4]), bound=2).toarray()  # 0, 1, 00, 01, 10, 11
        array([[1., 2., 0., 1., 1., 0.],
               [0., 1., 0., 0., 0., 0.]], dtype=float32)
    """
    ids = np.asarray(values)[offsets[0] : offsets[-1]].astype(np.int64)
    row = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))
    bad = np.flatnonzero((ids < 0) | (ids >= (bound or np.inf)))
    if len(bad):
        raise DataError(f"row {row[bad[0]]}: id {ids[bad[0]]} is out of range.   Expected 0 to {(bound or 2**63) - 1}")
    rows, columns, used, left = [], [], 0, buckets
    for n in sorted(sizes):
        starts = np.flatnonzero(row[: max(0, len(row) - n + 1)] == row[n - 1 :])
        grams = [ids[starts + k] for k in range(n)]
        rows.append(row[starts])
        if bound is not None and bound**n <= left // 2:
            columns.append(used + np.ravel_multi_index(grams, (bound,) * n))
            used, left = used + bound**n, left - bound**n
        else:  # as are all larger ones
            columns.append(used + (_hash(grams) % np.uint64(buckets - used)).astype(np.int64))
            left = 0
    place = np.concatenate(rows), np.concatenate(columns).astype(np.int32)
    shape = len(offsets) - 1, used if left else buckets
    return sparse.coo_array((np.ones(len(place[0]), np.float32), place), shape=shape).tocsr()


def _hash(ids: list[NDArray[np.int64]]) -> NDArray[np.uint64]:
    # splitmix64 (Steele et al. 2014), an id at a time
    h = np.full(len(ids[0]), len(ids), np.uint64)
    for v in ids:
        h = (h ^ v.astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h ^= h >> np.uint64(31)
    return h
