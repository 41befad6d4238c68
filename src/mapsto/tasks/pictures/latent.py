"""What an autoencoder has learned: new rows, rows said again, the plane of z, what each dimension says and costs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from mapsto.errors import MapstoError
from mapsto.outputs.image import ImageOutput
from mapsto.outputs.series import SeriesOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.ragged import evenly
from mapsto.stream import stream
from mapsto.tasks.imagined import grid, pictures
from mapsto.tasks.latent import evidence, reworked
from mapsto.tasks.pictures import table
from mapsto.tasks.pictures.picture import Gallery, Picture
from mapsto.tasks.pictures.style import BLUE, GREY, ORANGE, SERIES, figure, styled
from mapsto.tasks.run import Run
from mapsto.training.evidence import Evidence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["seen"]

ROWS = 1000
"""Test rows whose z are shown."""
PANELS = 12
"""Series that are shown."""
DIMS = 12
"""Dimensions that are moved along, those of the largest KL first."""


def seen(run: Run, made: Gallery) -> None:
    """All pictures of an autoencoder."""
    model = run.autoencoder
    test = run.feed("test")
    found = evidence(model, test, ks=(1,), seed=run.config.seed)
    if found.kl_dims is not None:
        caption = (
            "The mean KL of each dimension over the test rows, the largest first; above the dashed line (0.1 nat) it says "
            "something of the rows. What lies below is as good as not there."
        )
        made.pictures.append(Picture("kl", "What each latent dimension says", caption, bars(found)))
    labels = _labels(run, np.concatenate(test.once()))
    drawn = plane(found, labels)
    if drawn is not None:
        caption = "E[z] of test rows, in the two dimensions of the largest spread; every colour is a label of the data."
        caption = caption if labels is not None else caption.replace("; every colour is a label of the data", "")
        made.pictures.append(Picture("plane", "Where rows lie", caption, drawn))
    if isinstance(model.decoder.output, ImageOutput):
        _images(run, made, found)
    if isinstance(model.decoder.output, VectorOutput):
        table.seen(run, made)
    if isinstance(model.decoder.output, SeriesOutput):
        _series(run, made, model.decoder.output)


def _images(run: Run, made: Gallery, found: Evidence) -> None:
    model = run.autoencoder
    test = run.feed("test")
    rows = test.rows[evenly(len(test.rows), 12)]
    with torch.inference_mode():
        batch = reworked(model, test.batch(rows), rows)
        belief = model.believe(batch)
        again = pictures(model, belief.mean)
        true = batch["target"]["pixels"].cpu().numpy() / 255
        prior = pictures(model, model.prior.sample(48, stream(run.config.seed, "imagine")).to(run.device))
        order = np.argsort(-found.means.std(0), kind="stable")[:DIMS]
        steps = torch.linspace(-2.5, 2.5, 11)
        base = torch.from_numpy(found.means.mean(0)).float()
        z = base.repeat(len(order) * len(steps), 1)
        for i, j in enumerate(order):
            z[i * len(steps) : (i + 1) * len(steps), j] = steps
        moved = pictures(model, z.to(run.device))
        apart = int(torch.cdist(belief.mean, belief.mean).argmax())
        ends = belief.mean[[apart // len(rows), apart % len(rows)]]
        line = pictures(model, torch.lerp(ends[:1], ends[1:], torch.linspace(0, 1, 12, device=run.device)[:, None]))
    caption = "Above: test rows as the model receives them. Below: what it says of E[z], the mean of every pixel."
    made.pictures.append(Picture("again", "Said again", caption, sheet(np.concatenate([true, again]), len(rows))))
    caption = "The mean of every pixel for draws of the prior: what the model takes for likely."
    made.pictures.append(Picture("samples", "New ones", caption, sheet(prior, 12)))
    caption = (
        "A row a dimension, those that differ most between test rows first; from -2.5 to 2.5, all others at their mean."
    )
    made.pictures.append(Picture("dimensions", "Along each dimension", caption, sheet(moved, len(steps))))
    caption = "The straight line between the two of these rows that are farthest apart."
    made.pictures.append(Picture("between", "From one to another", caption, sheet(line, 12)))


def _series(run: Run, made: Gallery, output: SeriesOutput) -> None:
    model, test = run.autoencoder, run.feed("test")
    rows = test.rows[evenly(len(test.rows), PANELS)]
    with torch.inference_mode():
        batch = test.batch(rows)
        said = output.predict(model.say(model.believe(batch).mean))[output.name]
        true = output.event(output.name, batch["target"]).double().cpu().numpy() * output.head.scale + output.head.mean
        new = output.predict(model.say(model.prior.sample(PANELS, stream(run.config.seed, "imagine")).to(run.device)))
    caption = "Test rows (dots), and what the model says of E[z] (lines), with an interval of 95 % for each step."
    made.pictures.append(Picture("again", "Said again", caption, lines(said, true)))
    caption = "Series that the model says of draws of the prior: the mean of every step, with its interval of 95 %."
    made.pictures.append(Picture("samples", "New ones", caption, lines(new[output.name], None)))


def _labels(run: Run, rows: NDArray[np.int64]) -> list[str] | None:
    """What the data call the rows, by the column of --to or a usual one."""
    try:
        return run.label(rows)
    except MapstoError:
        return None


@styled
def bars(found: Evidence) -> "Figure":
    """KL by dimension."""
    assert found.kl_dims is not None
    kl = np.sort(found.kl_dims.mean(0))[::-1]
    drawn = figure(2.8)
    axes = drawn.subplots()
    axes.bar(np.arange(1, len(kl) + 1), kl, color=BLUE, width=0.8)
    axes.axhline(0.1, color=ORANGE, linewidth=1, linestyle=(0, (4, 3)))
    axes.set(xlabel="latent dimension", ylabel="KL (nats)", xlim=(0.3, len(kl) + 0.7))
    axes.set_title(f"{int((kl > 0.1).sum())} of {len(kl)} dimensions are in use; {kl.sum():.1f} nats in all")
    axes.grid(axis="y")
    return drawn


def plane(found: Evidence, labels: list[str] | None) -> "Figure | None":
    """E[z] in two dimensions; None if there is one only."""
    if found.means.shape[1] < 2 or len(found.means) < 3:
        return None
    return _plane(found, labels)


@styled
def _plane(found: Evidence, labels: list[str] | None) -> "Figure":
    rows = evenly(len(found.means), ROWS)
    one, two = np.argsort(-found.means.std(0), kind="stable")[:2]
    x, y = found.means[rows, one], found.means[rows, two]
    drawn = figure(5.6)
    axes = drawn.subplots()
    if labels is None:
        axes.scatter(x, y, s=10, color=BLUE, alpha=0.6, linewidth=0)
    else:
        import matplotlib

        named = np.array([labels[row] for row in rows])
        kinds = sorted(set(named))[:20]
        colours = [matplotlib.colormaps["tab10" if len(kinds) <= 10 else "tab20"](i) for i in range(20)]
        for name, colour in zip(kinds, colours, strict=False):
            axes.scatter(
                x[named == name], y[named == name], s=10, color=colour, alpha=0.7, linewidth=0, label=name[:20]
            )
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=2)
    axes.set(xlabel=f"z {one + 1}", ylabel=f"z {two + 1}", aspect="equal")
    axes.axhline(0, color=GREY, linewidth=0.5, zorder=0)
    axes.axvline(0, color=GREY, linewidth=0.5, zorder=0)
    return drawn


@styled
def lines(said: Mapping[str, NDArray], true: NDArray | None) -> "Figure":
    """Series side by side, on one scale."""
    count, steps, channels = said["value"].shape
    across = min(4, count)
    down = -(-count // across)
    drawn = figure(0.3 + 1.4 * down)
    panels = list(drawn.subplots(down, across, squeeze=False, sharex=True, sharey=True).flat)
    at = np.arange(steps)
    for i, axes in enumerate(panels):
        if i >= count:
            axes.set_axis_off()
            continue
        for c in range(channels):
            colour = SERIES[c % len(SERIES)]
            axes.fill_between(at, said["low"][i, :, c], said["high"][i, :, c], color=colour, alpha=0.15, linewidth=0)
            axes.plot(at, said["value"][i, :, c], color=colour, linewidth=1.2)
            if true is not None:
                axes.plot(at, true[i, :, c], ".", color=colour if channels > 1 else GREY, markersize=3)
    return drawn


@styled
def sheet(shown: NDArray, columns: int) -> "Figure":
    """Pictures side by side."""
    pixels = grid(shown, columns, scale=3)
    drawn = figure(8.0 * pixels.shape[0] / pixels.shape[1])
    axes = drawn.subplots()
    axes.imshow(pixels, interpolation="nearest")
    axes.set_axis_off()
    return drawn
