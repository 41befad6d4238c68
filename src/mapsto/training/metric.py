"""The numbers a user reads on the test split, each from arrays of all rows, and their bootstrap intervals.

Every metric is a ratio of sums over rows, so every metric takes a weight a row, and a resampled data set is only
another line of weights: ``weight`` is (..., N) and the answer is (...). A weight of 2 is the row written twice, of 0
a row that is not there. Nothing depends on the order of the rows or on how they were batched (law Y).

Log-probabilities cross the border, not probabilities. A metric that has no value is None (NaN among resamples), and
:func:`why` says the reason.
"""

from collections.abc import Callable, Mapping
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from mapsto.errors import DataError, NonFiniteError
from mapsto.stream import stream_numpy
from mapsto.training.weight import Floats, Resampled, Values, ratio, report, weighted, weights

__all__ = ["bootstrap", "classification", "confusion", "multilabel", "regression", "why"]

_BLOCK = 2**21  # weights in memory at once: 16 MB, a size that the caches still help


@overload
def classification(log_probability: ArrayLike, target: ArrayLike, *, weight: None = None) -> Values: ...
@overload
def classification(log_probability: ArrayLike, target: ArrayLike, *, weight: Floats) -> Resampled: ...
def classification(
    log_probability: ArrayLike, target: ArrayLike, *, weight: Floats | None = None
) -> Values | Resampled:
    """Metrics of one label a row.

    - ``accuracy``: the share of rows whose most probable class is the target (ties go to the lowest class).
    - ``balanced_accuracy``: the mean over the target's classes of the share of their rows found.
    - ``f1``: the mean of 2 TP / (targets + predictions) over the classes that occur as target or as prediction.
    - ``roc_auc``: P(score of a positive > score of a negative) + half P(they tie). Two classes: of class 1; more: the
      mean of each class against the rest, over the classes that have rows on both sides.
    - ``nll``: the mean of -log p(target), in nats; infinite if a target was given no probability.

    Without rows all are None; ``roc_auc`` is None too if the targets are all of one class. Sorting is done once for
    all weights: time O(C N log N + R C N) for R lines of weights.

    Args:
        log_probability: (N, C), in nats.
        target: (N,) integers in 0 ... C - 1.
        weight: (..., N), not negative; without it every row counts once.

    Raises:
        DataError: shapes that do not fit, or a target that is no class; names the row.
        NonFiniteError: a NaN among the log-probabilities; names the rows.

    Example:
        >>> classification(np.log([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), [0, 1, 1])["accuracy"]
        0.6666666666666666
    """
    score = _numbers("log_probability", log_probability, infinite=True)
    rows, classes = score.shape
    truth = _classes(target, rows, classes)
    w = weights(weight, rows)
    guess = score.argmax(1)
    hit = guess == truth
    found, targets, guesses = (
        _by_class(w[:, at], label[at], classes)
        for at, label in ((hit, truth), (slice(None), truth), (slice(None), guess))
    )
    if classes == 2:
        # log-odds keep the order of p that float32 loses where log p rounds to 0
        auc = _auc(w, score[:, 1] - score[:, 0], truth == 1)
    else:
        auc = _average(np.stack([_auc(w, score[:, c], truth == c) for c in range(classes)], 1))
    return report(
        {
            "accuracy": weighted(w, hit),
            "balanced_accuracy": _average(ratio(found, targets)),
            "f1": _average(ratio(2 * found, targets + guesses)),
            "roc_auc": auc,
            "nll": weighted(w, -score[np.arange(rows), truth]),
        },
        weight,
    )


@overload
def multilabel(log_odds: ArrayLike, target: ArrayLike, *, weight: None = None) -> Values: ...
@overload
def multilabel(log_odds: ArrayLike, target: ArrayLike, *, weight: Floats) -> Resampled: ...
def multilabel(log_odds: ArrayLike, target: ArrayLike, *, weight: Floats | None = None) -> Values | Resampled:
    """Metrics of several labels a row, each there or not: label c is predicted if its log-odds are above 0.

    - ``accuracy``: the share of right answers among all rows and labels.
    - ``exact_match``: the share of rows with every label right.
    - ``f1``: the mean of 2 TP / (targets + predictions) over the labels that occur as target or as prediction.
    - ``roc_auc``: the mean over the labels that some rows have and others have not.
    - ``nll``: the mean over rows of the sum over labels of -log p, in nats a row: log(1 + exp(-s)) for a label that
      is there with log-odds s, log(1 + exp(s)) for one that is not.

    Args:
        log_odds: (N, C), log p - log(1 - p).
        target: (N, C), true where the row has the label.
        weight: (..., N), as for :func:`classification`.

    Raises:
        DataError: shapes that do not fit.
        NonFiniteError: a NaN among the log-odds; names the rows.
    """
    score = _numbers("log_odds", log_odds, infinite=True)
    truth = np.asarray(target, bool)
    _same("target", truth, score.shape)
    w = weights(weight, len(score))
    guess = score > 0
    right = guess == truth
    labels = score.shape[1]
    found, both = w @ (guess & truth).astype(float), w @ (guess.astype(float) + truth)
    return report(
        {
            "accuracy": weighted(w, right.mean(1)),
            "exact_match": weighted(w, right.all(1)),
            "f1": _average(ratio(2 * found, both)),
            "roc_auc": _average(np.stack([_auc(w, score[:, c], truth[:, c]) for c in range(labels)], 1)),
            "nll": weighted(w, np.logaddexp(0, np.where(truth, -score, score)).sum(1)),
        },
        weight,
    )


@overload
def regression(mean: ArrayLike, target: ArrayLike, nll: ArrayLike | None = None, *, weight: None = None) -> Values: ...
@overload
def regression(mean: ArrayLike, target: ArrayLike, nll: ArrayLike | None = None, *, weight: Floats) -> Resampled: ...
def regression(
    mean: ArrayLike, target: ArrayLike, nll: ArrayLike | None = None, *, weight: Floats | None = None
) -> Values | Resampled:
    """Metrics of D numbers a row, in the target's own units; each is the mean over the D numbers.

    - ``mae``: the mean of |mean - target|.
    - ``rmse``: the square root of the mean of (mean - target)^2.
    - ``r2``: 1 - sum (mean - target)^2 / sum (target - its average)^2, over the numbers that vary; None if none does.
    - ``nll``: the mean of ``nll``, in nats a row; None if the model gives no density.

    Args:
        mean: (N, D).
        target: (N, D).
        nll: (N,), -log p(target) of each row.
        weight: (..., N), as for :func:`classification`.

    Raises:
        DataError: shapes that do not fit.
        NonFiniteError: a mean or target that is NaN or infinite; names the rows.
    """
    guess, truth = _numbers("mean", mean), _numbers("target", target)
    _same("target", truth, guess.shape)
    rows = len(truth)
    w = weights(weight, rows)
    total = w.sum(1, keepdims=True)
    error = guess - truth
    centred = truth - (truth.mean(0) if rows else 0.0)  # keeps the difference of sums below exact
    second = w @ centred**2
    spread = second - ratio((w @ centred) ** 2, total)
    spread = np.where(spread > 1e-12 * second, spread, 0.0)  # what rounding leaves of a constant target is no spread
    squares = w @ error**2
    values = {
        "mae": _average(ratio(w @ np.abs(error), total)),
        "rmse": _average(np.sqrt(ratio(squares, total))),
        "r2": _average(1 - ratio(squares, spread)),
        "nll": np.full(len(w), np.nan),
    }
    if nll is not None:
        density = _numbers("nll", np.asarray(nll, float)[..., None], infinite=True)[:, 0]
        _same("nll", density, (rows,))
        values["nll"] = weighted(w, density)
    return report(values, weight)


def confusion(target: ArrayLike, predicted: ArrayLike, classes: int) -> NDArray[np.int64]:
    """(C, C) counts: row c, column k holds the rows of class c that were taken for class k.

    Raises:
        DataError: a target or a prediction that is no class; names the row.

    Example:
        >>> confusion([0, 1, 1], [0, 1, 0], 2)
        array([[1, 0],
               [1, 1]])
    """
    rows = len(np.asarray(target))
    pair = _classes(target, rows, classes) * classes + _classes(predicted, rows, classes, "predicted")
    return np.bincount(pair, minlength=classes * classes).reshape(classes, classes).astype(np.int64)


def bootstrap(
    metric: Callable[..., Mapping[str, Any]],
    rows: int,
    *,
    groups: ArrayLike | None = None,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of every metric, from resampling rows, or whole groups, with replacement.

    An end of an interval is the resample that leaves (1 - level) / 2 of them outside, rounded outwards. A metric is
    left out if it has no value in half of the resamples or more; all are left out with fewer than two rows (groups).
    Resample r depends on (seed, r) and the number of rows only.

    Args:
        metric: called as ``metric(weight=(R, N))``, gives (R,) a metric: ``partial(classification, scores, target)``.
        rows: N, how many rows there are.
        groups: (N,) names or numbers: rows of one group come and go together, as the items of one sequence must.
        resamples: how many.
        seed: of the draws.
        level: the share of resamples inside.

    Raises:
        DataError: ``groups`` is not one a row.

    Example:
        >>> from functools import partial
        >>> truth = np.array([0, 1] * 50)
        >>> sure = np.log(np.where(np.eye(2, dtype=bool)[truth], 0.9, 0.1))
        >>> bootstrap(partial(classification, sure, truth), 100)["accuracy"]
        (1.0, 1.0)
    """
    member, units = np.arange(rows), rows
    if groups is not None:
        names, member = np.unique(np.asarray(groups), return_inverse=True)
        _same("groups", member, (rows,))
        units = len(names)
    if units < 2:
        return {}
    drawn: dict[str, list[Floats]] = {}
    block = max(1, _BLOCK // rows)
    for start in range(0, resamples, block):
        weight = np.empty((min(block, resamples - start), rows))
        for r, line in enumerate(weight):
            draws = stream_numpy(seed, "bootstrap", start + r).integers(0, units, units)
            line[:] = np.bincount(draws, minlength=units)[member]
        for name, values in metric(weight=weight).items():
            drawn.setdefault(name, []).append(np.asarray(values, float))
    intervals = {}
    for name, parts in drawn.items():
        values = np.concatenate(parts)
        values = np.sort(values[~np.isnan(values)])
        if 2 * len(values) > resamples:
            outside = (1 - level) / 2 * (len(values) - 1)
            low, high = int(np.floor(outside)), int(np.ceil(len(values) - 1 - outside))
            intervals[name] = (float(values[low]), float(values[high]))
    return intervals


def why(metric: str) -> str:
    """Why a metric is None, to print beside it.

    Example:
        >>> why("roc_auc")
        'roc_auc needs rows of two classes at least'
    """
    needs = {
        "roc_auc": "rows of two classes at least",
        "r2": "targets that are not all the same",
        "nll": "rows, and a model that gives probabilities or a density",
        "per": "true answers that are not all empty",
        "wer": "true answers that have words",
        "bits_per_character": "true answers that have characters",
    }
    return f"{metric} needs {needs.get(metric, 'at least one row')}"


def _auc(w: Floats, score: Floats, positive: NDArray[np.bool_]) -> Floats:
    # Mann-Whitney: sum over positives of w * (weight below + half the weight tied), less the positives' own part
    order = np.argsort(score, kind="stable")
    ranked = score[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]])) if len(score) else order
    ends = np.append(starts[1:], len(score))
    here = np.flatnonzero(positive[order])
    tie = np.searchsorted(starts, here, side="right") - 1
    below = np.zeros((len(w), len(score) + 1))
    np.cumsum(w[:, order], axis=1, out=below[:, 1:])
    mine = w[:, order[here]]
    midrank = (below[:, starts[tie]] + below[:, ends[tie]]) / 2
    plus, minus = mine.sum(1), w @ ~positive
    return ratio(np.einsum("rp,rp->r", mine, midrank) - plus**2 / 2, plus * minus)


def _by_class(w: Floats, label: NDArray[np.int64], classes: int) -> Floats:
    n = len(label)
    one_hot = sparse.csr_array((np.ones(n), label, np.arange(n + 1)), shape=(n, classes))
    return np.asarray((one_hot.T @ w.T).T)


def _average(values: Floats) -> Floats:
    defined = ~np.isnan(values)
    return ratio(np.where(defined, values, 0.0).sum(1), defined.sum(1).astype(float))


def _numbers(name: str, values: ArrayLike, *, infinite: bool = False) -> Floats:
    array = np.asarray(values, float)
    if array.ndim != 2 or array.shape[1] == 0:
        raise DataError(f"{name}: expected one line of numbers a row, (N, C), got shape {array.shape}")
    bad = np.flatnonzero((np.isnan(array) if infinite else ~np.isfinite(array)).any(1))
    if len(bad):
        shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        what = "NaN" if infinite else "NaN or infinite"
        raise NonFiniteError(f"{name}: {what} in {len(bad)} of {len(array)} rows ({shown}).   Expected numbers")
    return array


def _classes(values: ArrayLike, rows: int, classes: int, name: str = "target") -> NDArray[np.int64]:
    array = np.asarray(values)
    _same(name, array, (rows,))
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected the numbers of classes, 0 to {classes - 1}, got {array.dtype}")
    bad = np.flatnonzero(~((array >= 0) & (array < classes) & (array == np.floor(array))))
    if len(bad):
        raise DataError(f"{name} row {bad[0]}: {array[bad[0]]} is not a class.   Expected 0 to {classes - 1}")
    return array.astype(np.int64)


def _same(name: str, array: NDArray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise DataError(f"{name}: shape {array.shape} does not fit.   Expected {shape}")
