"""How far favor attention is to be trusted: the error of every head, as a map of layers and heads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mapsto.tasks.honesty import MEASURED, Trust
from mapsto.tasks.pictures.style import INK, ORANGE, fade, figure, named, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["trusted"]


@styled
def trusted(found: Sequence[Trust]) -> "Figure":
    """Measured error of the answers, in each cell above the predicted relative variance of a weight (median).

    Args:
        found: as :func:`mapsto.tasks.honesty.trust` gives it, not empty.
    """
    layers = list(dict.fromkeys(one.layer for one in found))
    heads = max(one.head for one in found)
    error = np.full((len(layers), heads), np.nan)
    for one in found:
        error[layers.index(one.layer), one.head - 1] = one.measured
    drawn = figure(1.2 + 0.5 * len(layers))
    axes = drawn.subplots()
    image = axes.imshow(error, cmap=fade(ORANGE), vmin=0, vmax=2 * MEASURED, aspect="auto")
    for one in found if heads <= 16 else ():
        text = f"{one.measured:.0%}\n{one.predicted:.2g}"
        at = (one.head - 1, layers.index(one.layer))
        axes.annotate(text, at, ha="center", va="center", fontsize=7.5, color=INK)
    named(axes.yaxis, layers)
    named(axes.xaxis, [str(head) for head in range(1, heads + 1)])
    axes.set_xlabel("head")
    drawn.colorbar(image, ax=axes, label="error of the answers", format=lambda x, _: f"{x:.0%}")
    return drawn
