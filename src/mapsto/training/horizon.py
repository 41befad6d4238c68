"""How far forecasts are off, and the simple forecasts that stand beside: nothing changes, a season returns, a line.

A forecast of N rows is (N, H, C): H steps of C channels. What is not known is NaN and counts nowhere.
"""

from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapsto.errors import DataError
from mapsto.ragged import evenly
from mapsto.training.baseline import Ridge, tuned
from mapsto.training.weight import Floats, Resampled, Values, ratio, report, weights

__all__ = ["Average", "Linear", "Naive", "ending", "errors", "forecast", "judged", "steps"]

HALF = 1.959963984540054  # σ to either side that hold 95 % of a normal distribution
MOST = 2000  # rows that a period is chosen on
WIDE = 1024  # features of a line, at most: what a ridge solves in closed form
ROWS = 20_000  # rows that a line is fitted to, at most


@overload
def forecast(
    mean: ArrayLike, target: ArrayLike, span: tuple[ArrayLike, ArrayLike], nll: ArrayLike, unit: ArrayLike | None = None
) -> Values: ...
@overload
def forecast(
    mean: ArrayLike,
    target: ArrayLike,
    span: tuple[ArrayLike, ArrayLike],
    nll: ArrayLike,
    unit: ArrayLike | None = None,
    *,
    weight: Floats,
) -> Resampled: ...
def forecast(
    mean: ArrayLike,
    target: ArrayLike,
    span: tuple[ArrayLike, ArrayLike],
    nll: ArrayLike,
    unit: ArrayLike | None = None,
    *,
    weight: Floats | None = None,
) -> Values | Resampled:
    """Metrics of forecasts, over all known numbers of a channel, and then the mean of the channels.

    - ``mae``: the mean of |mean - target|.
    - ``rmse``: the square root of the mean of (mean - target)^2.
    - ``mase``: ``mae`` of a channel divided by its ``unit``; None without.
    - ``coverage``: the share of the known numbers that lie in their interval of 95 %.
    - ``nll``: nats a number, over all channels together.

    Args:
        mean: (N, H, C).
        target: (N, H, C).
        span: (N, H, C) low ends and high ends.
        nll: (N,) -log p of all that is known of a row.
        unit: (C,) the mean absolute error of a simple forecast of training rows.
        weight: (..., N), one a row; without it every row counts once.

    Raises:
        DataError: shapes that do not fit.

    Reference: mase: Hyndman and Koehler, Another look at measures of forecast accuracy, 2006.

    Example:
        >>> y = np.array([[[1.0], [2.0]]])
        >>> forecast(y + 1, y, (y - 2, y + 2), [0.5], [4.0])["mase"]
        0.25
    """
    said, true = np.asarray(mean, float), np.asarray(target, float)
    low, high = (np.asarray(end, float) for end in span)
    if said.ndim != 3 or {said.shape} != {true.shape, low.shape, high.shape}:
        raise DataError(f"forecasts {said.shape} of targets {true.shape}.   Expected (rows, steps, channels) of both")
    known = np.isfinite(true)
    error = np.where(known, said - np.where(known, true, 0), 0)
    inside = known & (low <= np.where(known, true, 0)) & (np.where(known, true, 0) <= high)
    w = weights(weight, len(true))
    count = w @ known.sum(1).astype(float)
    mae = ratio(w @ np.abs(error).sum(1), count)
    empty = np.full(len(w), np.nan)
    values = {
        "mae": _channels(mae),
        "rmse": _channels(np.sqrt(ratio(w @ (error**2).sum(1), count))),
        "mase": empty if unit is None else _channels(mae / np.asarray(unit, float)),
        "coverage": _channels(ratio(w @ inside.sum(1).astype(float), count)),
        "nll": ratio(w @ np.asarray(nll, float), count.sum(1)),
    }
    return report(values, weight)


def steps(mean: ArrayLike, target: ArrayLike) -> list[dict[str, float | None]]:
    """``mae`` and ``rmse`` of each step, the mean of the channels."""
    error = np.asarray(mean, float) - np.asarray(target, float)
    found = []
    for one in np.moveaxis(error, 1, 0):
        known = np.isfinite(one)
        count = known.sum(0)[None].astype(float)
        one = np.where(known, one, 0)
        mae, square = ratio(np.abs(one).sum(0)[None], count), ratio((one**2).sum(0)[None], count)
        pair = {"mae": float(_channels(mae)[0]), "rmse": float(_channels(np.sqrt(square))[0])}
        found.append({k: v if np.isfinite(v) else None for k, v in pair.items()})
    return found


def _channels(values: Floats) -> Floats:
    defined = ~np.isnan(values)
    return ratio(np.where(defined, values, 0.0).sum(-1), defined.sum(-1).astype(float))


@dataclass
class Naive:
    """What was one period before is again: y_h = x_{T - p + (h mod p)}; with p = 1, the last number.

    A number that is not known there is the last one that is.

    Attributes:
        period: p; 0 to choose it on validation rows.
    """

    period: int = 1
    sigma: Floats | None = None

    def fit(self, past: Floats, y: Floats) -> "Naive":
        """Choose the period with the least mean absolute error, the shortest of equal ones, and measure the spread.

        Args:
            past: (N, K, C) what each row ends with, NaN where not known and before its start.
            y: (N, H, C).
        """
        some = evenly(len(y), MOST)
        if not self.period and len(y):
            width = max(1, past.shape[1])
            worth = [_mae(Naive(p).mean(past[some], y.shape[1]), y[some]) for p in range(1, width + 1)]
            self.period = 1 + int(np.argmin(np.nan_to_num(worth, nan=np.inf)))
        self.period = max(1, self.period)
        self.sigma = _spread(y - self.mean(past, y.shape[1]))
        return self

    def mean(self, past: Floats, horizon: int) -> Floats:
        """(N, H, C)."""
        last = ending(past)[:, None]
        if past.shape[1] < self.period:
            return np.repeat(last, horizon, 1)
        found = past[:, past.shape[1] - self.period + np.arange(horizon) % self.period]
        return np.where(np.isfinite(found), found, last)


@dataclass
class Average:
    """The mean of each step over the training rows, whatever the row."""

    center: Floats | None = None
    sigma: Floats | None = None

    def fit(self, y: Floats) -> "Average":
        """Average (N, H, C)."""
        known = np.isfinite(y)
        self.center = np.where(known, y, 0).sum(0) / np.maximum(1, known.sum(0))
        self.sigma = _spread(y - self.center)
        return self

    def mean(self, past: Floats, horizon: int) -> Floats:
        """(N, H, C)."""
        assert self.center is not None, "not fitted"
        return np.broadcast_to(self.center, (len(past), *self.center.shape))


@dataclass
class Linear:
    """Each step less the last number is a linear function of the samples before it less the last number.

    Ridge regression, its strength chosen on validation rows; of histories of unequal length what is missing is 0, as if
    nothing had changed.

    Reference: Zeng et al., Are Transformers effective for time series forecasting?, 2023 (NLinear).
    """

    ridge: Ridge | None = None
    sigma: Floats | None = None

    def fit(self, past: Floats, y: Floats, val_past: Floats, val_y: Floats) -> "Linear":
        """Fit to (N, K, C) and (N, H, C); rows of which some step is not known are left out."""
        x, target = self._rows(past, y)
        val = self._rows(val_past, val_y)
        if len(target) >= 2:
            self.ridge = tuned(Ridge(), x, target, *val)
            self.sigma = np.asarray(self.ridge.sigma).reshape(y.shape[1:])
        return self

    def mean(self, past: Floats, horizon: int) -> Floats:
        """(N, H, C)."""
        assert self.ridge is not None, "too few rows of which everything is known"
        last = ending(past)[:, None]
        said = self.ridge.predict(self._features(past)).mean
        return said.reshape(len(past), horizon, past.shape[2]) + last

    def _features(self, past: Floats) -> Floats:
        channels = past.shape[2]
        moved = past[:, -max(1, WIDE // channels) :] - ending(past)[:, None]
        return np.nan_to_num(moved, nan=0.0).reshape(len(past), -1)

    def _rows(self, past: Floats, y: Floats) -> tuple[Floats, Floats]:
        whole = np.flatnonzero(np.isfinite(y).all((1, 2)))
        whole = whole[evenly(len(whole), ROWS)]
        return self._features(past[whole]), (y[whole] - ending(past[whole])[:, None]).reshape(len(whole), -1)


def judged(simple: Naive | Linear | Average, past: Floats, y: Floats, unit: Floats | None) -> dict[str, Any]:
    """The metrics of a simple forecast."""
    mean = simple.mean(past, y.shape[1])
    assert simple.sigma is not None, "not fitted"
    z = (y - mean) / simple.sigma
    nll = np.nansum(z**2 / 2 + np.log(simple.sigma) + np.log(2 * np.pi) / 2, (1, 2))
    half = HALF * np.broadcast_to(simple.sigma, mean.shape)
    return forecast(mean, y, (mean - half, mean + half), nll, unit)


def ending(past: Floats) -> Floats:
    """(N, C) the last known number of each channel; 0 if none is."""
    known = np.isfinite(past)
    at = past.shape[1] - 1 - np.argmax(known[:, ::-1], axis=1) if past.shape[1] else np.zeros(past[:, 0].shape, int)
    found = np.take_along_axis(past, at[:, None], 1)[:, 0]
    return np.where(known.any(1), found, 0.0)


def errors(simple: Naive, past: Floats, y: Floats) -> Floats:
    """(C,) the mean absolute error of each channel, never zero."""
    off = np.abs(y - simple.mean(past, y.shape[1]))
    known = np.isfinite(off)
    mae = np.where(known, off, 0).sum((0, 1)) / np.maximum(1, known.sum((0, 1)))
    return np.where(mae > 0, mae, 1.0)


def _mae(said: Floats, true: Floats) -> float:
    known = np.isfinite(true)
    scale = np.where(known, np.abs(np.where(known, true, 0)), 0).sum((0, 1)) + 1e-300  # channels of any unit
    return float((np.where(known, np.abs(said - np.where(known, true, 0)), 0).sum((0, 1)) / scale).sum())


def _spread(residual: Floats) -> NDArray[np.float64]:
    known = np.isfinite(residual)
    square = np.where(known, residual, 0) ** 2
    each = square.sum(0) / np.maximum(1, known.sum(0))
    whole = square.sum((0, 1)) / np.maximum(1, known.sum((0, 1)))
    sigma = np.sqrt(np.where(known.sum(0) > 1, each, whole))
    return np.maximum(sigma, 1e-6 * np.where(whole > 0, np.sqrt(whole), 1.0))
