"""One view on one pair of axes, with or without the weight that each of its items got.

Weights come as multiples of the even share: 1 is what every item would get if all got the same.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapsto.tasks.pictures.style import BLUE, GREY, INK, ORANGE, PALE, SERIES, blank, fade, monospace, plain
from mapsto.tasks.pictures.text import columns, joined, visible
from mapsto.tasks.pictures.view import ImageView, SeriesView, TokensView, VectorView, View

__all__ = ["draw", "height", "length", "margins", "note"]

FONT = 8.0
COLUMN = 0.602 * FONT / 72
"""Inches of a letter of the fixed-width font."""

LINE = 0.2
LINES = 6
CELLS = 24
TALL = 1.35


def height(view: View, width: float, *, weighed: bool) -> float:
    """Inches that a view needs at this width, its margins included."""
    bottom = margins(view)[2]
    if isinstance(view, TokensView):
        return LINE * (1 + max((line for line, _, _ in _lines(view, width)), default=0))
    if isinstance(view, ImageView):
        rows, across = view.pixels.shape[:2]
        return min(width * rows / across, 2.5 * width)
    if isinstance(view, SeriesView):
        return TALL + (0.3 if weighed else 0.0)
    return 0.19 * max(1, min(view.items, CELLS)) + bottom


def margins(view: View) -> tuple[float, float, float]:
    """Inches left, right and below that tick labels need."""
    if isinstance(view, SeriesView):
        return 0.42, 0.1, 0.36
    if isinstance(view, VectorView):
        longest = max((columns(plain(n, 16)) for n in view.names), default=1)
        return 0.15 + 0.075 * longest, 0.1, 0.32
    return 0.0, 0.0, 0.0


def draw(
    axes: Any,
    view: View,
    width: float,
    *,
    weights: NDArray | None = None,
    top: float = 3.0,
    wrong: NDArray | None = None,
) -> None:
    """Draw a view.

    Args:
        axes: where.
        view: what.
        width: of the axes, in inches.
        weights: of each item, in even shares; None draws the view alone.
        top: the weight that is drawn in full colour.
        wrong: which items were answered wrongly, where every item has an answer.
    """
    if isinstance(view, TokensView):
        _tokens(axes, view, width, weights, top)
        if wrong is not None:
            _underline(axes, view, width, wrong)
    elif isinstance(view, ImageView):
        _image(axes, view, weights, top)
    elif isinstance(view, SeriesView):
        _series(axes, view, weights, top)
    elif weights is None:
        _cells(axes, view)
    else:
        _weighed_cells(axes, view, weights, top)


def length(view: TokensView) -> float:
    """Inches of a sequence on one line."""
    return COLUMN * sum(max(1, columns(visible(token))) + 0.4 for token in view.tokens[:400])


def _lines(view: TokensView, width: float) -> list[tuple[int, float, float]]:
    """(line, first column, columns) of each token that is shown."""
    room, placed = width / COLUMN, []
    line, at = 0, 0.0
    for token in view.tokens:
        size = min(max(1, columns(visible(token))) + 0.4, room)
        if at + size > room + 1e-6:
            line, at = line + 1, 0.0
            if line == LINES:
                break
        placed.append((line, at, size))
        at += size
    return placed


def _tokens(axes: Any, view: TokensView, width: float, weights: NDArray | None, top: float) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    places = _lines(view, width)
    room, lines = width / COLUMN, 1 + max((line for line, _, _ in places), default=0)
    hidden = view.items - len(places)
    if hidden:  # the last tokens shown give way to how many are not
        note = f"… {hidden} more"
        while places and places[-1][1] + places[-1][2] > room - len(note) - 4 and places[-1][0] == lines - 1:
            places.pop()
        note = f"… {view.items - len(places)} more"
        line, at, size = places[-1] if places else (0, 0.0, 0.0)
        axes.text(at + size + 1, line + 0.5, note, color=GREY, fontsize=FONT, va="center")
    boxes, colors = [], []
    for i, (line, at, size) in enumerate(places):
        unknown = bool(view.unknown[i])
        if weights is not None:
            strength = float(np.clip(weights[i] / top, 0, 1))
            color = tuple(1 - strength * (1 - c) for c in to_rgb(ORANGE))
        else:
            color = to_rgb(ORANGE) if unknown else to_rgb("#dfe5ea" if i % 2 else "#eef1f4")
        boxes.append(Rectangle((at + 0.04, line + 0.06), size - 0.08, 0.88))
        colors.append(color)
        text = "?" if unknown else view.tokens[i].replace("\n", "↵")
        dark = INK if sum(color) > 1.5 else "white"
        if text.strip():
            axes.text(
                at + size / 2,
                line + 0.52,
                plain(text, int(room)),
                ha="center",
                va="center",
                fontsize=FONT,
                color=dark,
                family=monospace(),
                weight="bold" if unknown else "normal",
            )
    edge = "none" if weights is None else "#c9d0d6"
    axes.add_collection(PatchCollection(boxes, facecolor=colors, linewidth=0.4, edgecolor=edge))
    axes.set(xlim=(0, room), ylim=(lines, 0))
    blank(axes)


def _underline(axes: Any, view: TokensView, width: float, wrong: NDArray) -> None:
    for i, (line, at, size) in enumerate(_lines(view, width)):
        if i < len(wrong) and wrong[i]:
            axes.plot([at + 0.1, at + size - 0.1], [line + 0.97] * 2, color=ORANGE, linewidth=2, clip_on=False)


def _image(axes: Any, view: ImageView, weights: NDArray | None, top: float) -> None:
    rows, across = view.pixels.shape[:2]
    box = (-0.5, across - 0.5, rows - 0.5, -0.5)
    if weights is None and view.pixels.shape[2] == 1:
        axes.imshow(view.pixels[..., 0], cmap="gray", interpolation="nearest")
    elif weights is None:
        low, high = view.pixels.min(), view.pixels.max()
        axes.imshow((view.pixels - low) / (high - low or 1), interpolation="nearest")
    else:
        # the picture in pale grey, so that colour means weight and nothing else
        axes.imshow(0.62 + 0.38 * view.grey, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        strength = np.clip(weights / top, 0, 1).reshape(view.grid)
        shade = np.kron(strength, np.ones((view.patch, view.patch)))[:rows, :across]
        layer = np.zeros((*shade.shape, 4))
        layer[..., :3] = [int(ORANGE[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        layer[..., 3] = 0.85 * shade
        axes.imshow(layer, interpolation="nearest")
    for at in range(view.patch, rows, view.patch):
        axes.axhline(at - 0.5, color=BLUE, linewidth=0.4, alpha=0.6)
    for at in range(view.patch, across, view.patch):
        axes.axvline(at - 0.5, color=BLUE, linewidth=0.4, alpha=0.6)
    axes.set(xlim=box[:2], ylim=box[2:])
    blank(axes)


def _series(axes: Any, view: SeriesView, weights: NDArray | None, top: float) -> None:
    shown = min(len(SERIES), view.values.shape[1])
    dots = len(view.times) <= 80
    for channel in range(shown):
        y = view.values[:, channel]
        axes.plot(view.times, y, color=SERIES[channel], linewidth=1.1, marker="o" if dots else None, markersize=2)
        gone = np.isnan(y)
        if gone.any():
            low = 0.02 + 0.05 * channel
            axes.plot(
                view.times[gone],
                np.full(gone.sum(), low),
                linestyle="none",
                marker="x",
                markersize=3.5,
                markeredgewidth=0.9,
                color=SERIES[channel],
                transform=axes.get_xaxis_transform(),
                clip_on=False,
            )
    if len(view.times) > 1:
        axes.set_xlim(view.times[0], view.times[-1])
    axes.margins(y=0.12)
    axes.tick_params(labelsize=7)
    axes.locator_params(axis="y", nbins=4)
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="y")
    axes.set_xlabel("seconds from the first sample" if view.timed else "sample", fontsize=7.5, labelpad=1)
    if weights is not None:
        _strip(axes, view, weights, top)


def _strip(axes: Any, view: SeriesView, weights: NDArray, top: float) -> None:
    """Weights as bars that rise from the foot of the curve, the even share as a line."""
    beneath = axes.twinx()
    last = view.starts[-1] - view.starts[-2] if view.items > 1 else 1.0
    ends = np.append(view.starts[1:], max(view.times[-1], view.starts[-1] + last))
    beneath.bar(view.starts, weights, width=ends - view.starts, align="edge", color=ORANGE, alpha=0.4, linewidth=0)
    beneath.axhline(1, color=ORANGE, linewidth=0.7, linestyle=(0, (4, 3)))
    beneath.set(ylim=(0, 2.2 * max(top, float(weights.max(initial=1)))), yticks=[])
    beneath.spines["right"].set_visible(False)
    beneath.set_zorder(axes.get_zorder() - 1)
    axes.patch.set_visible(False)


def _rows(axes: Any, view: VectorView) -> int:
    count = min(view.items, CELLS)
    axes.set_yticks(range(count), [plain(n, 16) for n in view.names[:count]], fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_ylim(count - 0.5, -0.5)
    if view.items > CELLS:
        more = f"and {view.items - CELLS} more columns"
        axes.text(1, -0.02, more, transform=axes.transAxes, ha="right", va="top", fontsize=7, color=GREY)
    return count


def _cells(axes: Any, view: VectorView) -> None:
    """Standardised numbers as bars, each with the cell's own text; what is missing is hatched."""
    count = _rows(axes, view)
    values = np.clip(np.nan_to_num(view.values[:count]), -3, 3)
    axes.axvline(0, color=GREY, linewidth=0.7)
    axes.barh(range(count), values, height=0.62, color=BLUE)
    for i in range(count):
        if view.missing[i]:
            axes.barh(i, 6.6, left=-3.3, height=0.8, color="white", hatch="////", edgecolor="#bbbbbb", linewidth=0)
        strange = view.missing[i] or view.unknown[i]
        number = np.isfinite(view.values[i])
        x, side = (0.0, "center") if not number else (0.08, "left") if values[i] < 0 else (-0.08, "right")
        behind = {"facecolor": "white" if view.missing[i] else PALE, "edgecolor": "none", "pad": 0.8}
        axes.text(
            x,
            i,
            plain(view.texts[i], 18),
            ha=side,
            va="center",
            fontsize=7.5,
            color=ORANGE if strange else INK,
            bbox=None if number else behind,
        )
    axes.set(xlim=(-3.3, 3.3), xticks=[-3, 0, 3])
    axes.set_xlabel("standard deviations", fontsize=7.5, labelpad=1)


def _weighed_cells(axes: Any, view: VectorView, weights: NDArray, top: float) -> None:
    count = _rows(axes, view)
    colors = fade(ORANGE)(0.25 + 0.75 * np.clip(weights[:count] / top, 0, 1))
    axes.barh(range(count), weights[:count], height=0.66, color=colors)
    axes.axvline(1, color=ORANGE, linewidth=0.7, linestyle=(0, (4, 3)))
    right = 1.75 * max(top, float(weights.max(initial=1)))
    for i in range(count):
        axes.text(0.98 * right, i, plain(view.texts[i], 14), ha="right", va="center", fontsize=7.5, color=INK)
    axes.set(xlim=(0, right), xticks=[0, 1, *([round(top)] if round(top) > 1 else [])])
    axes.set_xlabel("weight (1 = even share)", fontsize=7.5, labelpad=1)


def note(view: View) -> str:
    """What a caption should say of a view that is not shown whole."""
    if isinstance(view, SeriesView) and view.values.shape[1] > len(SERIES):
        return f"the first {len(SERIES)} of {view.values.shape[1]} channels"
    if isinstance(view, VectorView) and view.items > CELLS:
        return f"columns left out of the panels: {joined(view.names[CELLS:])}"
    return ""
