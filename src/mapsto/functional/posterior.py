"""Exact inference in models whose evidence is known: normal distributions, and the linear-Gaussian model.

They stand beside every latent-variable model: a VAE with a linear decoder can be as good as :class:`Ppca` and no better.
Give float64; nats a datum.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mapsto.errors import DataError

__all__ = ["Normal", "Ppca"]

LOG_TAU = math.log(2 * math.pi)


@dataclass(frozen=True)
class Normal:
    """x ~ N(μ, Σ), of which some numbers may be missing (NaN): they are integrated out.

    Attributes:
        mean: (D,) μ.
        covariance: (D, D) Σ.
    """

    mean: Float[Tensor, " D"]
    covariance: Float[Tensor, "D D"]

    @classmethod
    def fit(cls, x: Float[Tensor, "N D"]) -> "Normal":
        """The likeliest: mean and covariance (divided by N) of complete data.

        Raises:
            DataError: too few rows, or rows that leave a direction without spread.
        """
        mean, covariance = _moments(x)
        if torch.linalg.matrix_rank(covariance, hermitian=True) < x.shape[1]:
            raise DataError(
                f"{len(x)} rows have no spread in some direction of {x.shape[1]}: their covariance is singular"
            )
        return cls(mean, covariance)

    @classmethod
    def independent(cls, x: Float[Tensor, "N D"], *, least: float = 0.0) -> "Normal":
        """The likeliest with a diagonal Σ; variances are no smaller than ``least``. NaN is missing."""
        mean = x.nanmean(0)
        return cls(mean, torch.diag((x - mean).square().nanmean(0).clamp(min=least)))

    @classmethod
    def em(cls, x: Float[Tensor, "N D"]) -> Iterator[tuple["Normal", float]]:
        """Expectation-maximisation with numbers missing (NaN), for ever: the model and its mean log-likelihood after each step.

        It never falls. Starts at :meth:`independent`. A step fills each hole with E[x_missing | x_known]; the new μ is the
        mean of the filled rows, and the new Σ is their covariance and the mean of Cov[x_missing | x_known].

        Raises:
            DataError: a column without two different numbers.
        """
        model = cls.independent(x)
        if not (model.covariance.diagonal() > 0).all():
            raise DataError(f"column {int((~(model.covariance.diagonal() > 0)).nonzero()[0])} has no spread")
        yield model, float(model.log_likelihood(x).mean())
        while True:
            mean, covariance = _moments(model.impute(x))
            unsure = torch.zeros_like(covariance)
            for rows, known in _patterns(x):
                cross = model.covariance[known][:, ~known]
                explained = cross.T @ torch.linalg.solve(model.covariance[known][:, known], cross)
                at = (~known).nonzero()[:, 0]
                unsure[at[:, None], at] += len(rows) * (model.covariance[~known][:, ~known] - explained)
            model = cls(mean, covariance + unsure / len(x))
            yield model, float(model.log_likelihood(x).mean())

    def log_likelihood(self, x: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Log N(x_known; μ_known, Σ_known) = −½ (d log 2π + log det Σ + yᵀΣ⁻¹y), y = x − μ, of the d numbers known."""
        found = x.new_zeros(len(x))
        for rows, known in _patterns(x):
            factor = torch.linalg.cholesky(self.covariance[known][:, known])
            y = torch.linalg.solve_triangular(factor, (x[rows][:, known] - self.mean[known]).T, upper=False)
            log_det = 2 * torch.log(torch.diagonal(factor)).sum()
            found[rows] = -0.5 * (int(known.sum()) * LOG_TAU + log_det + y.square().sum(0))
        return found

    def impute(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """X with E[x_missing | x_known] = μ_m + Σ_mk Σ_kk⁻¹ (x_k − μ_k) where it is NaN."""
        filled = x.clone()
        for rows, known in _patterns(x):
            y = x[rows][:, known] - self.mean[known]
            weight = torch.linalg.solve(self.covariance[known][:, known], self.covariance[known][:, ~known])
            filled[rows[:, None], (~known).nonzero()[:, 0]] = self.mean[~known] + y @ weight
        return filled


@dataclass(frozen=True)
class Ppca:
    """Probabilistic principal component analysis: z ~ N(0, I_q), x | z ~ N(Wz + μ, σ²I).

    With M = WᵀW + σ²I and y = x − μ,

    - p(z | x) = N(M⁻¹Wᵀy, σ²M⁻¹),
    - log p(x) = −½ [D log 2π + (D − q) log σ² + log det M + (|y|² − yᵀWM⁻¹Wᵀy) / σ²].

    Attributes:
        weight: (D, q) W.
        mean: (D,) μ.
        variance: σ².

    Example:
        >>> model = Ppca(torch.tensor([[1.0], [2.0]]).double(), torch.zeros(2).double(), 0.25)
        >>> x = torch.tensor([[0.5, -1.0]]).double()
        >>> round(float(model.log_likelihood(x)), 6), round(float(model.posterior(x)[0]), 6)
        (-3.616701, -0.285714)

    Reference: Tipping and Bishop, Probabilistic principal component analysis, 1999.
    """

    weight: Float[Tensor, "D q"]
    mean: Float[Tensor, " D"]
    variance: float

    @classmethod
    def fit(cls, x: Float[Tensor, "N D"], latent: int) -> "Ppca":
        """The likeliest: W = U_q (Λ_q − σ²I)^½ of the largest eigenvalues of the covariance, σ² the mean of the others.

        Raises:
            DataError: ``latent`` leaves no direction for the noise, or the data have no spread there.
        """
        dims = x.shape[1]
        if not 0 <= latent < dims:
            raise DataError(f"{latent} latent dimensions of {dims}: one at least must be left for the noise")
        mean, covariance = _moments(x)
        values, vectors = torch.linalg.eigh(covariance)
        variance = float(values[: dims - latent].clamp(min=0).mean())
        if not variance > 1e-12 * float(values[-1]):
            raise DataError(f"{len(x)} rows of {dims} numbers have no spread beyond {latent} directions.   Use fewer")
        weight = vectors[:, dims - latent :] * (values[dims - latent :] - variance).clamp(min=0).sqrt()
        return cls(weight.flip(1), mean, variance)

    @classmethod
    def em(
        cls, x: Float[Tensor, "N D"], latent: int, stream: torch.Generator, *, start: float = 0.1
    ) -> Iterator[tuple["Ppca", float]]:
        """Expectation-maximisation, for ever: the model and its mean log-likelihood after each step, which never falls.

        Starts at W ~ N(0, ``start``²), σ² = 1. One step is, with S the covariance of the data,

        W' = SW (σ²I + M⁻¹WᵀSW)⁻¹,  σ'² = tr(S − SWM⁻¹W'ᵀ) / D.
        """
        mean, covariance = _moments(x)
        dims = x.shape[1]
        drawn = torch.randn(dims, latent, generator=stream, dtype=torch.float64)
        model = cls(start * drawn.to(x), mean, 1.0)
        yield model, float(model.log_likelihood(x).mean())
        while True:
            weight, product = model.weight, covariance @ model.weight
            inner = torch.linalg.solve(model.precision, weight.T @ product)
            inner.diagonal().add_(model.variance)
            new = torch.linalg.solve(inner.T, product.T).T
            lost = torch.einsum("dq,qd->", torch.linalg.solve(model.precision, new.T).T, product.T)
            model = cls(new, mean, float(covariance.trace() - lost) / dims)
            yield model, float(model.log_likelihood(x).mean())

    @property
    def precision(self) -> Float[Tensor, "q q"]:
        """M = WᵀW + σ²I: the posterior's precision, times σ²."""
        found = self.weight.T @ self.weight
        found.diagonal().add_(self.variance)
        return found

    @property
    def normal(self) -> Normal:
        """N(μ, WWᵀ + σ²I), the same without its latent variable."""
        covariance = self.weight @ self.weight.T
        covariance.diagonal().add_(self.variance)
        return Normal(self.mean, covariance)

    @property
    def gap(self) -> float:
        """How far the ELBO of the best diagonal q is below log p(x), the same for every x: ½ (Σ_i log M_ii − log det M)."""
        return 0.5 * float(torch.log(self.precision.diagonal()).sum() - torch.logdet(self.precision))

    def log_likelihood(self, x: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        """Log p(x), in O(N D q)."""
        dims, latent = self.weight.shape
        y = x - self.mean
        inner = y @ self.weight
        explained = (inner * torch.linalg.solve(self.precision, inner.T).T).sum(1)
        log_det = (dims - latent) * math.log(self.variance) + torch.logdet(self.precision)
        return -0.5 * (dims * LOG_TAU + log_det + (y.square().sum(1) - explained) / self.variance)

    def posterior(self, x: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N q"], Float[Tensor, "q q"]]:
        """Mean of p(z | x) and its covariance, the same for every x."""
        mean = torch.linalg.solve(self.precision, ((x - self.mean) @ self.weight).T).T
        return mean, self.variance * torch.linalg.inv(self.precision)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance divided by N."""
    mean = x.mean(0)
    y = x - mean
    return mean, y.T @ y / len(x)


def _patterns(x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows that lack the same numbers: their indices, and which are known."""
    kinds, which = torch.unique(~torch.isnan(x), dim=0, return_inverse=True)
    for i, known in enumerate(kinds):
        yield (which == i).nonzero()[:, 0], known
