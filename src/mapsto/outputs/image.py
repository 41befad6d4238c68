"""A picture, said all at once: a query a patch, at its place."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.errors import ConfigError, DataError
from mapsto.functional.position import grid
from mapsto.nn.loss import Loss
from mapsto.nn.pixel import PixelTarget
from mapsto.nn.target import Target
from mapsto.outputs import Output, Theta
from mapsto.picture import read_image
from mapsto.ragged import Ragged, Rows

__all__ = ["ImageOutput"]


class ImageOutput(Output):
    """A picture of a given size, of which every patch is asked for by a query; its answer says all pixels of the patch.

    Args:
        dim: D.
        name: what the target is called.
        channels: C, 1 or 3.
        size: (height, width) of all pictures.
        patch: (height, width) of a patch, which must divide the size; the whole picture by default: then there is one
            query, and an encoder and a decoder of it are plain perceptrons.
        density: the likelihood of a pixel, as it is typed: ``bernoulli``, ``gaussian``, ``gaussian:sigma=dims``,
            ``continuous_bernoulli``, ``logistic:components=5``.
        side: longer sides of pictures are shrunk to this; 0 keeps the size.
        binarise: whether grey values are probabilities, from which whoever trains draws black and white pixels.

    Raises:
        ConfigError: a patch that does not divide the size, or bits for a likelihood of other numbers.
    """

    kind = "image"

    def __init__(
        self,
        dim: int,
        *,
        name: str,
        channels: int,
        size: Sequence[int],
        patch: Sequence[int] = (),
        density: str = "gaussian",
        side: int = 64,
        binarise: bool = False,
    ):
        super().__init__()
        self.dim, self.name, self.channels, self.side, self.binarise = dim, name, channels, side, binarise
        self.size, self.patch = tuple(size), tuple(patch or size)
        if any(s % p for s, p in zip(self.size, self.patch, strict=True)):
            raise ConfigError(f"output.patch: patches of {self.patch} do not divide pictures of {self.size}")
        if binarise and density.partition(":")[0] != "bernoulli":
            raise ConfigError(
                f"output.density={density}: with output.binarise=true pixels are black or white.   Use bernoulli"
            )
        self.grid = tuple(s // p for s, p in zip(self.size, self.patch, strict=True))
        self.query = nn.Parameter(torch.zeros(self.grid[0] * self.grid[1], dim))
        self.head = PixelTarget(dim, pixels=channels * self.patch[0] * self.patch[1], density=density)

    @torch.no_grad()
    def reset(self, stream: torch.Generator) -> None:
        """Draw the queries, if there are several: patches differ from the start."""
        if len(self.query) > 1:
            self.query.copy_(0.1 * torch.randn(self.query.shape, generator=stream))

    @property
    def targets(self) -> dict[str, Target]:
        """By name: the one there is."""
        return {self.name: self.head}

    @classmethod
    def measure(
        cls,
        chunks: Iterable[Sequence[Any]],
        *,
        columns: Sequence[tuple[str, str]] = (),
        side: int = 64,
        patch: Sequence[int] = (),
        density: str = "",
        binarise: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """Size and channels of the one column, and the likelihood.

        If none is given, it is Bernoulli where all pixels are black or white, else Gaussian. Pictures that cannot be read are
        passed over: :meth:`parse` names them.
        """
        ((name, _kind),) = columns
        sizes: set[tuple[int, ...]] = set()
        channels, binary, broken = 1, True, None
        for chunk in chunks:
            for (value,) in chunk:
                try:
                    pixels = read_image(value, side=side)
                except DataError as error:
                    broken = broken or error
                    continue
                sizes.add(pixels.shape[:2])
                channels = max(channels, pixels.shape[2])
                top = np.iinfo(pixels.dtype).max
                binary = binary and bool(((pixels == 0) | (pixels == top)).all())
        if not sizes:
            raise broken or DataError("no picture in the training rows")
        if len(sizes) > 1:
            some = ", ".join(f"{h} x {w}" for h, w in sorted(sizes)[:3])
            raise DataError(
                f"has pictures of {len(sizes)} sizes ({some}), and pictures are said in one size.   Cut or scale them alike"
            )
        density = density or ("bernoulli" if binary or binarise else "gaussian")
        made = {"name": name, "channels": channels, "size": list(*sizes), "patch": list(patch)}
        return made | {"density": density, "side": side, "binarise": binarise}

    def settings(self) -> dict[str, Any]:
        """What :meth:`measure` gave."""
        return {
            "name": self.name,
            "channels": self.channels,
            "size": list(self.size),
            "patch": list(self.patch),
            "density": self.head.density,
            "binarise": self.binarise,
            "side": self.side,
        }

    def parse(self, value: Sequence[Any]) -> dict[str, NDArray]:
        """``pixels`` (1, height, width, C), 8 bits each."""
        pixels = read_image(value[0], side=self.side)
        if pixels.dtype == np.uint16:
            pixels = np.round(pixels / 257).astype(np.uint8)
        if pixels.shape[:2] != self.size:
            found, wanted = (f"{h} x {w}" for h, w in (pixels.shape[:2], self.size))
            raise DataError(f"is a picture of {found} pixels, expected {wanted}")
        if pixels.shape[2] != self.channels:
            if self.channels == 1:
                raise DataError("is in colour, but the model was trained on grey pictures")
            pixels = np.repeat(pixels, self.channels, 2)
        if not self.binarise:
            self.head.check(pixels)
        return {"pixels": pixels[None]}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``pixels`` (B, height, width, C)."""
        return {"pixels": torch.from_numpy(columns["pixels"].dense().reshape(-1, *self.size, self.channels))}

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray | int:
        """The number of patches."""
        return len(self.query)

    def asked(self, memory: Collection, target: Mapping[str, Tensor]) -> Bool[Tensor, "B L"] | None:
        """All patches."""
        return torch.ones(len(memory.valid), len(self.query), dtype=torch.bool, device=memory.valid.device)

    def queries(self, memory: Collection, target: Mapping[str, Tensor] | None = None, *, start: int = 0) -> Collection:
        """A learned vector a patch, at (row, column) counted in patches."""
        rows = len(memory.valid)
        down, across = self.grid
        places = grid(down, across, self.query.device).expand(rows, -1, -1)
        return Collection.build(self.query.to(memory.items.dtype).expand(rows, -1, -1), places=places)

    def event(self, name: str, target: Mapping[str, Tensor]) -> Tensor:
        """The pixels of each patch, (B, L, height · width · C) of a patch, in the units of the likelihood."""
        x = self.head.units(target["pixels"])
        if len(self.query) == 1:
            return x.flatten(1)[:, None]
        (height, width), (down, across) = self.patch, self.grid
        x = x.unflatten(2, (across, width)).unflatten(1, (down, height))
        return x.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)

    def forward(self, answers: Float[Tensor, "B L D"]) -> Theta:
        """θ of every patch."""
        return {self.name: self.head(answers)}

    def log_likelihood(self, theta: Theta, target: Mapping[str, Tensor]) -> Float[Tensor, " B"]:
        """Summed over all pixels."""
        return self.head.log_likelihood(theta[self.name], self.event(self.name, target)).sum(1)

    def loss(self, theta: Theta, target: Mapping[str, Tensor]) -> Loss:
        """NLL, counted by pixels and channels."""
        log_p = self.log_likelihood(theta, target)
        return Loss({self.name: -log_p}, {}, self.count(target, log_p))

    def count(self, target: Mapping[str, Tensor], like: Tensor) -> Float[Tensor, " B"]:
        """How many numbers each row's target has."""
        return like.new_full((len(target["pixels"]),), float(np.prod(self.size) * self.channels))

    def predict(self, theta: Theta) -> dict[str, dict[str, NDArray]]:
        """``value`` (B, height, width, C): the mean of every pixel, from 0 to 1."""
        return {self.name: {"value": self.picture(self.head.predict(theta[self.name])["value"])}}

    def picture(self, patches: NDArray) -> NDArray:
        """(B, height, width, C) from the numbers of patches (B, L, height · width · C)."""
        (height, width), (down, across) = self.patch, self.grid
        x = patches.reshape(len(patches), down, across, height, width, self.channels)
        return x.transpose(0, 1, 3, 2, 4, 5).reshape(len(patches), *self.size, self.channels)
