"""Many examples on one picture: a panel an input, with what is true and what was said above."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mapsto.tasks.pictures.example import Example
from mapsto.tasks.pictures.panel import draw, height, length, margins
from mapsto.tasks.pictures.style import GREY, INK, ORANGE, WIDTH, blank, fade, figure, plain, styled
from mapsto.tasks.pictures.text import columns
from mapsto.tasks.pictures.view import ImageView, SeriesView, TokensView, VectorView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sheet", "top_weight"]

EDGE = 0.15
GAP = 0.22
TITLE = 0.16
LETTER = 0.054

ACROSS: dict[type, int] = {TokensView: 1, ImageView: 5, SeriesView: 2, VectorView: 3}
SHARES: dict[type, float] = {TokensView: 3.0, ImageView: 1.2, SeriesView: 2.4, VectorView: 2.4}


@dataclass
class Place:
    """Where an example stands: inches from the left and from the top."""

    example: Example
    index: int
    left: float
    widths: list[float]
    lines: list[tuple[str, str]]
    top: float = 0.0
    tall: float = 0.0


def top_weight(weights: Sequence[Mapping[str, NDArray]]) -> float:
    """The weight in full colour: three even shares, or what 2 % of the items exceed if that is more."""
    every = [w for row in weights for w in row.values() if len(w)]
    return max(3.0, float(np.quantile(np.concatenate(every), 0.98))) if every else 3.0


@styled
def sheet(shown: Sequence[Example], title: str, *, weights: Sequence[Mapping[str, NDArray]] | None = None) -> "Figure":
    """Draw examples side by side where they are small, one below the other where they are long.

    Args:
        shown: the examples, all of the same inputs.
        title: what is to be seen.
        weights: for each example and input, one number an item, in even shares; None shows the data alone.
    """
    names = list(shown[0].views)
    full = WIDTH - 2 * EDGE
    across = ACROSS[type(shown[0].views[names[0]])] if len(names) == 1 else 1
    if across == 5 and not shown[0].said:
        across = 6  # shorter titles
    if across == 1 and len(names) == 1 and len(shown) > 6:  # short sequences stand side by side
        longest = max(length(v) for e in shown for v in e.views.values() if isinstance(v, TokensView))
        across = 2 if longest <= 1.7 * (full - GAP) / 2 else 1
    one = (full - GAP * (across - 1)) / across
    shares = np.array([SHARES[type(v)] for v in shown[0].views.values()])
    widths = [one] if len(names) == 1 else ((full - GAP * (len(names) - 1)) * shares / shares.sum()).tolist()
    places = [
        Place(e, i, EDGE + (i % across) * (one + GAP), widths, _titles(e, one, across)) for i, e in enumerate(shown)
    ]
    first = 0.42 + 0.2 * (weights is not None) + 0.24 * (len(names) > 1)
    total = _arrange(places, across, weighed=weights is not None, first=first)
    drawn = figure(total, constrained=False)
    drawn.text(EDGE / WIDTH, 1 - 0.12 / total, plain(title), fontsize=10, va="top", weight="bold")
    top = 3.0 if weights is None else top_weight(weights)
    if weights is not None:
        _legend(drawn, top, total)
    if len(names) > 1:
        left = EDGE
        for name, width in zip(names, widths, strict=True):
            drawn.text(left / WIDTH, 1 - (first - 0.12) / total, plain(name, 30), fontsize=8.5, color=GREY, va="center")
            left += width + GAP
    for place in places:
        _put(drawn, place, total, None if weights is None else weights[place.index], top)
    return drawn


def _titles(example: Example, width: float, across: int) -> list[tuple[str, str]]:
    """(text, colour) of the lines above a panel, as wide as there is room."""
    wrong = ORANGE if example.right is False else INK
    room = int((width if across > 1 else WIDTH - 2 * EDGE) / LETTER)
    head = example.truth if not example.said else f"true: {example.truth}"
    said = f"said: {example.said}" if example.said else ""
    if columns(f"{head}    {said}    {example.where}") <= room:
        return [("    ".join(p for p in (head, said, example.where) if p), wrong)]
    lines = [(head, INK), *([(said, wrong)] if said else []), (example.where, GREY)]
    return [(_fit(text, room), color) for text, color in lines]


def _fit(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def _arrange(places: Sequence[Place], across: int, *, weighed: bool, first: float) -> float:
    """Set the top and height of every place; gives the picture's height."""
    at = first
    for start in range(0, len(places), across):
        row = places[start : start + across]
        heading = TITLE * max(len(p.lines) for p in row) + 0.06
        for place in row:
            views = place.example.views.values()
            place.tall = max(height(v, w, weighed=weighed) for v, w in zip(views, place.widths, strict=True))
            place.top = at + heading
        at += heading + max(p.tall for p in row) + 0.14
    return at + 0.02


def _put(drawn: Any, place: Place, total: float, weights: Mapping[str, NDArray] | None, top: float) -> None:
    for i, (text, color) in enumerate(reversed(place.lines)):
        y = 1 - (place.top - 0.05 - TITLE * i) / total
        drawn.text(place.left / WIDTH, y, plain(text), fontsize=8, color=color, va="bottom")
    left = place.left
    for (name, view), width in zip(place.example.views.items(), place.widths, strict=True):
        before, after, below = margins(view)
        tall = height(view, width, weighed=weights is not None)
        box = (
            (left + before) / WIDTH,
            1 - (place.top + tall - below) / total,
            (width - before - after) / WIDTH,
            (tall - below) / total,
        )
        axes = drawn.add_axes(box)
        own = None if weights is None else weights[name]
        draw(axes, view, width - before - after, weights=own, top=top, wrong=place.example.wrong)
        left += width + GAP


def _legend(drawn: Any, top: float, total: float) -> None:
    """What the shade means."""
    axes = drawn.add_axes(((EDGE + 0.02) / WIDTH, 1 - 0.54 / total, 1.4 / WIDTH, 0.12 / total))
    axes.imshow(np.linspace(0, 1, 64)[None], cmap=fade(ORANGE), aspect="auto", extent=(0, top, 0, 1))
    blank(axes)
    drawn.text(
        (EDGE + 1.52) / WIDTH,
        1 - 0.48 / total,
        f"weight from 0 to {top:.1f} times the even share",
        fontsize=8,
        color=GREY,
        va="center",
    )
