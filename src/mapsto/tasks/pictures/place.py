"""How well the next token is known, by its place in the sequence and by the length of the sequence."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapsto.tasks.pictures.style import BLUE, GREEN, GREY, figure, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["by_length", "by_place", "places"]

LEAST = 8  # tokens behind a point
POINTS = 40


def by_place(values: ArrayLike, row: ArrayLike) -> tuple[NDArray, NDArray, NDArray]:
    """The mean of what each token has, over the tokens of one place; far places are put together.

    Args:
        values: (tokens,) in order of their rows.
        row: (tokens,) the row of each.

    Returns:
        First place (from 1), mean, and number of tokens of each point. Places of fewer than 8 tokens are left out at the
        end.

    Example:
        >>> at, mean, count = by_place([0.0, 1.0] * 8, np.repeat(np.arange(8), 2))
        >>> at.tolist(), mean.tolist(), count.tolist()
        ([1, 2], [0.0, 1.0], [8, 8])
    """
    value, owner = np.asarray(values, np.float64), np.asarray(row, np.int64)
    if not len(value):
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64)
    starts = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    place = np.arange(len(owner)) - np.repeat(starts, np.diff(np.append(starts, len(owner))))
    last = int(np.flatnonzero(np.bincount(place) >= LEAST).max(initial=0)) + 1
    edges = np.unique(np.geomspace(1, last + 1, POINTS + 1).round().astype(np.int64)) if last > POINTS else None
    edges = np.arange(1, last + 2) if edges is None else edges
    point = np.searchsorted(edges, place + 1, side="right") - 1
    kept = point < len(edges) - 1
    count = np.bincount(point[kept], minlength=len(edges) - 1)
    total = np.bincount(point[kept], value[kept], minlength=len(edges) - 1)
    return edges[:-1], total / np.maximum(1, count), count


def by_length(nll: ArrayLike, row: ArrayLike, rows: int, *, bins: int = 12) -> tuple[NDArray, NDArray, NDArray]:
    """Nats a token of the rows of about one length: middle length, mean over the tokens, and number of rows."""
    owner = np.asarray(row, np.int64)
    lengths = np.bincount(owner, minlength=rows)
    total = np.bincount(owner, np.asarray(nll, np.float64), minlength=rows)
    known = np.unique(lengths[lengths > 0])
    if len(known) > bins:  # about as many rows in each, and those of one length in one
        known = np.unique(np.quantile(lengths[lengths > 0], np.arange(bins) / bins, method="lower"))
    point = np.searchsorted(known, lengths, side="right") - 1
    groups = [np.flatnonzero(point == i) for i in range(len(known))]
    middle = np.array([float(np.median(lengths[g])) for g in groups])
    mean = np.array([total[g].sum() / lengths[g].sum() for g in groups])
    return middle, mean, np.array([len(g) for g in groups])


@styled
def places(
    nll: ArrayLike, right: ArrayLike, row: ArrayLike, rows: int, *, window: bool = False, beside: dict[str, float]
) -> "Figure":
    """Nats and accuracy of tokens by their place; and nats by the length of the row.

    Args:
        nll: (tokens,) in nats, row after row.
        right: (tokens,) whether the likeliest token is the true one.
        row: (tokens,) the row of each.
        rows: how many there are.
        window: whether rows are windows of a text, whose lengths say nothing and are left out.
        beside: nats a token of simple models, for a line each.
    """
    drawn = figure(3.0)
    axes = drawn.subplots(1, 2 if window else 3)
    at, mean, _ = by_place(nll, row)
    _curve(axes[0], at, mean, BLUE)
    for name, value in beside.items():
        axes[0].axhline(value, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        at_end = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
        axes[0].annotate(plain(name, 20), (1, value), (0, 2), fontsize=7.5, color=GREY, **at_end)
    high = max([float(mean.max(initial=0)), *beside.values()])
    axes[0].set(ylabel="nats a token", ylim=(0, 1.12 * high or 1))
    axes[0].set_title("How surprising tokens are")
    _curve(axes[1], at, by_place(np.asarray(right, np.float64), row)[1], GREEN)
    axes[1].set(ylabel="token accuracy", ylim=(0, 1.03))
    axes[1].set_title("How often the likeliest is right")
    for one in axes[:2]:
        one.set_xlabel("place in the window" if window else "place of the token")
        if len(at) and at[-1] > POINTS:
            one.set_xscale("log")
            one.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    if not window:
        middle, cost, count = by_length(nll, row, rows)
        _curve(axes[2], middle, cost, BLUE)
        axes[2].scatter(middle, cost, s=np.clip(60 * count / count.max(initial=1), 6, 60), color=BLUE, zorder=2)
        axes[2].set(ylabel="nats a token", ylim=(0, 1.12 * float(cost.max(initial=0)) or 1))
        axes[2].set_xlabel("tokens of the row and its end")
        axes[2].set_title("By the length of the row")
    for i, one in enumerate(axes):
        one.grid(axis="y")
        if i == 2 or not len(at) or at[-1] <= POINTS:
            one.locator_params(axis="x", nbins=7, integer=True)
    return drawn


def _curve(axes: Any, x: NDArray, y: NDArray, color: str) -> None:
    axes.plot(x, y, color=color, marker="o" if len(x) <= 25 else None, markersize=3.2)
