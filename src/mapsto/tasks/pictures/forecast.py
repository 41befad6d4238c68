"""Forecasts beside what came: some test rows, the surest and the least sure steps, and how errors grow with the horizon."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapsto.ragged import evenly
from mapsto.tasks.forecast import forecasts, futures, pasts, seasonal
from mapsto.tasks.pictures.picture import Gallery, Picture
from mapsto.tasks.pictures.style import BLUE, GREY, INK, ORANGE, figure, plain, styled
from mapsto.tasks.run import Run
from mapsto.tasks.score import Answers
from mapsto.training.horizon import Naive, steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ahead", "draw_ahead", "draw_steps"]

ROWS = 6
CHANNELS = 3


def ahead(run: Run, made: Gallery, found: Answers) -> None:
    """The pictures of a model that forecasts series."""
    output = forecasts(run.model)
    assert output is not None
    assert made.data is not None
    test, name = run.feed("test"), output.name
    shape = (len(test.rows), output.horizon, output.head.channels)
    said = {key: array.reshape(shape) for key, array in found.predicted[name].items()}
    past, true = pasts(run.model, test), futures(output, test)
    season = seasonal(run.model, run.feed("val")) if past.shape[1] else None
    nll = found.nll[name].reshape(shape[:2]).sum(1)
    # From the row that was told best to the one that surprised most, in even steps of their order.
    order = np.argsort(nll, kind="stable")
    picked = order[evenly(len(order), ROWS)]
    titles = ["{} row {}".format(*made.data.places[row]) for row in test.rows[picked]]
    beside = None if season is None else season.mean(past[picked], output.horizon)
    rows = {key: array[picked] for key, array in said.items()}
    caption = (
        "Test rows, from the one whose future was told best to the one that surprised the model most. Black is what was "
        "known and what came; blue is the mean that was said, its shade the interval of 95 %."
    )
    if season is not None:
        how = "the last number" if season.period == 1 else f"what was {season.period} samples before"
        caption += f" Grey, dashed: {how}, again."
    if shape[2] > CHANNELS:
        caption += f" The first {CHANNELS} of {shape[2]} channels."
    drawn = draw_ahead(past[picked], true[picked], rows, beside, titles)
    made.pictures.append(Picture("forecasts", "What was said would come, and what came", caption, drawn))
    if output.horizon > 1:
        lines = {"this model": steps(said["value"], true)}
        if season is not None:
            lines |= {"last value": steps(Naive(1).mean(past, output.horizon), true)}
        if season is not None and season.period > 1:
            lines |= {f"season of {season.period}": steps(season.mean(past, output.horizon), true)}
        caption = "Root mean square error of each step on the test rows, the mean over channels."
        errors = {line: [one["rmse"] for one in values] for line, values in lines.items()}
        made.pictures.append(Picture("steps", "How errors grow with the horizon", caption, draw_steps(errors)))


@styled
def draw_ahead(
    past: NDArray, true: NDArray, said: dict[str, NDArray], beside: NDArray | None, titles: list[str]
) -> "Figure":
    """A line of axes a row, one a channel.

    Args:
        past: (N, K, C), NaN where nothing is known.
        true: (N, H, C).
        said: ``value``, ``low`` and ``high``, each (N, H, C).
        beside: (N, H, C) of a simple forecast.
        titles: of the rows.
    """
    rows, horizon, channels = true.shape
    shown = min(channels, CHANNELS)
    drawn = figure(0.2 + 1.55 * rows)
    grid = drawn.subplots(rows, shown, squeeze=False)
    after = np.arange(1, horizon + 1)
    kept = min(past.shape[1], max(3 * horizon, 24))
    before = np.arange(1 - kept, 1)
    for i, line in enumerate(grid):
        for c, axes in enumerate(line):
            axes.axvline(0.5, color=GREY, linewidth=0.6)
            axes.fill_between(after, said["low"][i, :, c], said["high"][i, :, c], color=BLUE, alpha=0.18, linewidth=0)
            if beside is not None:
                axes.plot(after, beside[i, :, c], color=GREY, linestyle="--", linewidth=1.1)
            mark = {"marker": "." if horizon < 3 else "", "markersize": 4}
            axes.plot(after, said["value"][i, :, c], color=BLUE, **mark)
            axes.plot(before, past[i, past.shape[1] - kept :, c], color=INK, linewidth=1.0)
            axes.plot(after, true[i, :, c], color=INK, linewidth=1.0, **mark)
            axes.margins(x=0.01)
            if c == 0:
                axes.set_title(plain(titles[i], 60))
            elif i == 0:
                axes.set_title(f"channel {c + 1}")
    for axes in grid[-1]:
        axes.set_xlabel("steps from the last known sample")
    return drawn


@styled
def draw_steps(errors: dict[str, list[Any]]) -> "Figure":
    """A line a model: its error at each step."""
    drawn = figure(2.6)
    axes = drawn.subplots()
    colors: dict[str, str] = dict(zip(errors, (BLUE, GREY, ORANGE), strict=False))
    for name, values in errors.items():
        line: ArrayLike = np.array([np.nan if v is None else v for v in values], float)
        at = np.arange(1, len(values) + 1)
        axes.plot(at, line, color=colors[name], marker="." if len(values) < 60 else "", label=plain(name))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("RMSE")
    axes.legend(loc="best")
    return drawn
