"""What an autoencoder of a table has learned: its columns beside the real ones, how they go together, hidden cells guessed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mapsto.nn.target import LabelTarget, NumberTarget
from mapsto.outputs.vector import KNOWN, VectorOutput
from mapsto.ragged import evenly
from mapsto.tasks.holes import guessed
from mapsto.tasks.imagined import cells, latent
from mapsto.tasks.pictures.picture import Gallery, Picture
from mapsto.tasks.pictures.style import BLUE, GREY, ORANGE, figure, named, plain, styled
from mapsto.tasks.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["seen"]

COLUMNS = 12
"""Columns that are drawn, evenly chosen where there are more."""
DOTS = 1500
"""Hidden cells that are drawn."""
BINS = 24


def seen(run: Run, made: Gallery) -> None:
    """All pictures that only tables have."""
    output = run.autoencoder.decoder.output
    assert isinstance(output, VectorOutput)
    real = _real(run, output)
    rows = max(len(next(iter(real.values()))), 1000)
    drawn = cells(run.autoencoder, latent(run, None, None, rows, run.config.seed), seed=run.config.seed)
    new = {name: np.array([row[name] for row in drawn]) for name in real}
    caption = (
        f"Every column of the test rows (grey) and of {rows} rows drawn from the model (blue line, or right bar): a column "
        "that it has not learned stands apart."
    )
    made.pictures.append(Picture("columns", "Columns, real and drawn", caption, _columns(output, real, new)))
    numbers = [n for n, h in output.targets.items() if isinstance(h, NumberTarget) and len(h.mean) == 1]
    if len(numbers) > 1:
        caption = (
            "How columns go together, from -1 (orange) over 0 (white) to 1 (blue): the correlations of the test rows, and of "
            "rows drawn from the model."
        )
        made.pictures.append(
            Picture("together", "Correlations, real and drawn", caption, _together(numbers, real, new))
        )
    found = guessed(run.autoencoder, run.feed("test"), seed=run.config.seed)
    points = _points(output, found)
    if len(points):
        caption = (
            "Cells of test rows that were hidden, in deviations of their column: what they are, and what the model guesses "
            "from the others, with its interval of 95 %. Orange are those whose interval misses the truth."
        )
        made.pictures.append(Picture("guessed", "Hidden cells, guessed", caption, _guesses(points)))


def _real(run: Run, output: VectorOutput) -> dict[str, NDArray[Any]]:
    """The known values of test rows by column: NaN, or no label, where there is none."""
    test = run.feed("test")
    taken = test.take("target", test.rows)
    known = taken[KNOWN].dense()[:, 0]
    found: dict[str, NDArray[Any]] = {}
    for i, (name, head) in enumerate(output.targets.items()):
        event = taken[name].dense()[:, 0]
        if isinstance(head, LabelTarget):
            found[name] = np.array([head.classes[e] if k else None for e, k in zip(event, known[:, i], strict=True)])
        elif isinstance(head, NumberTarget) and len(head.mean) == 1:
            found[name] = np.where(known[:, i], event[:, 0] * head.scale[0] + head.mean[0], np.nan)
    return found


@styled
def _columns(output: VectorOutput, real: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]) -> "Figure":
    names = [list(real)[i] for i in evenly(len(real), COLUMNS)]
    across = min(4, len(names))
    down = -(-len(names) // across)
    drawn = figure(0.4 + 1.7 * down)
    panels = list(drawn.subplots(down, across, squeeze=False).flat)
    for axes, name in zip(panels, names, strict=False):
        head = output.targets[name]
        if isinstance(head, LabelTarget):
            there = [x for x in real[name] if x is not None]
            shown = sorted(set(there), key=lambda c: -there.count(c))[:8]
            at = np.arange(len(shown))
            for offset, values, colour in ((-0.2, there, GREY), (0.2, list(new[name]), BLUE)):
                axes.bar(at + offset, [values.count(c) / max(1, len(values)) for c in shown], 0.4, color=colour)
            named(axes.xaxis, shown, limit=8, size=7.0, turn=True)
        else:
            there = real[name][~np.isnan(real[name])]
            ends = np.quantile(np.concatenate([there, new[name]]), (0.002, 0.998))
            bins = np.linspace(ends[0], max(ends[1], ends[0] + 1e-9), BINS + 1)
            axes.hist(there, bins, density=True, color=GREY, alpha=0.45)
            axes.hist(new[name], bins, density=True, color=BLUE, histtype="step", linewidth=1.4)
        axes.set_title(plain(name, 24))
        axes.set_yticks([])
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    return drawn


@styled
def _together(names: list[str], real: Mapping[str, NDArray[Any]], new: Mapping[str, NDArray[Any]]) -> "Figure":
    from matplotlib.colors import LinearSegmentedColormap

    scale = LinearSegmentedColormap.from_list("correlation", [ORANGE, "#ffffff", BLUE])
    shown = [names[i] for i in evenly(len(names), 3 * COLUMNS)]
    drawn = figure(4.4)
    panels = drawn.subplots(1, 2)
    for axes, title, of in zip(panels, ("test rows", "drawn rows"), (real, new), strict=True):
        image = axes.imshow(_correlation(np.stack([of[n] for n in shown])), cmap=scale, vmin=-1, vmax=1)
        axes.set_title(title)
        named(axes.xaxis, shown, limit=16, size=7.0, turn=True)
        named(axes.yaxis, shown if of is real else [""] * len(shown), limit=16, size=7.0)
    drawn.colorbar(image, ax=panels, shrink=0.7)
    return drawn


def _correlation(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of rows of numbers, by the pairs that are known."""
    return np.asarray(np.ma.corrcoef(np.ma.masked_invalid(x)).filled(0.0))


def _points(output: VectorOutput, found: Mapping[str, Mapping[str, NDArray[Any]]]) -> NDArray[np.float64]:
    """(N, 4): truth, guess, low and high of every hidden number."""
    parts = [np.zeros((0, 4))]
    for name, head in output.targets.items():
        if isinstance(head, NumberTarget):
            hidden = found[name]["hidden"]
            each = [(found[name][k][hidden] - head.mean) / head.scale for k in ("truth", "value", "low", "high")]
            parts.append(np.stack([e.reshape(-1) for e in each], 1))
    points = np.concatenate(parts)
    return points[evenly(len(points), DOTS)]


@styled
def _guesses(points: NDArray[np.float64]) -> "Figure":
    truth, value, low, high = points.T
    drawn = figure(5.0)
    axes = drawn.subplots()
    missed = (truth < low) | (truth > high)
    for some, colour in ((~missed, BLUE), (missed, ORANGE)):
        axes.vlines(truth[some], low[some], high[some], color=colour, alpha=0.25, linewidth=0.8)
        axes.scatter(truth[some], value[some], s=7, color=colour, linewidth=0)
    ends = [float(truth.min()), float(truth.max())]
    axes.plot(ends, ends, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set(xlabel="truth (deviations)", ylabel="guess", aspect="equal")
    rmse = float(np.sqrt(np.mean((value - truth) ** 2)))
    axes.set_title(f"RMSE {rmse:.2f}; {1 - missed.mean():.0%} lie in their interval of 95 %")
    return drawn
