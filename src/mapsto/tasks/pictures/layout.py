"""Where the parts of an example stand: its inputs side by side, and the sequences that belong to it beneath or beside."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mapsto.tasks.pictures.example import Example
from mapsto.tasks.pictures.panel import height, length
from mapsto.tasks.pictures.text import columns
from mapsto.tasks.pictures.view import ImageView, SeriesView, TokensView, VectorView, View

__all__ = ["GAP", "Cell", "Frame"]

GAP = 0.22
BETWEEN = 0.05  # inches between sequences, one beneath the other
LETTER = 0.062

ACROSS: dict[type, int] = {TokensView: 1, ImageView: 5, SeriesView: 2, VectorView: 3}
SHARES: dict[type, float] = {TokensView: 3.0, ImageView: 1.2, SeriesView: 2.4, VectorView: 2.4}


@dataclass(frozen=True)
class Cell:
    """One view, in inches from the left and the top of its example.

    Attributes:
        view: what is shown.
        left, top, width, tall: where.
        name: the input it is of; empty for a sequence that is true or written.
        label: what is written to its left.
        wrong: which of its items are mistaken.
    """

    view: View
    left: float
    top: float
    width: float
    tall: float
    name: str = ""
    label: str = ""
    wrong: NDArray | None = None


@dataclass(frozen=True)
class Frame:
    """How the examples of one sheet are laid out.

    Attributes:
        across: how many stand side by side.
        width: inches of each.
        widths: of its inputs, side by side, then of its sequences; empty where all are sequences, one beneath the other.
        indent: inches for the labels of sequences.
        weighed: whether items have weights.
    """

    across: int
    width: float
    widths: tuple[float, ...]
    indent: float
    weighed: bool

    @classmethod
    def of(cls, shown: Sequence[Example], full: float, *, weighed: bool) -> "Frame":
        """The layout that suits some examples on ``full`` inches."""
        first = shown[0]
        kinds = [type(v) for v in first.views.values()]
        lined = any(e.lines for e in shown)
        stacked = lined and all(kind is TokensView for kind in kinds)
        names = [line.name for e in shown for line in e.lines] + (list(first.views) if stacked else [])
        indent = 0.1 + LETTER * min(14, max(map(columns, names))) if lined else 0.0
        across = ACROSS[kinds[0]] if len(kinds) == 1 and not lined else 1
        if lined and kinds == [ImageView]:
            across = 2
        if across == 5 and not first.said:
            across = 6  # shorter titles
        if across == 1 and len(shown) > 6 and (stacked or kinds == [TokensView]):  # short ones stand side by side
            every = [v for e in shown for v in [*e.views.values(), *(line.view for line in e.lines)]]
            longest = max((length(v) for v in every if isinstance(v, TokensView)), default=0.0) + indent
            across = 2 if longest <= (1.0 if stacked else 1.7) * (full - GAP) / 2 else 1
        one = (full - GAP * (across - 1)) / across
        shares = np.array([SHARES[kind] for kind in kinds] + [4.0] * lined)
        widths = (one - GAP * (len(shares) - 1)) * shares / shares.sum()
        return cls(across, one, () if stacked else tuple(widths.tolist()), indent, weighed)

    def cells(self, example: Example) -> list[Cell]:
        """Where each view of an example stands."""
        made, left = [], 0.0
        if self.widths:
            for (name, view), width in zip(example.views.items(), self.widths, strict=False):
                tall = height(view, width, weighed=self.weighed)
                made.append(Cell(view, left, 0.0, width, tall, name=name, wrong=example.wrong))
                left += width + GAP
            beneath: list[tuple[str, str, View, NDArray | None]] = []
            room = self.widths[-1]
        else:
            beneath, room = [(name, name, view, None) for name, view in example.views.items()], self.width
        top = 0.0
        beneath += [("", line.name, line.view, line.wrong) for line in example.lines]
        for name, label, view, wrong in beneath:
            width = room - self.indent
            tall = height(view, width, weighed=False)
            made.append(Cell(view, left + self.indent, top, width, tall, name, label, wrong))
            top += tall + BETWEEN
        return made
