"""Many examples on one picture: a panel an input, with what is true and what was said above."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mapsto.tasks.pictures.example import Example
from mapsto.tasks.pictures.layout import GAP, Cell, Frame
from mapsto.tasks.pictures.panel import draw, margins
from mapsto.tasks.pictures.style import GREY, INK, ORANGE, WIDTH, blank, fade, figure, plain, styled
from mapsto.tasks.pictures.text import columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["sheet", "top_weight"]

EDGE = 0.15
TITLE = 0.16
LETTER = 0.054


@dataclass
class Place:
    """Where an example stands: inches from the left and from the top."""

    left: float
    lines: list[tuple[str, str]]
    cells: list[Cell]
    weights: Mapping[str, NDArray] | None
    top: float = 0.0

    @property
    def tall(self) -> float:
        """Inches of its cells."""
        return max(cell.top + cell.tall for cell in self.cells)


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
    frame = Frame.of(shown, WIDTH - 2 * EDGE, weighed=weights is not None)
    across = frame.across
    places = [
        Place(
            EDGE + (i % across) * (frame.width + GAP),
            _titles(e, frame.width, across),
            frame.cells(e),
            None if weights is None else weights[i],
        )
        for i, e in enumerate(shown)
    ]
    titled = [cell for cell in places[0].cells if cell.name and not cell.label] if len(places[0].cells) > 1 else []
    first = 0.42 + 0.2 * (weights is not None) + 0.24 * bool(titled)
    total = _arrange(places, across, first=first)
    drawn = figure(total, constrained=False)
    drawn.text(EDGE / WIDTH, 1 - 0.12 / total, plain(title), fontsize=10, va="top", weight="bold")
    top = 3.0 if weights is None else top_weight(weights)
    if weights is not None:
        _legend(drawn, top, total)
    for cell in titled:
        y = 1 - (first - 0.12) / total
        drawn.text((EDGE + cell.left) / WIDTH, y, plain(cell.name, 30), fontsize=8.5, color=GREY, va="center")
    for place in places:
        _put(drawn, place, total, top)
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


def _arrange(places: Sequence[Place], across: int, *, first: float) -> float:
    """Set the top of every place; gives the picture's height."""
    at = first
    for start in range(0, len(places), across):
        row = places[start : start + across]
        heading = TITLE * max(len(p.lines) for p in row) + 0.06
        for place in row:
            place.top = at + heading
        at += heading + max(p.tall for p in row) + 0.14
    return at + 0.02


def _put(drawn: Any, place: Place, total: float, top: float) -> None:
    for i, (text, color) in enumerate(reversed(place.lines)):
        y = 1 - (place.top - 0.05 - TITLE * i) / total
        drawn.text(place.left / WIDTH, y, plain(text), fontsize=8, color=color, va="bottom")
    for cell in place.cells:
        before, after, below = margins(cell.view)
        left, foot = place.left + cell.left, place.top + cell.top + cell.tall
        width = cell.width - before - after
        box = ((left + before) / WIDTH, 1 - (foot - below) / total, width / WIDTH, (cell.tall - below) / total)
        own = None if place.weights is None or not cell.name else place.weights[cell.name]
        draw(drawn.add_axes(box), cell.view, width, weights=own, top=top, wrong=cell.wrong)
        if cell.label:
            y = 1 - (place.top + cell.top + 0.11) / total
            drawn.text(
                (left - 0.08) / WIDTH, y, plain(cell.label, 14), fontsize=7.5, color=GREY, va="center", ha="right"
            )


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
