"""Simple models beside every result: if one of them does better, the user must see it.

Features x are a dense array, which is standardised inside (a constant column counts for nothing, a missing value for
the column's mean), or a scipy CSR array, which is taken as it is: :func:`ngrams` and :func:`tfidf` make one from rows
of tokens. Everything is deterministic.

A strength ``l2`` means sum of nll + l2 / 2 |W|^2 for the logistic models (scikit-learn's ``C`` is 1 / l2), and
sum of squares + l2 |W|^2 for the ridge (its ``alpha``), the intercept never counted; :func:`tuned` chooses it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, optimize, sparse, special
from scipy.sparse.linalg import LinearOperator, cg

__all__ = ["Baseline", "Logistic", "LogisticLabels", "Mean", "MostCommon", "MostCommonLabels", "Normal", "Ridge"]
__all__ += ["idf", "tfidf", "tuned"]

Floats = NDArray[np.float64]
Features = Any  # (N, F): a dense array of numbers or a scipy CSR array
_CLOSED = 1024  # features up to which the ridge is solved by Cholesky, whose cost is N F^2


class Baseline(Protocol):
    """What a simple model can do."""

    def fit(self, x: Features, y: Any) -> Self:
        """Learn from the training rows; gives itself."""

    def predict(self, x: Features) -> Any:
        """Log-probabilities (N, C), log-odds (N, C) of several labels, or a :class:`Normal`."""


class Normal(NamedTuple):
    """What a regression predicts, in the target's own units: means (N, D), a standard deviation a column (D,)."""

    mean: Floats
    sigma: Floats

    def nll(self, y: ArrayLike) -> Floats:
        """(N,) the sum over D of ((y - mean) / sigma)^2 / 2 + log sigma + log(2 pi) / 2."""
        z = (_columns(y) - self.mean) / self.sigma
        return (z**2 / 2 + np.log(self.sigma) + np.log(2 * np.pi) / 2).sum(1)


@dataclass
class MostCommon:
    """The frequency of each class, whatever the row: log((count + 1) / (N + C)), so no class is impossible."""

    classes: int

    def fit(self, x: Features, y: ArrayLike) -> Self:
        """Count the classes of y (N,)."""
        counts = np.bincount(np.asarray(y, np.int64), minlength=self.classes) + 1.0
        self.log_frequency = np.log(counts / counts.sum())
        return self

    def predict(self, x: Features) -> Floats:
        """(N, C) log-probabilities."""
        return np.tile(self.log_frequency, (x.shape[0], 1))


@dataclass
class MostCommonLabels:
    """The frequency of each of several labels, whatever the row: log-odds log((count + 1) / (N - count + 1))."""

    def fit(self, x: Features, y: ArrayLike) -> Self:
        """Count the labels of y (N, C)."""
        count = np.asarray(y, float).sum(0)
        self.log_odds = np.log((count + 1) / (x.shape[0] - count + 1))
        return self

    def predict(self, x: Features) -> Floats:
        """(N, C) log-odds."""
        return np.tile(self.log_odds, (x.shape[0], 1))


@dataclass
class Mean:
    """The mean and the standard deviation of the training targets, whatever the row."""

    def fit(self, x: Features, y: ArrayLike) -> Self:
        """Average y (N, D) or (N,)."""
        target = _columns(y)
        self.mean, self.sigma = target.mean(0), _sigma(target - target.mean(0), _deviation(target))
        return self

    def predict(self, x: Features) -> Normal:
        """The same normal for every row."""
        return Normal(np.tile(self.mean, (x.shape[0], 1)), self.sigma)


@dataclass
class Logistic:
    """Multinomial logistic regression, log p(c | x) = log softmax(x W + b)_c, by L-BFGS; two classes share one column.

    Attributes:
        classes: C, how many there are (some may be absent from the training rows).
        l2: strength of the penalty on W.
        limit: the most steps of L-BFGS, which ends before if a step gains less than 1e-6 nats a row.
    """

    strengths: ClassVar = (30.0, 3.0, 0.3, 0.03)
    classes: int
    l2: float = 1.0
    limit: int = 200
    affine: "_Affine" = field(init=False, repr=False)

    def fit(self, x: Features, y: ArrayLike, *, start: Self | None = None) -> Self:
        """Fit to y (N,), integers in 0 ... C - 1; ``start`` is a fit to the same rows with another l2."""
        label = np.asarray(y, np.int64)
        two = self.classes == 2
        target, link = (label[:, None].astype(float), _sigmoid) if two else (np.eye(self.classes)[label], _softmax)
        self.affine = _descend(x, target, link, self.l2, self.limit, start.affine if start else None)
        return self

    def predict(self, x: Features) -> Floats:
        """(N, C) log-probabilities."""
        s = self.affine(x)
        return -np.logaddexp(0, s * [1, -1]) if self.classes == 2 else special.log_softmax(s, 1)

    def validate(self, x: Features, y: ArrayLike) -> float:
        """The mean nll of held-out rows."""
        return -float(self.predict(x)[np.arange(x.shape[0]), np.asarray(y, np.int64)].mean())


@dataclass
class LogisticLabels:
    """Logistic regression of several labels, each by itself: log-odds x W + b; ``l2``, ``limit`` as of Logistic."""

    strengths: ClassVar = Logistic.strengths
    l2: float = 1.0
    limit: int = 200
    affine: "_Affine" = field(init=False, repr=False)

    def fit(self, x: Features, y: ArrayLike, *, start: Self | None = None) -> Self:
        """Fit to y (N, C), true where the row has the label."""
        self.affine = _descend(x, np.asarray(y, float), _sigmoid, self.l2, self.limit, start.affine if start else None)
        return self

    def predict(self, x: Features) -> Floats:
        """(N, C) log-odds."""
        return self.affine(x)

    def validate(self, x: Features, y: ArrayLike) -> float:
        """The mean nll of held-out rows."""
        return _sigmoid(self.affine(x), np.asarray(y, float))[0] / x.shape[0]


@dataclass
class Ridge:
    """Least squares with a penalty: standardised y = x W + b, W minimising |y - x W - b|^2 + l2 |W|^2.

    Solved by Cholesky for dense features up to 1,024, else by conjugate gradients. The standard deviation of the
    prediction is that of the training residuals, until :meth:`validate` takes it from held-out ones, which
    overfitting cannot flatter.

    Attributes:
        l2: strength of the penalty on W, above 0.
        limit: the most steps of conjugate gradients.
    """

    strengths: ClassVar = (1000.0, 100.0, 10.0, 1.0)
    l2: float = 1.0
    limit: int = 200
    affine: "_Affine" = field(init=False, repr=False)

    def fit(self, x: Features, y: ArrayLike, *, start: Self | None = None) -> Self:
        """Fit to y (N, D) or (N,); ``start`` is a fit to the same rows with another l2."""
        target = _columns(y)
        self.center, self.scale = target.mean(0), _deviation(target)
        warm = start.affine if start else None
        scaling = warm.scaling if warm else _Scaling(x)
        a, b = scaling(x), (target - self.center) / self.scale
        first = warm.weight if warm else np.zeros((a.shape[1], b.shape[1]))
        weight, bias = _least_squares(a, b, self.l2, first, self.limit)
        self.affine = _Affine(scaling, weight, bias)
        self.sigma = _sigma(target - self._mean(x), self.scale)
        return self

    def predict(self, x: Features) -> Normal:
        """The mean of each row, and the standard deviation of every one."""
        return Normal(self._mean(x), self.sigma)

    def validate(self, x: Features, y: ArrayLike) -> float:
        """The mean nll of held-out rows, under the standard deviation that they themselves show, which is kept."""
        self.sigma = _sigma(_columns(y) - self._mean(x), self.scale)
        return float(self.predict(x).nll(y).mean())

    def _mean(self, x: Features) -> Floats:
        return self.affine(x) * self.scale + self.center


Model = TypeVar("Model", Logistic, LogisticLabels, Ridge)


def tuned(
    model: Model, train_x: Features, train_y: Any, val_x: Features, val_y: Any, *, strengths: Sequence[float] = ()
) -> Model:
    """The model, fitted with the l2 of ``strengths`` (or of its class) that does best on the validation rows.

    From strong to weak, each from the last, until the validation nll rises; ``model`` itself is not changed. Without
    validation rows its own l2 is taken.
    """
    if val_x.shape[0] == 0:
        return replace(model).fit(train_x, train_y)
    best, least, last = model, np.inf, None
    for l2 in sorted(strengths or model.strengths, reverse=True):
        last = replace(model, l2=l2).fit(train_x, train_y, start=last)
        loss = last.validate(val_x, val_y)
        if best is not model and not loss < least:
            break
        best, least = last, loss
    return best


def idf(counts: sparse.csr_array) -> NDArray[np.float32]:
    """(F,) how rare a column is among the training rows: log((1 + N) / (1 + rows that have it)) + 1."""
    having = np.bincount(counts.indices, minlength=counts.shape[1])
    return (np.log((1 + counts.shape[0]) / (1 + having)) + 1).astype(np.float32)


def tfidf(counts: sparse.csr_array, weight: NDArray[np.float32]) -> sparse.csr_array:
    """(N, F) (1 + log count) * weight, with ``weight`` (F,) the :func:`idf` of the training rows; rows of length 1.

    A row without entries stays zero.
    """
    data = (1 + np.log(counts.data)) * weight[counts.indices]
    row = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    length = np.sqrt(np.bincount(row, data.astype(float) ** 2, minlength=counts.shape[0]))
    data = (data / length[row]).astype(np.float32)
    return sparse.csr_array((data, counts.indices, counts.indptr), shape=counts.shape)


class _Scaling:
    # dense: (x - mean) / deviation of the columns that vary; sparse: the columns that occur (others keep weight 0)
    def __init__(self, x: Features) -> None:
        if sparse.issparse(x):
            self.kept = np.flatnonzero(np.bincount(x.indices, minlength=x.shape[1]))
            return
        x = np.asarray(x)
        there = np.isfinite(x)
        known = np.where(there, x, 0)
        count = np.maximum(1, there.sum(0))
        self.center = known.sum(0, dtype=float) / count
        self.scale = np.sqrt((np.where(there, x - self.center, 0) ** 2).sum(0, dtype=float) / count)
        low, high = np.where(there, x, np.inf), np.where(there, x, -np.inf)
        constant = low.min(0, initial=np.inf) >= high.max(0, initial=-np.inf)
        self.scale[constant] = np.inf  # such a column becomes zero, in rows to come as well

    def __call__(self, x: Features) -> Features:
        if sparse.issparse(x):
            return x if len(self.kept) == x.shape[1] else x[:, self.kept]
        x = np.asarray(x)
        z = (np.where(np.isfinite(x), x, self.center) - self.center) / self.scale
        return z.astype(np.float32 if x.dtype == np.float32 else np.float64)


class _Affine(NamedTuple):
    scaling: _Scaling
    weight: Floats  # (F, K)
    bias: Floats  # (K,)

    def __call__(self, x: Features) -> Floats:
        return _product(self.scaling(x), self.weight) + self.bias


Link = Callable[[Floats, Floats], tuple[float, Floats]]  # logits, targets (N, K) -> sum of -log p, its gradient


def _softmax(logits: Floats, target: Floats) -> tuple[float, Floats]:
    log_p = special.log_softmax(logits, 1)
    return -float(np.vdot(log_p, target)), np.exp(log_p) - target


def _sigmoid(logits: Floats, target: Floats) -> tuple[float, Floats]:
    return float((np.logaddexp(0, logits) - target * logits).sum()), special.expit(logits) - target


def _descend(x: Features, target: Floats, link: Link, l2: float, limit: int, start: _Affine | None) -> _Affine:
    scaling = start.scaling if start else _Scaling(x)
    a = scaling(x)
    transposed = a.T.tocsr() if sparse.issparse(a) else a.T
    rows, shape = max(1, a.shape[0]), (a.shape[1] + 1, target.shape[1])

    def objective(flat: Floats) -> tuple[float, Floats]:
        w = flat.reshape(shape)
        loss, residual = link(_product(a, w[:-1]) + w[-1], target)
        gradient = np.empty(shape)
        gradient[:-1] = _product(transposed, residual) + l2 * w[:-1]
        gradient[-1] = residual.sum(0)
        return (loss + l2 / 2 * float(np.vdot(w[:-1], w[:-1]))) / rows, gradient.ravel() / rows

    first = np.concatenate([start.weight, start.bias[None]]) if start else np.zeros(shape)
    options = {"maxiter": limit, "maxcor": 8, "gtol": 1e-5, "ftol": 1e-6}
    w = optimize.minimize(objective, first.ravel(), jac=True, method="L-BFGS-B", options=options).x.reshape(shape)
    return _Affine(scaling, w[:-1], w[-1])


def _least_squares(a: Features, b: Floats, l2: float, first: Floats, limit: int) -> tuple[Floats, Floats]:
    # b has mean 0, so centring a alone gives the intercept: -mean W
    width = a.shape[1]
    mean = np.asarray(a.sum(0, dtype=float)).ravel() / max(1, a.shape[0])
    if not sparse.issparse(a) and width <= _CLOSED:
        a = a.astype(float)  # in float32 the smallest eigenvalues would be noise
        gram = a.T @ a - a.shape[0] * np.outer(mean, mean)
        gram[np.diag_indices(width)] += l2
        weight = linalg.solve(gram, a.T @ b, assume_a="pos") if width else first
        return weight, -mean @ weight

    def normal(w: Floats) -> Floats:
        u = _product(a, w) - mean @ w
        return _product(a.T, u) - mean * u.sum() + l2 * w

    matrix = LinearOperator((width, width), normal, dtype=float)
    right = _product(a.T, b)
    solved = [cg(matrix, r, x0=w, rtol=1e-7, maxiter=limit)[0] for r, w in zip(right.T, first.T, strict=True)]
    return np.stack(solved, 1), -mean @ np.stack(solved, 1)


def _product(x: Features, w: Floats) -> Floats:
    vector = w.ndim == 2 and w.shape[1] == 1  # with which scipy is faster
    product = x @ (w[:, 0] if vector else w).astype(x.dtype, copy=False)
    return (product[:, None] if vector else product).astype(float)


def _columns(y: ArrayLike) -> Floats:
    array = np.asarray(y, float)
    return array[:, None] if array.ndim == 1 else array


def _deviation(target: Floats) -> Floats:
    deviation = target.std(0)
    return np.where(np.ptp(target, axis=0) > 0, deviation, 1.0)


def _sigma(residual: Floats, scale: Floats) -> Floats:
    return np.maximum(np.sqrt((residual**2).mean(0)), 1e-6 * scale)
