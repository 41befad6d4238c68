"""Forecasts beside what came, and beside simple forecasts of the same rows."""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg

from mapsto.inputs.series import SeriesInput
from mapsto.models.mapper import Mapper
from mapsto.nn.step import StepTarget
from mapsto.outputs.series import SeriesOutput
from mapsto.ragged import evenly
from mapsto.tasks.feed import StoreFeed
from mapsto.training.horizon import Average, Linear, Naive, errors, forecast, judged, steps

__all__ = ["begin", "beside", "forecasts", "futures", "measured", "pasts", "seasonal", "stepwise"]

STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4)  # λ, in means of the eigenvalues of XᵀX
ROWS = 20_000

Values = dict[str, float | None]
Beside = tuple[dict[str, Values], NDArray[np.float64] | None]


def forecasts(model: Mapper) -> SeriesOutput | None:
    """The output of a model that forecasts series; None if it does not."""
    return model.output if isinstance(model.output, SeriesOutput) else None


def measured(head: StepTarget, found: Any, name: str, unit: NDArray[np.float64] | None = None) -> Any:
    """The metrics of answers as a function of the rows' weights.

    Args:
        head: of the target.
        found: answers of a model, an event a step (:class:`mapsto.tasks.score.Answers`).
        name: of the target.
        unit: see :func:`mapsto.training.horizon.forecast`.
    """
    arrays, true = found.predicted[name], found.target[name] * head.scale + head.mean
    rows = int(found.row.max(initial=-1)) + 1
    shape = (rows, len(true) // max(1, rows), head.channels)
    value, low, high, true = (x.reshape(shape) for x in (arrays["value"], arrays["low"], arrays["high"], true))
    return partial(forecast, value, true, (low, high), found.nll[name].reshape(shape[:2]).sum(1), unit)


def stepwise(output: SeriesOutput, found: Any) -> list[Values]:
    """The errors of each step, from a model's answers."""
    head, name = output.head, output.name
    shape = (-1, output.horizon, head.channels)
    true = found.target[name] * head.scale + head.mean
    return steps(found.predicted[name]["value"].reshape(shape), true.reshape(shape))


def beside(model: Mapper, train: StoreFeed, val: StoreFeed, test: StoreFeed) -> Beside:
    """Simple forecasts of the same rows, and the unit of ``mase``: the error of the seasonal one on training rows.

    Where the model maps from no series of the target's channels, there is nothing to go on from, and no simple forecast
    but the mean of each step.
    """
    output = forecasts(model)
    assert output is not None
    parts = [(pasts(model, feed), futures(output, feed)) for feed in (train, val, test)]
    (past, y), (val_past, val_y), (test_past, test_y) = parts
    if past.shape[1] == 0:
        return {"mean of each step": judged(Average().fit(y), test_past, test_y, None)}, None
    season = seasonal(model, val)
    unit = errors(season, past, y)
    simple: dict[str, Naive | Linear] = {"last value": Naive(1).fit(val_past, val_y)}
    if season.period > 1:
        simple[f"season of {season.period}"] = season
    linear = Linear().fit(past, y, val_past, val_y)
    if linear.ridge is not None:
        simple["linear"] = linear
    return {name: judged(one, test_past, test_y, unit) for name, one in simple.items()}, unit


@torch.no_grad()
def begin(model: Mapper, train: StoreFeed, val: StoreFeed) -> None:
    """Let a forecast that goes on from a series begin where least squares end; other models stay as they are.

    W = (XᵀPX + λI)⁻¹ XᵀPY over rows and channels, X their last samples and Y what came, in each row's own frame, of unit
    u. P is 1, which suits noise that grows with a series' spread, or u², for noise of one size in all; of both, and of
    some λ, the pair is taken whose error on validation rows is least in the units of all rows.
    """
    output = forecasts(model)
    if output is None or output.linear is None:
        return
    (x, y, unit), (val_x, val_y, val_unit) = (_framed(model, output, feed) for feed in (train, val))
    if len(x) < 2 or not len(val_x):
        return
    least, best = np.inf, None
    for weight in (np.ones_like(unit), unit):
        weighed = weight * x
        gram, right = weighed.T @ weighed, weighed.T @ (weight * y)
        each = np.trace(gram) / len(gram) + 1e-12
        for l2 in STRENGTHS:
            w = linalg.solve(gram + l2 * each * np.eye(len(gram)), right, assume_a="pos")
            error = float(np.abs(val_unit * (val_y - val_x @ w)).mean())
            if error < least:
                least, best = error, w
    if best is None:
        return
    middle = 1.4826 * float(np.median(np.abs(val_y - val_x @ best)))  # σ of a normal distribution
    output.start(torch.from_numpy(best.T).to(output.linear), torch.tensor(max(1e-3, middle)))


def _framed(model: Mapper, output: SeriesOutput, feed: StoreFeed) -> tuple[NDArray, NDArray, NDArray]:
    """(rows · C, K) samples, (rows · C, H) numbers and (rows · C, 1) units, where all numbers of a row are known."""
    name, found = model.names[output.source], []
    some = feed.rows[evenly(len(feed.rows), ROWS)]
    for first in range(0, len(some), 1024):
        batch = feed.batch(some[first : first + 1024])
        frame = model.sources[name].frame(batch[name], output.past)
        assert frame is not None
        unit = frame.unit[:, None]
        y = (output.event(output.name, batch["target"]) - frame.origin[:, None]) / unit
        parts = torch.cat([frame.tail, y, unit], 1).transpose(1, 2).flatten(0, 1).double().cpu().numpy()
        found.append(parts[np.isfinite(parts).all(1)])
    whole = np.concatenate(found) if found else np.zeros((0, output.past + output.horizon + 1))
    return whole[:, : output.past], whole[:, output.past : -1], whole[:, -1:]


def seasonal(model: Mapper, val: StoreFeed) -> Naive:
    """The seasonal forecast whose period does best on validation rows."""
    output = forecasts(model)
    assert output is not None
    return Naive(0).fit(pasts(model, val), futures(output, val))


def futures(output: SeriesOutput, feed: StoreFeed) -> NDArray[np.float64]:
    """(N, H, C) what is true, in the user's units."""
    values = feed.take("target", feed.rows)["values"].dense()[:, 0].astype(np.float64)
    return values * output.head.scale + output.head.mean


def pasts(model: Mapper, feed: StoreFeed) -> NDArray[np.float64]:
    """(N, K, C) what each row ends with, in the user's units; NaN where not known, and before its start.

    Of the series that the output goes on from, or else of the first one of as many channels; K is 0 if there is none.
    """
    output = forecasts(model)
    assert output is not None
    named = [(n, p) for n, p in model.sources.items() if isinstance(p, SeriesInput)]
    fitting = [(n, p) for n, p in named if p.channels == output.head.channels]
    if output.source >= 0:
        name = model.names[output.source]
        fitting = [(n, p) for n, p in named if n == name]
    if not fitting:
        return np.zeros((len(feed.rows), 0, output.head.channels))
    name, part = fitting[0]
    column = feed.take(name, feed.rows)["values"]
    flat, lengths = column.flat()
    longest = int(lengths.max(initial=0))
    patches = np.full((len(lengths), longest, part.patch, part.channels), np.nan)
    place = np.arange(longest) >= longest - lengths[:, None]
    patches[place] = flat
    found = patches.reshape(len(lengths), longest * part.patch, part.channels)
    if part.patch > 1:
        found = _flush(found, part.patch)
    return found * np.array(part.scale) + np.array(part.mean)


def _flush(x: NDArray[np.float64], patch: int) -> NDArray[np.float64]:
    """Rows moved to the right, so that what only fills a last patch up is gone."""
    there = np.logical_or.reduce(np.isfinite(x), axis=2)
    lack = np.minimum(np.argmax(there[:, ::-1], 1), patch - 1)
    at = np.arange(x.shape[1]) - lack[:, None]
    moved = np.take_along_axis(x, np.maximum(at, 0)[..., None], 1)
    return np.where((at >= 0)[..., None], moved, np.nan)
