"""Random features: maps φ with E[φ(x)ᵀφ(y)] = a kernel of x and y, so that attention needs no L × M weights.

Each map takes ω rows drawn by :func:`draw`. For the softmax kernel exp(xᵀy), queries and keys are first scaled by
β^½ each (d^(-1/4) for β = 1/√d).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mapsto.errors import ConfigError, did_you_mean

__all__ = [
    "COUPLINGS",
    "Exponential",
    "draw",
    "exponential",
    "gaussian",
    "generalised",
    "hyperbolic",
    "optimal_shape",
    "positive",
    "relative_variance",
    "trigonometric",
]

COUPLINGS = ("orthogonal", "iid", "regularised")

KERNELS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "softplus": F.softplus}
"""Functions f of generalised kernels."""


def draw(features: int, dim: int, source: torch.Generator, *, coupling: str = "orthogonal") -> Float[Tensor, "R K"]:
    """Rows ω ~ N(0, I_d), float64, on the CPU whatever the device.

    - ``iid``: independent rows.
    - ``orthogonal``: within each block of d rows the directions are a Haar-distributed rotation (the Q of a Gaussian
      matrix with the signs of diag R put right: LAPACK's own Q is not Haar-distributed, and the positive estimator is
      then biased by some 15 %); the norms are those of independent Gaussian vectors, so each row is N(0, I_d).
    - ``regularised``: orthogonal directions, all norms √d: another kernel, close to exp(xᵀy) for large d.

    Beyond d rows every block is drawn anew. Cost O(R d²).

    Args:
        features: R.
        dim: d.
        source: where numbers come from.
        coupling: how rows depend on each other.

    Raises:
        ConfigError: no such coupling, or no features.

    Reference: Choromanski et al., Rethinking attention with Performers, 2021; Mezzadri, How to generate random matrices
    from the classical compact groups, 2007.
    """
    if features < 1 or dim < 1:
        raise ConfigError(f"random features: {features} of width {dim}; expected 1 or more")
    if coupling not in COUPLINGS:
        known = ", ".join(COUPLINGS)
        raise ConfigError(f'coupling: "{coupling}" is not one of {known}.{did_you_mean(coupling, COUPLINGS)}')

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, dim, generator=source, dtype=torch.float64, device="cpu")

    if coupling == "iid":
        return normal(features)
    q, r = torch.linalg.qr(normal(math.ceil(features / dim) * dim).view(-1, dim, dim))
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    rows = (q * signs[:, None]).reshape(-1, dim)[:features]
    if coupling == "regularised":
        return rows * math.sqrt(dim)
    lengths: Tensor = normal(features).norm(dim=1, keepdim=True)
    return rows * lengths


def trigonometric(x: Float[Tensor, "... K"], omega: Float[Tensor, "R K"]) -> Float[Tensor, "... 2R"]:
    """φ(x) = exp(|x|²/2)/√m · (sin Ωx, cos Ωx), for exp(xᵀy).

    Mean-square error of one product: exp(|x+y|²) SM⁻² (1 − exp(−|x−y|²))² / (2m), SM = exp(xᵀy). Its normaliser crosses
    zero where SM is small: for kernels and figures, not for a model that learns.

    Reference: Rahimi & Recht, Random features for large-scale kernel machines, 2007.
    """
    return torch.exp(_square(x) / 2) * gaussian(x, omega)


def gaussian(x: Float[Tensor, "... K"], omega: Float[Tensor, "R K"]) -> Float[Tensor, "... 2R"]:
    """φ(x) = 1/√m · (sin Ωx, cos Ωx), for the Gaussian kernel exp(−|x−y|²/2).

    With rows drawn from N(0, (2/γ) I) it is for exp(−|x−y|²/γ).
    """
    turned = x @ omega.T
    return torch.cat([turned.sin(), turned.cos()], -1) / math.sqrt(len(omega))


def positive(x: Float[Tensor, "... K"], omega: Float[Tensor, "R K"]) -> Float[Tensor, "... R"]:
    """φ(x) = exp(−|x|²/2)/√m · exp(Ωx), for exp(xᵀy).

    Mean-square error of one product: exp(|x+y|²) SM² (1 − exp(−|x+y|²)) / m.

    Reference: Choromanski et al., Rethinking attention with Performers, 2021.
    """
    return exponential(x, Exponential.positive(omega))


def hyperbolic(x: Float[Tensor, "... K"], omega: Float[Tensor, "R K"]) -> Float[Tensor, "... 2R"]:
    """φ(x) = exp(−|x|²/2)/√(2m) · (exp Ωx, exp −Ωx), for exp(xᵀy).

    Mean-square error: ½ (1 − exp(−|x+y|²)) of that of :func:`positive` features.
    """
    return exponential(x, Exponential.hyperbolic(omega))


def generalised(
    x: Float[Tensor, "... K"], omega: Float[Tensor, "R K"], *, kernel: str = "relu", epsilon: float = 1e-3
) -> Float[Tensor, "... R"]:
    """φ(x) = f(Ωx)/√m + ε: the kernel is what f makes it, E[f(ωᵀx) f(ωᵀy)] for ε = 0; no exponential is taken.

    Args:
        x: queries or keys.
        omega: rows.
        kernel: f, ``relu`` or ``softplus``.
        epsilon: ε > 0 keeps normalisers positive; part of the kernel's definition.
    """
    return KERNELS[kernel](x @ omega.T) / math.sqrt(len(omega)) + epsilon


@dataclass(frozen=True)
class Exponential:
    """Features φ_r(x) = exp(rows_r·x + shift_r − size |x|²), whose products estimate exp(xᵀy) without bias.

    All positive maps are of this form, so that attention can be computed from logarithms alone.

    Attributes:
        rows: (R, K).
        shift: (R,).
        size: ½, unless :meth:`scaled`.
    """

    rows: Float[Tensor, "R K"]
    shift: Float[Tensor, " R"]
    size: float = 0.5

    @classmethod
    def positive(cls, omega: Float[Tensor, "R K"]) -> "Exponential":
        """Rows = Ω, shift = −½ log m."""
        return cls.optimal(omega, 0.0)

    @classmethod
    def hyperbolic(cls, omega: Float[Tensor, "R K"]) -> "Exponential":
        """Rows = (Ω, −Ω), shift = −½ log 2m."""
        return cls.positive(torch.cat([omega, -omega]))

    @classmethod
    def optimal(cls, omega: Float[Tensor, "R K"], shape: float) -> "Exponential":
        """Rows = √(1−4A) Ω, shift = A|ω|² + d/4 log(1−4A) − ½ log m, with A <= 0 as ``shape``.

        For m = 1, E[est²]/SM² = (1−4A)^d (1−8A)^(−d/2) exp(|x+y|²/(1−8A)); A = 0 is :meth:`positive`.

        Reference: Likhosherstov et al., Chefs' Random Tables, 2022.
        """
        grow = 1 - 4 * shape
        constant = omega.shape[1] / 4 * math.log(grow) - 0.5 * math.log(len(omega))
        return cls(math.sqrt(grow) * omega, shape * _square(omega)[:, 0] + constant)

    def scaled(self, beta: float) -> "Exponential":
        """For exp(β xᵀy): x and y are scaled by √β, here and not there."""
        return Exponential(math.sqrt(beta) * self.rows, self.shift, self.size * beta)

    def logits(self, x: Float[Tensor, "... K"]) -> Float[Tensor, "... R"]:
        """Rows·x + shift: log φ but for the size of x."""
        return (x @ self.rows.T).add_(self.shift)


def exponential(x: Float[Tensor, "... K"], features: Exponential) -> Float[Tensor, "... R"]:
    """φ(x) itself. Overflows where |rows·x| is large: attention uses logarithms instead."""
    return torch.exp(features.logits(x) - features.size * _square(x))


def optimal_shape(norm: float, dim: int) -> float:
    """The A <= 0 of least variance where the mean of |x+y|² over the pairs is ``norm``.

    ρ = (√((2ϕ+d)² + 8dϕ) − 2ϕ − d) / 4ϕ and A = (1 − 1/ρ)/8.

    Example:
        >>> round(optimal_shape(16.0, 64), 4)
        -0.0976

    Reference: Likhosherstov et al., Chefs' Random Tables, 2022.
    """
    if norm <= 0:
        return 0.0
    rho = (math.sqrt((2 * norm + dim) ** 2 + 8 * dim * norm) - 2 * norm - dim) / (4 * norm)
    return (1 - 1 / rho) / 8


def relative_variance(
    norm: Float[Tensor, "..."], features: int, dim: int, *, shape: float = 0.0, hyperbolic: bool = False
) -> Float[Tensor, "..."]:
    """Log of Var[φ(x)ᵀφ(y)] / exp(2xᵀy) for independent rows, from z = |x+y|².

    (exp(z) − 1)/m for positive features, (cosh z − 1)/m for hyperbolic ones, and
    ((1−4A)^d (1−8A)^(−d/2) exp(z/(1−8A)) − 1)/m in general. In logarithms, because the mean over pairs is ruled by one of
    them. Orthogonal rows have less.

    Args:
        norm: z, in the scale of the features: β|q+k|².
        features: m, the rows ω drawn.
        dim: d.
        shape: A.
        hyperbolic: whether each ω is used twice, with both signs.
    """
    constant = dim * math.log(1 - 4 * shape) - dim / 2 * math.log(1 - 8 * shape)
    second = norm.double() / (1 - 8 * shape) + constant
    if hyperbolic:  # cosh z − 1 = e^z (1 − e^−z)² / 2
        return second + 2 * torch.log(-torch.expm1(-second.clamp(min=1e-12))) - math.log(2 * features)
    return second + torch.log(-torch.expm1(-second.clamp(min=1e-12))) - math.log(features)


def _square(x: Float[Tensor, "... K"]) -> Float[Tensor, "... 1"]:
    return (x * x).sum(-1, keepdim=True)
