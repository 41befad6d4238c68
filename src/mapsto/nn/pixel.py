"""What is said of the pixels of a patch."""

from collections.abc import Iterable
from typing import Any

from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto import kinds
from mapsto.errors import DataError
from mapsto.likelihoods import Likelihood, wide
from mapsto.nn.target import Target

__all__ = ["PixelTarget"]

LEVELS = 256


class PixelTarget(Target):
    """P numbers of 8 bits, each by itself, under any likelihood of numbers: levels 0 … 255, or x/255 in [0, 1].

    Args:
        dim: D.
        pixels: P, channels counted.
        density: the likelihood, as it is typed.
    """

    kind = "pixels"

    def __init__(self, dim: int, *, pixels: int, density: str = "gaussian"):
        super().__init__()
        self.density = density
        self.likelihood: Likelihood = kinds.make("likelihoods", density, dims=pixels)
        self.discrete = bool(self.likelihood.support.is_discrete)
        self.levels = density.partition(":")[0] == "logistic"
        self.head = nn.Linear(dim, self.likelihood.width)

    @classmethod
    def measure(cls, values: Iterable[Any]) -> dict[str, Any]:
        """Nothing: the output measures."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The likelihood."""
        return {"density": self.density}

    def encode(self, value: Any) -> NDArray:
        """Pixels as they are.

        Raises:
            DataError: always: the output encodes pictures.
        """
        raise DataError("a picture is read by its output")

    def units(self, pixels: Tensor) -> Float[Tensor, "..."]:
        """The pixels as the likelihood takes them."""
        kind = self.head.weight.dtype
        x = pixels.to(kind, copy=True)
        return x if self.levels else x.div_(LEVELS - 1)

    def check(self, pixels: NDArray) -> None:
        """Refuse pixels outside the support.

        Raises:
            DataError: with what to do.
        """
        if not self.discrete or self.levels:
            return
        grey = pixels[(pixels != 0) & (pixels != LEVELS - 1)]
        if len(grey):
            raise DataError(
                f"has grey pixels, such as {int(grey[0])} of 255, and a {self.density} likelihood takes black and white.   "
                "Use output.density=gaussian, continuous_bernoulli or logistic; or output.binarise=true to draw bits anew "
                "each time"
            )

    @property
    def bin(self) -> float:
        """The width of a level in the units of the likelihood; 0 if it is discrete itself, and its nats are those of bits."""
        return 0.0 if self.discrete else 1 / (LEVELS - 1)

    def predict(self, theta: Float[Tensor, "B L width"]) -> dict[str, NDArray]:
        """``value`` (B, L, P): the mean of each pixel, from 0 to 1."""
        mean = self.likelihood.mean(wide(theta))
        return {"value": (mean / (LEVELS - 1) if self.levels else mean).cpu().numpy()}
