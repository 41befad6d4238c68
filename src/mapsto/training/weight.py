"""Rows that count more or less: what every metric does with the weights of a resampling."""

import numpy as np
from numpy.typing import NDArray

from mapsto.errors import DataError

__all__ = ["Floats", "Resampled", "Values", "ratio", "report", "weighted", "weights"]

Floats = NDArray[np.float64]
Values = dict[str, float | None]
Resampled = dict[str, Floats]


def weights(weight: Floats | None, rows: int) -> Floats:
    """(R, N) lines of weights from (..., N); one line of ones from None.

    Raises:
        DataError: another number of rows, or a weight below 0.
    """
    if weight is None:
        return np.ones((1, rows))
    w = np.asarray(weight, float)
    if w.shape[-1:] != (rows,) or not (w >= 0).all():
        raise DataError(f"weight: expected (..., {rows}) numbers that are not negative, got shape {w.shape}")
    return w.reshape(int(np.prod(w.shape[:-1])), rows)


def ratio(a: Floats, b: Floats) -> Floats:
    """The quotient a / b, NaN where b is not above 0."""
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.full(a.shape, np.nan), where=b > 0)


def weighted(w: Floats, values: NDArray, parts: NDArray | None = None) -> Floats:
    """(R,) the sum over rows of w values / that of w parts; infinite where a row that counts has an infinite value.

    Args:
        w: (R, N).
        values: (N,) sums, a row each.
        parts: (N,) of how many parts the sum of a row is; without it, of one.
    """
    finite = np.isfinite(values)
    found = ratio(w @ np.where(finite, values, 0.0), w.sum(1) if parts is None else w @ parts)
    return found if finite.all() else np.where(w @ ~finite > 0, np.inf, found)  # 0 * inf would be NaN


def report(values: Resampled, weight: Floats | None) -> Values | Resampled:
    """Values (R,) in the shape of the weights that were given, or as numbers and None if none were."""
    if weight is not None:
        shape = np.shape(weight)[:-1]
        return {name: value.reshape(shape) for name, value in values.items()}
    return {name: None if np.isnan(value[0]) else float(value[0]) for name, value in values.items()}
