"""Labels said beside labels true: the confusion matrix, the reliability diagram, bars for several labels at once."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapsto.tasks.pictures.style import BLUE, GREEN, GREY, INK, PALE, fade, figure, named, plain, styled
from mapsto.training.metric import confusion, multilabel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LIMIT", "calibration", "confusions", "label_bars"]

LIMIT = 30
"""The most classes in one picture."""

BINS = 10
Z = 1.959964


def calibration(log_probability: NDArray, target: NDArray) -> tuple[NDArray, NDArray, NDArray, float]:
    """How often the most probable class is right, by how probable the model says it is, in ten bins of equal width.

    Returns:
        Rows, mean probability and share right of each bin (NaN where it is empty), and the expected calibration error
        Σ_bins rows/N · |share right − mean probability|.

    Reference: Naeini et al., Obtaining well calibrated probabilities using Bayesian binning, 2015.
    """
    sure = np.exp(log_probability.astype(np.float64).max(1))
    right = log_probability.argmax(1) == target
    bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    rows = np.bincount(bins, minlength=BINS)
    at = np.maximum(rows, 1)
    mean = np.where(rows, np.bincount(bins, sure, BINS) / at, np.nan)
    share = np.where(rows, np.bincount(bins, right, BINS) / at, np.nan)
    error = float(np.nansum(rows * np.abs(share - mean)) / max(1, len(target)))
    return rows, mean, share, error


def condensed(counts: NDArray[np.int64], classes: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """The classes with the most rows, and one more for all others, where there are too many to show."""
    if len(classes) <= LIMIT:
        return counts, list(classes)
    shown = np.sort(np.argsort(-(counts.sum(0) + counts.sum(1)), kind="stable")[: LIMIT - 1])
    place = np.full(len(classes), LIMIT - 1)
    place[shown] = np.arange(LIMIT - 1)
    small = np.zeros((LIMIT, LIMIT), np.int64)
    np.add.at(small, (place[:, None], place[None, :]), counts)
    return small, [*(classes[i] for i in shown), f"{len(classes) - LIMIT + 1} others"]


@styled
def confusions(
    log_probability: ArrayLike, target: ArrayLike, classes: Sequence[str], *, name: str = "label"
) -> "Figure":
    """The confusion matrix, each row as shares of its class with counts written in, beside the reliability diagram.

    Args:
        log_probability: (N, C).
        target: (N,) the true classes' numbers.
        classes: their names.
        name: what the label is called.
    """
    score, truth = np.asarray(log_probability), np.asarray(target)
    counts, shown = condensed(confusion(truth, score.argmax(1), len(classes)), classes)
    beside = len(shown) <= 14
    side = 4.9 if beside else 6.7
    height = 0.85 * side + 0.7 if beside else side + 3.0
    drawn = figure(height)
    if beside:
        matrix, small = _halves(drawn.subfigures(1, 2, width_ratios=[2.05, 1]))
        axes, (curve, counted) = matrix.subplots(), small.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    else:
        matrix, small = _halves(drawn.subfigures(2, 1, height_ratios=[side, 2.8]))
        axes, (counted, curve) = matrix.subplots(), small.subplots(1, 2, width_ratios=[1.4, 1])
    _matrix(axes, counts, shown, name)
    _reliability(curve, counted, score, truth, stacked=beside)
    return drawn


def _halves(made: Any) -> tuple[Any, Any]:
    return made[0], made[1]


def _matrix(axes: Any, counts: NDArray[np.int64], classes: list[str], name: str) -> None:
    total = counts.sum(1, keepdims=True)
    share = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    size = len(classes)
    axes.imshow(share, cmap=fade("#084b83"), vmin=0, vmax=1, aspect="equal")
    longest = min(18, max(len(c) for c in classes))
    crowded = 0.062 * longest > (3.6 if size <= 14 else 5.0) / size  # inches of the longest name, and of a column
    font = 8.0 if size <= 14 else 7.0
    named(axes.yaxis, classes, size=font, limit=18)
    named(axes.xaxis, classes, size=font, limit=18, turn=crowded)
    text = 9.0 if size <= 8 else 7.5 if size <= 14 else 5.5
    for row, column in zip(*np.nonzero(counts), strict=True):
        value = counts[row, column]
        label = f"{value}\n{share[row, column]:.0%}" if size <= 6 else f"{value}"
        color = "white" if share[row, column] > 0.5 else INK
        axes.text(column, row, label, ha="center", va="center", fontsize=text, color=color)
    axes.set_xticks(np.arange(-0.5, size), minor=True)
    axes.set_yticks(np.arange(-0.5, size), minor=True)
    axes.grid(which="minor", color="white" if size <= 14 else PALE, linewidth=1.0 if size <= 14 else 0.5)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#cccccc")
    right = int(np.trace(counts))
    axes.set_title(f"{right} of {int(counts.sum())} test answers are right (on the diagonal)")
    axes.set_ylabel(f"true {plain(name, 24)}")
    axes.set_xlabel(f"said {plain(name, 24)}    (shade: share of the row's class)")


def _reliability(curve: Any, counted: Any, score: NDArray, truth: NDArray, *, stacked: bool) -> None:
    rows, mean, share, error = calibration(score, truth)
    low, high = _wilson(share, rows)
    curve.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    there = rows > 0
    spread = np.maximum(np.stack([share - low, high - share])[:, there], 0)
    curve.errorbar(mean[there], share[there], yerr=spread, color=BLUE, fmt="o-", markersize=4, elinewidth=1, capsize=2)
    curve.set(xlim=(0, 1.03), ylim=(0, 1.03), ylabel="share right")
    curve.set_title(f"Is it as sure as it should be?\ncalibration error {error:.3f}")
    curve.grid()
    counted.bar((np.arange(BINS) + 0.5) / BINS, rows, width=0.9 / BINS, color=PALE, edgecolor=GREY, linewidth=0.6)
    counted.set(xlim=(0, 1.03), ylabel="rows", xlabel="probability of the class said")
    if not stacked:
        counted.set_title("How sure it is")
        curve.set_xlabel("probability of the class said")


def _wilson(share: NDArray, rows: NDArray) -> tuple[NDArray, NDArray]:
    """The 95 % interval of a share (Wilson, 1927)."""
    n = np.maximum(rows, 1)
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return centre - half, centre + half


@styled
def label_bars(log_odds: ArrayLike, target: ArrayLike, classes: Sequence[str], *, name: str = "labels") -> "Figure":
    """F1 and ROC AUC of every label on its own, the commonest first.

    Args:
        log_odds: (N, C).
        target: (N, C), true where a row has the label.
        classes: the labels' names.
        name: what they are called.
    """
    score, truth = np.asarray(log_odds), np.asarray(target, bool)
    rows = truth.sum(0)
    order = np.argsort(-rows, kind="stable")[:LIMIT]
    values = [multilabel(score[:, [c]], truth[:, [c]]) for c in order]
    drawn = figure(1.3 + 0.3 * len(order))
    axes = drawn.subplots()
    at = np.arange(len(order))
    for shift, metric, color, title in ((-0.19, "f1", BLUE, "F1"), (0.19, "roc_auc", GREEN, "ROC AUC")):
        known = [v[metric] for v in values]
        axes.barh(at + shift, [0.0 if v is None else v for v in known], height=0.36, color=color, label=title)
        for y, v in zip(at + shift, known, strict=True):
            shown = "none" if v is None else f"{v:.2f}"
            axes.text(0.008 + (v or 0.0), y, shown, va="center", fontsize=7, color=GREY if v is None else INK)
    named(axes.yaxis, [f"{classes[c]} ({rows[c]})" for c in order], limit=30)
    axes.set(xlim=(0, 1.08), ylim=(len(order) - 0.5, -0.5), xticks=np.linspace(0, 1, 6))
    more = f"; the {LIMIT} commonest of {len(classes)}" if len(classes) > LIMIT else ""
    axes.set_title(f"How well each of the {plain(name, 24)} is found (test rows that have it{more})")
    axes.axvline(0.5, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    axes.grid(axis="x")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, -0.02 - 1.0 / (1.3 + 0.3 * len(order))), ncols=2)
    return drawn
