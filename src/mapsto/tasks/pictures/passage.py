"""Texts with every token shaded by how much it surprised a model, side by side."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mapsto.tasks.pictures.style import GREY, INK, ORANGE, WIDTH, blank, fade, figure, monospace, plain, styled
from mapsto.tasks.pictures.text import columns, escape, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["END_MARK", "Passage", "page", "passages"]

END_MARK = "∎"
"""Stands for the end of a row."""

FONT = 7.5
COLUMN = 0.602 * FONT / 72
LINE = 0.165
LINES = 30
BREAK = "↵"
EDGE = 0.15
GAP = 0.25


@dataclass(frozen=True)
class Passage:
    """A piece of text.

    Attributes:
        title: what it is.
        tokens: in order.
        bits: −log₂ p of each, given those before it; None shows the text alone.
        gap: columns between tokens: 0 where tokens are put together without spaces, 1 for words.
    """

    title: str
    tokens: list[str]
    bits: NDArray | None = None
    gap: int = 0


def shade(shown: Sequence[Passage]) -> float:
    """The bits that are drawn in full colour: what 2 % of the tokens exceed, at least 4."""
    every = [p.bits for p in shown if p.bits is not None and len(p.bits)]
    return max(4.0, float(np.quantile(np.concatenate(every), 0.98))) if every else 0.0


def placed(passage: Passage, room: int) -> Iterator[tuple[int, int, int, int]]:
    """(token, line, first column, columns), lines ending where the text's own do, or else between words."""
    sizes = [max(1, columns(_seen(token))) for token in passage.tokens]
    line, at, began, broken = 0, 0, 0, 0
    row: list[tuple[int, int, int]] = []
    for i, token in enumerate(passage.tokens):
        size = min(sizes[i], room)
        if at + size > room:
            rest = row[broken:] if broken else []
            yield from ((j, line, c, n) for j, c, n in (row[:broken] if broken else row))
            line, began = line + 1, rest[0][1] if rest else at
            row = [(j, c - began, n) for j, c, n in rest]
            at, broken = at - began, 0
        row.append((i, at, size))
        at += size + passage.gap
        if "\n" in token or token == END_MARK:
            yield from ((j, line, c, n) for j, c, n in row)
            row, line, at, broken = [], line + 1, 0, 0
        elif passage.gap or token[-1:].isspace():
            broken = len(row)
        elif token[:1].isspace():
            broken = len(row) - 1
    yield from ((j, line, c, n) for j, c, n in row)


def _seen(token: str) -> str:
    """What stands for a token; a line's end as an arrow, which more fonts have than its letter code."""
    return token if token == END_MARK else visible(token.replace("\n", BREAK))


@styled
def passages(shown: Sequence[Passage], title: str) -> "Figure":
    """Draw texts two by two; those with bits are shaded, all by one scale.

    Args:
        shown: not empty.
        title: what is to be seen.
    """
    across = min(2, len(shown))
    width = (WIDTH - 2 * EDGE - GAP * (across - 1)) / across
    room = int(width / COLUMN)
    cut = [[place for place in placed(p, room) if place[1] < LINES] for p in shown]
    tall = [LINE * (1 + max((line for _, line, _, _ in places), default=0)) for places in cut]
    top = shade(shown)
    at, tops = 0.45 + 0.22 * bool(top), []
    for start in range(0, len(shown), across):
        tops += [at + 0.22] * len(shown[start : start + across])
        at += 0.22 + max(tall[start : start + across]) + 0.22
    drawn = figure(at, constrained=False)
    drawn.text(EDGE / WIDTH, 1 - 0.12 / at, plain(title), fontsize=10, va="top", weight="bold")
    if top:
        _legend(drawn, top, at)
    for i, (passage, places) in enumerate(zip(shown, cut, strict=True)):
        left = EDGE + (i % across) * (width + GAP)
        drawn.text(left / WIDTH, 1 - (tops[i] - 0.06) / at, plain(passage.title), fontsize=8, color=GREY, va="bottom")
        axes = drawn.add_axes((left / WIDTH, 1 - (tops[i] + tall[i]) / at, width / WIDTH, tall[i] / at))
        _text(axes, passage, places, top)
        axes.set(xlim=(0, width / COLUMN), ylim=(tall[i] / LINE, 0))
        blank(axes)
    return drawn


def _text(axes: Any, passage: Passage, places: Sequence[tuple[int, int, int, int]], top: float) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    if passage.bits is not None:
        boxes = [Rectangle((at, line), size, 1) for _, line, at, size in places]
        strength = np.clip([passage.bits[i] / top for i, *_ in places], 0, 1)
        axes.add_collection(PatchCollection(boxes, facecolor=fade(ORANGE)(strength), linewidth=0))
    for i, line, at, _ in places:
        text = _seen(passage.tokens[i])
        if passage.bits is None:
            text = text.replace(BREAK, "")
        if text.strip():
            lead = len(text) - len(text.lstrip(" "))
            pale = text in (BREAK, END_MARK)
            axes.text(at + lead, line + 0.52, plain(text.strip(" ")), va="center", fontsize=FONT,
                      color=GREY if pale else INK, family=monospace())  # fmt: skip


def _legend(drawn: Any, top: float, total: float) -> None:
    axes = drawn.add_axes(((EDGE + 0.02) / WIDTH, 1 - 0.54 / total, 1.4 / WIDTH, 0.12 / total))
    axes.imshow(np.linspace(0, 1, 64)[None], cmap=fade(ORANGE), aspect="auto", extent=(0, top, 0, 1))
    blank(axes)
    text = f"from 0 to {top:.1f} bits a token (-log2 p)"
    drawn.text((EDGE + 1.52) / WIDTH, 1 - 0.48 / total, text, fontsize=8, color=GREY, va="center")


def page(shown: Sequence[Passage]) -> str:
    """The same for an HTML page; every token says its bits where the pointer rests."""
    top = shade(shown)
    note = f'<p class="note">Shade: from 0 to {top:.1f} bits a token (−log₂ p).</p>' if top else ""
    return note + f'<div class="beside">{"".join(_block(p, top) for p in shown)}</div>'


def _block(passage: Passage, top: float) -> str:
    spans = []
    for i, token in enumerate(passage.tokens):
        text = _seen(token)
        ends = "\n" if "\n" in token or token == END_MARK else " " * passage.gap
        style = ""
        if passage.bits is None:
            text = text.replace(BREAK, "")
        else:
            bits = float(passage.bits[i])
            style = f' style="--w:{min(1.0, max(0.0, bits / top)):.2f}" title="{bits:.1f} bits"'
        spans.append(f"<span{style}>{html.escape(text)}</span>{ends}")
    kind = "tokens weighed" if passage.bits is not None else "tokens"
    return (
        f'<div class="row"><p class="head"><span class="where">{escape(passage.title)}</span></p>'
        f'<p class="{kind} close" dir="auto">{"".join(spans)}</p></div>'
    )
