"""The error of linear attention against exact attention: by the number of features, and by the size of the logits.

    python benchmarks/features.py                       200 seeds, some minutes; table, docs/features.png
    python benchmarks/features.py --seeds 20 --no-picture

*First*, the figure of the Performer paper: mean-square error of the output, v ~ N(0, 1), L = 1024, d = 16, over m drawn
ω, for q, k ~ ½N(0, 1) and N(0, 1). A seed draws inputs and ω; all maps see the same inputs. Medians with 95 % intervals
by order statistics. Claims must hold where intervals separate, and some must: orthogonal rows are better than
independent ones and optimal features better than positive ones at ½N(0, 1), where estimates are of use; positive
features are better than trigonometric ones at N(0, 1), where the normaliser of the latter crosses zero. At ½N(0, 1) the
latter are better, as the formulas of a single product say (at q·k = 0 and |q + k|² = |q − k|² their error is
½(1 − exp(−|q + k|²)) of that of positive ones).

*Second*, what decides the default map: errors, relative to the mean square of the exact output, by the scale of q and
k, with the same number R of numbers an item is mapped to (what uses each ω with both signs draws R/2 rows). Rows are
orthogonal, or regularised (*reg*), whose kernel is another: ``reg, R → ∞`` is the error of that alone. ``optimal`` fits
its shape to a mean of |q + k|²/√d of √d, as ``FavorAttention`` does; beside it the same for other multiples of √d.
Queries and keys that are normalised have logits τ cos(q, k): τ = √d, where exact attention starts, and where favor does.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.special import hyp0f1
from torch import Tensor

from mapsto.attention.favor import FavorAttention
from mapsto.functional.feature import COUPLINGS, Exponential, draw, optimal_shape, trigonometric
from mapsto.functional.linear import linear_attend, through_features
from mapsto.stream import stream
from race import table

LENGTH, COUNTS = 1024, (16, 32, 64, 128, 256)
SCALES = {"1/4": 0.25, "1/2": 0.5, "1": 1.0, "2": 2.0}
TEMPERATURES: dict[str, Callable[[int], float]] = {"τ = √d": math.sqrt, "τ of favor": FavorAttention(256).sharpness}

Made = Callable[[Tensor], Exponential]


@dataclass(frozen=True)
class Interval:
    """A median and its 95 % interval by order statistics: no assumption about the distribution."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Tensor) -> "Interval":
        """Of a sample."""
        ordered, n = values.sort().values, len(values)
        reach = 0.98 * math.sqrt(n)  # 1.96 standard deviations of how many of n fall below the median
        first, last = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
        middle = float((ordered[(n - 1) // 2] + ordered[n // 2]) / 2)
        return cls(middle, float(ordered[first]), float(ordered[last]))

    def below(self, other: "Interval") -> bool:
        """Whether the intervals separate, this one the lower."""
        return self.high < other.low

    def __str__(self) -> str:
        return f"{self.median:.2e} [{self.low:.1e}, {self.high:.1e}]"


Found = dict[tuple[str, str, int], Interval]
Row = dict[tuple[str, int, int], dict[str, Interval]]


def inputs(seed: int, dim: int, scale: float = 1.0, temperature: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(1, L, d) each, in float64; with a temperature, queries and keys are normalised to logits τ cos(q, k)."""
    q, k, v = torch.randn(3, 1, LENGTH, dim, generator=stream(seed, "inputs", dim), dtype=torch.float64)
    if temperature is not None:
        q, k = (x / x.norm(dim=-1, keepdim=True) * math.sqrt(temperature) * dim**0.25 for x in (q, k))
        return q, k, v
    return scale * q, scale * k, v


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def optimal(factor: float, dim: int) -> Made:
    return lambda omega: Exponential.optimal(omega, optimal_shape(factor * math.sqrt(dim), dim))


def estimate(made: Made | None, omega: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention by exponential features, or by trigonometric ones if none are given."""
    dim = q.shape[-1]
    if made is None:
        return linear_attend(*(trigonometric(x * dim**-0.25, omega) for x in (q, k)), v)
    return through_features(q, k, v, made(omega).scaled(dim**-0.5))


def mean_square(x: Tensor) -> float:
    return float(x.square().mean())


def figure(seeds: int, scale: float, dim: int = 16) -> Found:
    """Intervals by map, coupling and number of ω."""
    maps: dict[str, Made | None] = {
        "trigonometric": None,
        "positive": Exponential.positive,
        "hyperbolic": Exponential.hyperbolic,
        "optimal": optimal(1.0, dim),
    }
    errors: dict[tuple[str, str, int], list[float]] = {}
    for seed in range(seeds):
        q, k, v = inputs(seed, dim, scale)
        truth = exact(q, k, v)
        for count in COUNTS:
            for coupling in COUPLINGS:
                omega = draw(count, dim, stream(seed, "figure", coupling, count), coupling=coupling)
                for name, made in maps.items():
                    error = mean_square(estimate(made, omega, q, k, v) - truth)
                    errors.setdefault((name, coupling, count), []).append(error)
    return {place: Interval.of(torch.tensor(found)) for place, found in errors.items()}


def judge(half: Found, whole: Found) -> list[str]:
    """What contradicts the claims."""

    def pairs(found: Found, better: tuple[str, str], worse: tuple[str, str]) -> list[tuple[Interval, Interval]]:
        return [(found[(*better, m)], found[(*worse, m)]) for m in COUNTS]

    two, maps = ("iid", "orthogonal"), ("trigonometric", "positive", "hyperbolic", "optimal")
    claims = {
        "½N(0, 1): orthogonal below iid": [p for n in maps for p in pairs(half, (n, "orthogonal"), (n, "iid"))],
        "½N(0, 1): optimal below positive": [p for c in two for p in pairs(half, ("optimal", c), ("positive", c))],
        "½N(0, 1): trigonometric below positive": [
            p for c in two for p in pairs(half, ("trigonometric", c), ("positive", c))
        ],
        "N(0, 1): positive below trigonometric": [
            p for c in two for p in pairs(whole, ("positive", c), ("trigonometric", c))
        ],
    }
    wrong = []
    for claim, some in claims.items():
        better, worse = sum(a.below(b) for a, b in some), sum(b.below(a) for a, b in some)
        print(f"{claim}: intervals separate so in {better} of {len(some)} places, the other way round in {worse}")
        if worse or not better:
            wrong.append(claim)
    return wrong


@dataclass(frozen=True)
class Candidate:
    """A map of R numbers an item."""

    made: Made
    coupling: str = "orthogonal"
    signs: int = 1

    def features(self, count: int, dim: int, seed: int) -> Exponential:
        """As drawn from a seed."""
        omega = draw(count // self.signs, dim, stream(seed, "scales", count), coupling=self.coupling)
        return self.made(torch.cat([omega, -omega]) if self.signs == 2 else omega)


def limit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What regularised rows tend to: attention with the kernel 0F1(d/2, d|x + y|²/4) exp(−(|x|² + |y|²)/2)."""
    d = q.shape[-1]
    q, k = q * d**-0.25, k * d**-0.25
    size = k.square().sum(-1)
    norm = q.square().sum(-1)[..., None] + size[:, None] + 2 * q @ k.mT
    weight = torch.from_numpy(hyp0f1(d / 2, (d / 4 * norm).numpy())) * (-size[:, None] / 2).exp()
    return weight / weight.sum(-1, keepdim=True) @ v


def candidates(dim: int) -> dict[str, Candidate]:
    return {
        "positive": Candidate(Exponential.positive),
        "hyperbolic": Candidate(Exponential.positive, signs=2),
        "optimal": Candidate(optimal(1.0, dim)),
        "¼√d": Candidate(optimal(0.25, dim)),
        "½√d": Candidate(optimal(0.5, dim)),
        "2√d": Candidate(optimal(2.0, dim)),
        "4√d": Candidate(optimal(4.0, dim)),
        "both signs": Candidate(optimal(1.0, dim), signs=2),
        "positive reg": Candidate(Exponential.positive, "regularised"),
        "hyperbolic reg": Candidate(Exponential.positive, "regularised", 2),
    }


def scales(seeds: int) -> Row:
    """Relative errors by scale, d and R."""
    found = {}
    for dim in (16, 64):
        some = candidates(dim)
        for label in (*SCALES, *TEMPERATURES):
            temperature = TEMPERATURES[label](dim) if label in TEMPERATURES else None
            errors: dict[int, dict[str, list[float]]] = {m: {n: [] for n in some} for m in (64, 256)}
            for seed in range(seeds):
                q, k, v = inputs(seed, dim, SCALES.get(label, 1.0), temperature)
                truth = exact(q, k, v)
                size = mean_square(truth)
                floor = mean_square(limit(q, k, v) - truth) / size if seed < 5 else None
                for count, by_map in errors.items():
                    if floor is not None:
                        by_map.setdefault("reg, R → ∞", []).append(floor)
                    for name, candidate in some.items():
                        features = candidate.features(count, dim, seed).scaled(dim**-0.5)
                        by_map[name].append(mean_square(through_features(q, k, v, features) - truth) / size)
            for count, by_map in errors.items():
                found[label, dim, count] = {n: Interval.of(torch.tensor(e)) for n, e in by_map.items()}
    return found


def winner(row: dict[str, Interval]) -> str:
    """The lowest median of the three maps that a model can take, and those it does not separate from."""
    three = ("positive", "hyperbolic", "optimal")
    best = min(three, key=lambda n: row[n].median)
    equal = [n for n in three if n != best and not row[best].below(row[n])]
    return best + (f" (or {', '.join(equal)})" if equal else "")


def picture(half: Found, whole: Found, by_scale: Row, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    colours = {"trigonometric": "tab:grey", "positive": "tab:blue", "hyperbolic": "tab:green", "optimal": "tab:red"}
    shades = {**colours, "hyperbolic reg": "tab:purple"}

    def lines(axes: Any, places: Sequence[float], some: list[Interval], line: str, name: str, label: str) -> None:
        axes.plot(places, [i.median for i in some], line, color=shades[name], label=f"{name}, {label}")
        axes.fill_between(places, [i.low for i in some], [i.high for i in some], color=shades[name], alpha=0.15, lw=0)

    for axes, found, title in ((left, half, "½N(0, 1)"), (middle, whole, "N(0, 1)")):
        for name in colours:
            for coupling, line in (("iid", ":"), ("orthogonal", "-")):
                lines(axes, COUNTS, [found[name, coupling, m] for m in COUNTS], line, name, coupling)
        axes.set(xscale="log", yscale="log", xlabel="m, drawn ω", title=f"q, k ~ {title}, d = 16, L = 1024")
        axes.set(xticks=COUNTS, xticklabels=COUNTS)
    left.set(ylabel="mean-square error of the output")
    left.legend(fontsize=7, ncols=2)
    places = list(SCALES.values())
    for name in ("positive", "hyperbolic", "optimal", "hyperbolic reg"):
        for dim, line in ((16, ":"), (64, "-")):
            lines(right, places, [by_scale[label, dim, 256][name] for label in SCALES], line, name, f"d = {dim}")
    right.axhline(1, color="black", lw=0.6)
    right.set(xscale="log", yscale="log", xlabel="s, where q, k ~ s N(0, 1)", xticks=places, xticklabels=list(SCALES))
    right.set(ylabel="error / mean square of the output", title="256 numbers an item; reg: regularised rows")
    right.legend(fontsize=7)
    for axes in (left, middle, right):
        axes.minorticks_off()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200, help="of the figure; the second table takes a quarter")
    parser.add_argument("--no-picture", action="store_true")
    args = parser.parse_args()
    half, whole = figure(args.seeds, 0.5), figure(args.seeds, 1.0)
    for found, name in ((half, "½N(0, 1)"), (whole, "N(0, 1)")):
        kinds = list(dict.fromkeys((n, c) for n, c, _ in found))
        rows = [[f"{n}, {c}", *(str(found[n, c, m]) for m in COUNTS)] for n, c in kinds]
        table(rows, [f"q, k ~ {name}", *(f"m = {m}" for m in COUNTS)])
        print()
    wrong = judge(half, whole)
    print()
    by_scale = scales(max(10, args.seeds // 4))
    maps = list(by_scale["1", 16, 64])
    rows = [
        [f"{label}, d = {dim}, R = {count}", *(f"{row[n].median:.2e}" for n in maps), winner(row)]
        for (label, dim, count), row in by_scale.items()
    ]
    table(rows, ["q, k", *maps, "best of the first three"])
    if not args.no_picture:
        path = Path(__file__).parents[1] / "docs" / "features.png"
        picture(half, whole, by_scale, path)
        print(f"\ndocs/{path.name} is written")
    for line in wrong:
        print("WRONG", line)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
