"""Numbers said beside numbers true."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapsto.tasks.pictures.style import BLUE, GREY, ORANGE, figure, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LIMIT", "predictions"]

LIMIT = 4
"""The most numbers of one target in one picture."""


@styled
def predictions(value: ArrayLike, sigma: ArrayLike, target: ArrayLike, *, name: str = "number") -> "Figure":
    """Predicted against true, with the diagonal and one standard deviation, beside the residuals.

    The residuals are divided by the model's own standard deviation, so that they should be standard normal.

    Args:
        value: (N, D) predicted means.
        sigma: (N, D) predicted standard deviations.
        target: (N, D).
        name: what the number is called.
    """
    said, spread, true = (np.asarray(x, np.float64) for x in (value, sigma, target))
    count = min(LIMIT, said.shape[1])
    drawn = figure(0.4 + 3.5 * count)
    grid = drawn.subplots(count, 2, width_ratios=[1.25, 1], squeeze=False)
    for d, (left, right) in enumerate(grid):
        title = name if said.shape[1] == 1 else f"{name} {d + 1}"
        _against(left, said[:, d], spread[:, d], true[:, d], plain(title, 30))
        _residuals(right, said[:, d], spread[:, d], true[:, d])
    return drawn


def _against(axes: Any, said: NDArray, sigma: NDArray, true: NDArray, name: str) -> None:
    low, high = float(min(said.min(), true.min())), float(max(said.max(), true.max()))
    pad = 0.04 * (high - low or 1.0)
    ends = np.array([low - pad, high + pad])
    # transparency by number: a thousand points still show where they are dense
    alpha = float(np.clip(60 / len(said) ** 0.75, 0.12, 0.8))
    if np.ptp(sigma) <= 1e-6 * sigma.max():
        one = float(sigma[0])
        axes.fill_between(ends, ends - one, ends + one, color=ORANGE, alpha=0.16, linewidth=0, label="± 1 sigma")
    else:
        axes.errorbar(true, said, yerr=sigma, fmt="none", ecolor=ORANGE, elinewidth=0.6, alpha=alpha, label="± 1 sigma")
    axes.plot(ends, ends, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="exact")
    axes.scatter(true, said, s=12, color=BLUE, alpha=alpha, linewidths=0)
    error = float(np.sqrt(np.mean((said - true) ** 2)))
    axes.set_title(f"Each point is a test row; root mean square error {error:.4g}")
    axes.set(xlim=ends, ylim=ends, xlabel=f"true {name}", ylabel=f"predicted {name}")
    axes.grid()
    axes.legend(loc="upper left")


def _residuals(axes: Any, said: NDArray, sigma: NDArray, true: NDArray) -> None:
    z = (true - said) / sigma
    edges = np.linspace(-4, 4, 8 * min(4, max(2, len(z) // 60)) + 1)
    axes.hist(np.clip(z, -4, 4), bins=edges, color=BLUE, alpha=0.75)
    at = np.linspace(-4, 4, 200)
    expected = np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi) * len(z) * (edges[1] - edges[0])
    axes.plot(at, expected, color=ORANGE, label="if sigma were right")
    axes.set_title(f"{np.mean(np.abs(z) <= 1):.0%} of residuals within ± 1 sigma (normal: 68 %)", fontsize=8.5)
    axes.set(xlabel="(true - predicted) / sigma", ylabel="test rows", xlim=(-4.15, 4.15))
    axes.set_ylim(top=1.2 * axes.get_ylim()[1])
    axes.legend(loc="upper right")
