"""Whether random features estimate what they say, with the variance that theory gives them.

    python benchmarks/kernel.py --draws 1000000

For a pair of vectors with |x + y|² = 1, in 8, 16 and 64 dimensions, every map is asked for φ(x)·φ(y) by each drawn ω
alone. Estimates of the same block of d rows are averaged first, so that blocks are independent whatever the coupling.

- *bias*: (mean − kernel) / standard error, below 4 in size; for orthogonal rows too.
- *error*: mean-square error of d independent rows over that of the formula, within 5 %.
- *saved*: what orthogonal rows take off the error, over the least that theory promises (positive features).

A twin that takes LAPACK's Q as it comes, without putting its signs right, must be caught. Ends with status 1 if anything
is not as it should be.
"""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import hyp0f1
from torch import Tensor

from mapsto.functional import feature
from mapsto.functional.feature import Exponential, draw, exponential, optimal_shape
from mapsto.stream import stream
from race import table

__all__ = ["MAPS", "SOFTMAX", "Sample", "careless", "pair", "promised", "regularised", "sample", "theory"]

NORM, APART = 1.0, 0.3  # |x + y|², |x − y|²

PIECE = 1 << 13
"""Rows that stay in the cache."""

Map = Callable[[Tensor, Tensor], Tensor]


def optimal(x: Tensor, omega: Tensor) -> Tensor:
    return exponential(x, Exponential.optimal(omega, optimal_shape(NORM, x.shape[-1])))


def relu(x: Tensor, omega: Tensor) -> Tensor:
    return feature.generalised(x, omega, kernel="relu", epsilon=0.0)


def softplus(x: Tensor, omega: Tensor) -> Tensor:
    return feature.generalised(x, omega, kernel="softplus", epsilon=0.0)


SOFTMAX: dict[str, Map] = {
    "trigonometric": feature.trigonometric,
    "positive": feature.positive,
    "hyperbolic": feature.hyperbolic,
    "optimal": optimal,
}
MAPS: dict[str, Map] = {**SOFTMAX, "gaussian": feature.gaussian, "relu": relu, "softplus": softplus}


@dataclass(frozen=True)
class Sample:
    """Estimates by blocks of d rows, beside what they estimate."""

    blocks: Tensor
    kernel: float

    @property
    def bias(self) -> float:
        """In standard errors."""
        return float((self.blocks.mean() - self.kernel) / (self.blocks.std() / math.sqrt(len(self.blocks))))

    @property
    def shift(self) -> float:
        """Relative."""
        return float(self.blocks.mean()) / self.kernel - 1

    @property
    def error(self) -> tuple[float, float]:
        """Mean-square error, and the standard error of that."""
        square = (self.blocks - self.kernel) ** 2
        return float(square.mean()), float(square.std() / math.sqrt(len(square)))


def pair(dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors x and y with the given |x + y|² and |x − y|²; x + y points where no coordinate is negative.

    That is where careless rotations err: the diagonal of LAPACK's Q has a sign, and errors must not cancel.
    """
    z, apart = torch.randn(2, dim, generator=stream(seed, "pair", dim), dtype=torch.float64)
    z, apart = z.abs() / z.norm() * math.sqrt(NORM), apart / apart.norm() * math.sqrt(APART)
    return (z + apart) / 2, (z - apart) / 2


def careless(rows: int, dim: int, source: torch.Generator, coupling: str = "") -> Tensor:
    """The twin: Q as LAPACK gives it."""
    blocks = torch.randn(math.ceil(rows / dim), dim, dim, generator=source, dtype=torch.float64)
    directions = torch.linalg.qr(blocks).Q.mT.reshape(-1, dim)[:rows]
    return directions * torch.randn(rows, dim, generator=source, dtype=torch.float64).norm(dim=1, keepdim=True)


def theory(name: str, x: Tensor, y: Tensor) -> tuple[float, float | None]:
    """The kernel, and the variance of one row's estimate of it, where there is a formula."""
    d = len(x)
    z, apart, product = (float(v) for v in ((x + y) @ (x + y), (x - y) @ (x - y), x @ y))
    sm = math.exp(product)
    if name == "trigonometric":
        return sm, math.exp(z) / sm**2 * (1 - math.exp(-apart)) ** 2 / 2
    if name == "gaussian":
        return math.exp(-apart / 2), (1 - math.exp(-apart)) ** 2 / 2
    positive = math.exp(z) * sm**2 * (1 - math.exp(-z))
    if name == "positive":
        return sm, positive
    if name == "hyperbolic":
        return sm, 0.5 * (1 - math.exp(-z)) * positive
    if name == "optimal":
        a = optimal_shape(NORM, d)
        return sm, sm**2 * ((1 - 4 * a) ** d * (1 - 8 * a) ** (-d / 2) * math.exp(z / (1 - 8 * a)) - 1)
    size = float(x.norm() * y.norm())
    if name == "relu":  # Cho & Saul, Kernel methods for deep learning, 2009: the arc-cosine kernel of order one, halved
        angle = math.acos(product / size)
        return size * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / (2 * math.pi), None
    assert name == "softplus"  # the integral over (ω·x, ω·y), by Gauss and Hermite
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    first = float(x.norm()) * nodes
    second = product / float(x.norm()) * nodes[:, None]
    rest = math.sqrt(max(0.0, float(y @ y) - (product / float(x.norm())) ** 2)) * nodes
    inner = np.logaddexp(0, second + rest) @ weights
    return float((np.logaddexp(0, first) * inner) @ weights), None


def regularised(x: Tensor, y: Tensor) -> float:
    """E exp(√d u·(x + y) − (|x|² + |y|²)/2) for u on the unit sphere: the kernel of positive features of equal norms."""
    d, z = len(x), float((x + y) @ (x + y))
    return float(hyp0f1(d / 2, d * z / 4)) * math.exp(-float(x @ x + y @ y) / 2)


def promised(x: Tensor, y: Tensor) -> float:
    """How much lower, at least, the error of d orthogonal positive features is (Choromanski et al., 2021)."""
    d = len(x)
    gap = math.exp(float(x @ y)) - math.exp(-float(x @ x + y @ y) / 2)
    return (1 - 1 / d) * 2 / (d + 2) * gap**2


def sample(name: str, x: Tensor, y: Tensor, omega: Tensor, kernel: float | None = None) -> Sample:
    """What every row of Ω says about one pair, a block of d rows averaged."""
    d, blocks = len(x), []
    for rows in omega[: len(omega) // d * d].split(max(1, PIECE // d) * d):
        both = MAPS[name](torch.stack([x, y]), rows)
        products = len(rows) * (both[0] * both[1]).view(-1, len(rows)).sum(0)
        blocks.append(products.view(-1, d).mean(1))
    return Sample(torch.cat(blocks), theory(name, x, y)[0] if kernel is None else kernel)


def judge(name: str, coupling: str, x: Tensor, y: Tensor, omega: Tensor) -> tuple[list[object], list[str]]:
    """A row of the table, and what is wrong with it."""
    dim = len(x)
    kernel, variance = theory(name, x, y)
    own = regularised(x, y) if coupling == "regularised" else kernel
    found = sample(name, x, y, omega, own)
    error, doubt = found.error
    iid = None if variance is None else variance / dim
    faults, saved = [], ""
    if (abs(found.bias) >= 4) != (coupling == "careless"):
        faults.append("is biased" if coupling != "careless" else "was not caught")
    if coupling == "iid" and iid is not None and abs(error / iid - 1) > 0.05:
        faults.append("its error is not the formula's")
    if coupling == "orthogonal" and iid is not None:
        if error + 3 * doubt > iid:
            faults.append("its error is not below that of independent rows")
        if name == "positive":
            share, unsure = (iid - error) / promised(x, y), doubt / promised(x, y)
            saved = f"{share:.2f} ± {unsure:.2f}"
            if share + 3 * unsure < 1:
                faults.append("saves less than promised")
    place = f"{name}, {coupling}, d = {dim}"
    shift, of_iid = f"{100 * found.shift:+.3f} %", None if iid is None else error / iid
    return [place, own, shift, f"{found.bias:+.2f}", error, of_iid, saved], faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1_000_000, help="rows of each map, coupling and width")
    parser.add_argument("--dims", type=int, nargs="*", default=[8, 16, 64])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    wrong: list[str] = []
    rows: list[list[object]] = []
    for dim in args.dims:
        x, y = pair(dim)
        drawn = {c: draw(args.draws, dim, stream(args.seed, c, dim), coupling=c) for c in feature.COUPLINGS}
        drawn["careless"] = careless(args.draws, dim, stream(args.seed, "careless", dim))
        for name, coupling in ((n, c) for n in MAPS for c in drawn):
            if name == "positive" or coupling in ("iid", "orthogonal"):
                row, faults = judge(name, coupling, x, y, drawn[coupling])
                rows.append(row)
                wrong += [f"{row[0]}: {fault}" for fault in faults]
    header = ["map, coupling, width", "kernel", "shift", "bias z", "error of d rows", "of the iid formula"]
    table(rows, [*header, "saved, of promised"])
    print(f"\n{args.draws} rows each, seed {args.seed}; |x + y|² = {NORM}, |x − y|² = {APART}")
    for line in wrong:
        print("WRONG", line)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
