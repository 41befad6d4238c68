"""Which items of the source a model looked at for each token that it wrote.

The weights are those of the cross-attention of the decoder's last layer, averaged over its heads. Row l is the query
whose answer is token l: it knows the tokens before l, and not yet l itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from mapsto.models.mapper import Batch, Mapper
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.transformer import Decoder
from mapsto.tasks.pictures.style import GREY, INK, ORANGE, WIDTH, fade, figure, plain, styled
from mapsto.tasks.pictures.text import columns, visible
from mapsto.vocabulary import BEGIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LIMIT", "Alignment", "aligned", "alignments"]

LIMIT = 48
"""The most tokens of a side that are drawn."""

CELL = 0.165
LETTER = 0.064
EDGE = 0.15
GAP = 0.3
HEAD = 0.17


@dataclass(frozen=True)
class Alignment:
    """Of one row.

    Attributes:
        weights: (tokens, items), each row summing to one.
        written: the tokens, the end among them.
        source: the names of the items.
        title: what row it is.
        wrong: (tokens,) which are mistaken.
    """

    weights: NDArray
    written: list[str]
    source: list[str]
    title: str = ""
    wrong: NDArray | None = None


@torch.inference_mode()
def aligned(model: Mapper, batch: Batch, written: Sequence[Sequence[int]]) -> list[NDArray] | None:
    """The weights of a batch, (tokens, items) a row, when these tokens are written; None without cross-attention.

    Args:
        model: with a decoder.
        batch: its inputs.
        written: of each row, the ids of the tokens, the end among them if it was written.
    """
    layer = _last(model)
    if layer is None:
        return None
    device = next(model.parameters()).device
    longest = max(map(len, written), default=0)
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in written], device=device).view(len(written), -1)
    valid = torch.tensor([[l < len(row) for l in range(longest)] for row in written], device=device).view(ids.shape)
    target = {"ids": ids, "valid": valid, "before": torch.full((len(written),), BEGIN, device=device)}
    calls: list[tuple[Any, Any]] = []
    hook = layer.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    model.eval()
    try:
        _, memory = model.answers({**batch, "target": target})
    finally:
        hook.remove()
    (x, there), _ = calls[-1]
    found = layer.weights(x, there).mean(1).float().clamp(min=0)  # linear kinds may fall a little below zero
    items = memory.valid.sum(1).tolist()
    rows = [found[i, : len(row), : items[i]] for i, row in enumerate(written)]
    return [(row / row.sum(1, keepdim=True).clamp(min=1e-12)).cpu().numpy() for row in rows]


def _last(model: Mapper) -> MultiheadAttention | None:
    if not isinstance(model.reader, Decoder) or not len(model.reader.blocks):
        return None
    cross = model.reader.blocks[-1].cross
    return cross if isinstance(cross, MultiheadAttention) else None


@styled
def alignments(shown: Sequence[Alignment], title: str) -> "Figure":
    """A map a row: what was written from top to bottom, what it was written from from left to right.

    Args:
        shown: not empty.
        title: what is to be seen.
    """
    cut = [_cut(one) for one in shown]
    sizes = [_size(one) for one in cut]
    places, total = _shelves(sizes)
    drawn = figure(total, constrained=False)
    drawn.text(EDGE / WIDTH, 1 - 0.12 / total, plain(title), fontsize=10, va="top", weight="bold")
    for one, (left, top) in zip(cut, places, strict=True):
        _map(drawn, one, left, top, total)
    return drawn


def _cut(one: Alignment) -> Alignment:
    if max(one.weights.shape, default=0) <= LIMIT:
        return one
    return replace(
        one,
        weights=one.weights[:LIMIT, :LIMIT],
        written=one.written[:LIMIT],
        source=one.source[:LIMIT],
        title=f"{one.title}    (the first {LIMIT} tokens)",
        wrong=None if one.wrong is None else one.wrong[:LIMIT],
    )


def _label(name: str) -> str:
    """A token as it can be read on an axis: what is only space as a mark for it."""
    return plain(name.strip(), 12) if name.strip() else visible(name.replace(" ", "␣").replace("\n", "↵"))


def _margins(one: Alignment) -> tuple[float, float]:
    """Inches for the labels at the left and above."""
    left, above = (max((columns(_label(n)) for n in names), default=1) for names in (one.written, one.source))
    return 0.12 + LETTER * left, 0.1 + (LETTER * above if above > 2 else 0.12)


def _size(one: Alignment) -> tuple[float, float]:
    left, above = _margins(one)
    rows, across = one.weights.shape
    return max(left + CELL * across, 0.054 * len(one.title)), HEAD + above + CELL * rows


def _shelves(sizes: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], float]:
    """Left and top of each map, side by side as far as they fit; and the picture's height."""
    places, left, top, tall = [], EDGE, 0.5, 0.0
    for width, height in sizes:
        if left > EDGE and left + width > WIDTH - EDGE:
            left, top, tall = EDGE, top + tall + GAP, 0.0
        places.append((left, top))
        left, tall = left + width + GAP, max(tall, height)
    return places, top + tall + 0.12


def _map(drawn: Any, one: Alignment, left: float, top: float, total: float) -> None:
    before, above = _margins(one)
    rows, across = one.weights.shape
    drawn.text(left / WIDTH, 1 - (top + 0.02) / total, plain(one.title), fontsize=8, color=GREY, va="top")
    if not one.weights.size:
        return
    foot = top + HEAD + above + CELL * rows
    box = ((left + before) / WIDTH, 1 - foot / total, CELL * across / WIDTH, CELL * rows / total)
    axes = drawn.add_axes(box)
    axes.imshow(one.weights, cmap=fade(ORANGE), vmin=0, vmax=max(0.5, float(one.weights.max(initial=0))), aspect="auto")
    axes.xaxis.tick_top()
    long = any(columns(_label(n)) > 2 for n in one.source)
    axes.set_xticks(range(across), [_label(n) for n in one.source], fontsize=7.5, rotation=90 if long else 0)
    axes.set_yticks(range(rows), [_label(n) for n in one.written], fontsize=7.5)
    axes.tick_params(length=0, pad=2)
    for i, label in enumerate(axes.get_yticklabels()):
        label.set_color(ORANGE if one.wrong is not None and one.wrong[i] else INK)
    axes.set_xticks(np.arange(-0.5, across), minor=True)
    axes.set_yticks(np.arange(-0.5, rows), minor=True)
    axes.grid(which="minor", color="#eef1f4", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#cccccc")
