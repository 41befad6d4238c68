"""Who comes when: batches of rows of similar length, as a pure function of (seed, epoch)."""

import numpy as np
from numpy.typing import NDArray

from mapsto.errors import ConfigError
from mapsto.stream import stream_numpy

__all__ = ["batches"]

WINDOW = 50  # batches to a window: more waste less padding, fewer mix the rows better


def batches(
    lengths: NDArray[np.int64],
    *,
    tokens: int | None = None,
    rows: int | None = None,
    seed: int,
    epoch: int,
    shuffle: bool = True,
) -> list[NDArray[np.int64]]:
    """Every row exactly once, in batches with little padding.

    A permutation of the rows is cut into windows of some fifty batches; a window is sorted by length (ties stay in the
    order of the permutation) and cut into batches of at most ``rows`` rows and ``tokens`` places, count x longest (a
    row longer than that comes alone); then the batches are shuffled. Without ``shuffle`` all rows are one window, in
    order of length, and the batches stay in order; the caller puts the answers back.

    Args:
        lengths: (rows,) items of each row.
        tokens: the budget of places of a batch, padding included.
        rows: the most rows of a batch.
        seed: the run's seed.
        epoch: counted from 0.
        shuffle: False for evaluation.

    Raises:
        ConfigError: neither a budget nor a number of rows, or less than one.
    """
    if (tokens is None and rows is None) or (tokens is not None and tokens < 1) or (rows is not None and rows < 1):
        raise ConfigError(f"a batch of {tokens} tokens and {rows} rows: expected at least one of both, 1 or more.")
    count = len(lengths)
    if not count:
        return []
    lengths = np.asarray(lengths)
    generator = stream_numpy(seed, "order", epoch)
    if shuffle:
        order = generator.permutation(count)
        usual = rows if tokens is None else min(rows or count, max(1, int(tokens / max(1.0, float(lengths.mean())))))
        window = WINDOW * (usual or 1)
        key = np.arange(count) // window * (int(lengths.max()) + 1) + lengths[order]
        order = order[np.argsort(key, kind="stable")]
    else:
        order, window = np.argsort(lengths, kind="stable"), count
    if tokens is None:
        assert rows is not None
        cuts = np.arange(rows, count, rows)
    else:
        cuts = budget(lengths[order], window, tokens, rows or count)
    parts = np.split(order, cuts)
    return [parts[i] for i in generator.permutation(len(parts))] if shuffle else parts


def budget(lengths: NDArray[np.int64], window: int, tokens: int, rows: int) -> NDArray[np.int64]:
    # Within a window lengths rise, so count x longest rises too, and each cut is the first place where it is too much.
    lengths = np.maximum(lengths, 1)
    starts = []
    place = np.arange(1, min(rows, tokens, len(lengths)) + 1)
    at, count = 0, len(lengths)
    while at < count:
        end = min(at + min(rows, max(1, tokens // int(lengths[at]))), (at // window + 1) * window, count)
        fits = lengths[at:end] * place[: end - at] <= tokens
        at += max(1, end - at if fits[-1] else int(fits.argmin()))
        starts.append(at)
    return np.array(starts[:-1], np.int64)
