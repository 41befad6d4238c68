"""Pictures of any size: patches, or a small convolutional stem, at their (row, column) places."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.errors import ConfigError, DataError
from mapsto.functional.position import grid
from mapsto.inputs import Input
from mapsto.noise import Random
from mapsto.picture import read_image
from mapsto.ragged import Ragged, Rows

__all__ = ["ImageInput", "read_image"]


class ImageInput(Input):
    """A picture ↦ one item a patch, at (row, column) counted in patches; pictures of a batch may differ in size.

    Without a stem, P × P pixels ↦ W x + b. With one, two 3 × 3 convolutions, each with a norm over channels and GELU, and
    a 2 × 2 maximum pooling after the second (P = 2) or after both (P = 4); then a third among the items,
    x + GELU(norm(conv(x))). Pixels outside a picture are zeros before every convolution, whatever the batch.

    Args:
        dim: D.
        channels: 1 or 3.
        mean: of each channel over the training rows, in [0, 1].
        scale: likewise the standard deviation.
        wide: whether pixels are kept as 16 bits.
        patch: P; 2 or 4 with a stem.
        stem: ``patches`` or ``convolution``.
        side: longer sides are shrunk to this; 0 keeps the size.
        shift: in training, move each picture by up to so many pixels each way.
        flip: in training, mirror half of the pictures left to right.
    """

    kind = "image"

    def __init__(
        self,
        dim: int,
        *,
        channels: int,
        mean: list[float],
        scale: list[float],
        wide: bool = False,
        patch: int = 4,
        stem: str = "convolution",
        side: int = 64,
        shift: int = 0,
        flip: bool = False,
    ):
        super().__init__()
        if stem not in ("patches", "convolution"):
            raise ConfigError(f'input.stem: "{stem}" is not one of patches, convolution')
        self.channels, self.mean, self.scale, self.wide, self.side = channels, mean, scale, wide, side
        if stem == "convolution" and patch not in (2, 4):
            raise ConfigError(f"input.patch={patch}: a convolutional stem has patches of 2 or 4 pixels a side")
        self.stem, self.patch = stem, patch
        self.augment = Augment(shift, flip)
        if stem == "patches":
            self.linear = nn.Linear(channels * patch * patch, dim)
        else:
            self.first = nn.Conv2d(channels, dim // 2, 3, padding=1)
            self.first_norm = nn.LayerNorm(dim // 2)
            self.second = nn.Conv2d(dim // 2, dim, 3, padding=1)
            self.second_norm = nn.LayerNorm(dim)
            self.third = nn.Conv2d(dim, dim, 3, padding=1)
            self.third_norm = nn.LayerNorm(dim)

    @classmethod
    def measure(
        cls,
        chunks: Iterable[Sequence[Any]],
        *,
        patch: int = 0,
        stem: str = "",
        side: int = 64,
        shift: int = 0,
        flip: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """Channels, depth, mean and scale. Small pictures (up to 12 pixels a side) get patches of 2, others of 4.

        Pictures that cannot be read are passed over: :meth:`parse` names them.
        """
        count, first, second = 0, np.zeros(3), np.zeros(3)
        channels, wide, longest = 1, False, 0
        broken: DataError | None = None
        for chunk in chunks:
            for value in chunk:
                try:
                    pixels = read_image(value, side=side)
                except DataError as error:  # told with its row when the store is built, where it may be left out
                    broken = broken or error
                    continue
                x = _unit(pixels)
                channels, wide = max(channels, x.shape[2]), wide or pixels.dtype == np.uint16
                longest = max(longest, *x.shape[:2])
                count += x.shape[0] * x.shape[1]
                first, second = first + x.sum((0, 1)), second + (x * x).sum((0, 1))
        if not count:
            raise broken or DataError("no picture in the training rows")
        mean = first / count
        sigma = np.sqrt(np.maximum(second / count - mean**2, 0))
        if not stem:
            stem = "patches" if patch not in (0, 2, 4) else "convolution"
        return {
            "channels": channels,
            "mean": mean[:channels].tolist(),
            "scale": np.where(sigma > 1e-6, sigma, 1.0)[:channels].tolist(),
            "wide": wide,
            "patch": patch or (2 if longest <= 12 else 4),
            "stem": stem,
            "side": side,
            "shift": shift,
            "flip": flip,
        }

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but ``dim``."""
        names = ("channels", "mean", "scale", "wide", "patch", "stem", "side")
        return {n: getattr(self, n) for n in names} | {"shift": self.augment.shift, "flip": self.augment.flip}

    def parse(self, value: Any) -> dict[str, NDArray]:
        """``pixels`` (height · width, channels) and ``size`` (height, width)."""
        pixels = read_image(value, side=self.side)
        if pixels.shape[2] != self.channels:
            if self.channels == 1:
                raise DataError("is in colour, but the model was trained on grey pictures")
            pixels = np.repeat(pixels, self.channels, 2)
        if self.wide and pixels.dtype == np.uint8:
            pixels = pixels.astype(np.uint16) * 257
        elif not self.wide and pixels.dtype == np.uint16:
            pixels = np.round(pixels / 257).astype(np.uint8)
        return {"pixels": pixels.reshape(-1, self.channels), "size": np.array(pixels.shape[:2], np.int32)}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``pixels`` (B, height, width, C) of the largest height and width, and ``size`` (B, 2)."""
        sizes = columns["size"].dense()
        if (sizes == sizes[:1]).all():
            pixels = columns["pixels"].dense().reshape(len(sizes), *sizes[0].tolist(), self.channels)
        else:
            height, width = sizes.max(0).tolist()
            column = columns["pixels"].column
            pixels = np.zeros((len(sizes), height, width, self.channels), column.values.dtype)
            for i, (row, (h, w)) in enumerate(zip(columns["pixels"].rows, sizes.tolist(), strict=True)):
                pixels[i, :h, :w] = column[row].reshape(h, w, -1)
        if pixels.dtype == np.uint16:
            pixels = pixels.astype(np.int32)
        return {"pixels": torch.from_numpy(pixels), "size": torch.from_numpy(sizes)}

    def forward(self, batch: Mapping[str, Tensor]) -> Collection:
        """One item a patch that holds at least one pixel."""
        size = batch["size"].to(torch.long)
        kind = next(self.parameters()).dtype
        x = batch["pixels"].permute(0, 3, 1, 2).to(kind, copy=True)
        full = (
            not torch.compiler.is_compiling() and len(size) > 0 and bool((size == size.new_tensor(x.shape[2:])).all())
        )
        x = self._standard(x)
        if not full or self.augment.moves:
            inside = _inside(size, x.shape[2], x.shape[3])
            x = self.augment(x if full else x.masked_fill(~inside, 0), size, inside)
        if self.stem == "patches":
            p = self.patch
            if x.shape[2] % p or x.shape[3] % p:
                x = F.pad(x, (0, -x.shape[3] % p, 0, -x.shape[2] % p))
            height, width = x.shape[2] // p, x.shape[3] // p
            patches = x.unflatten(3, (width, p)).unflatten(2, (height, p))
            items = self.linear(patches.permute(0, 2, 4, 1, 3, 5).flatten(3))
            size = (size + p - 1) // p
        else:
            x = _channels_last(x)  # the norms over channels then need no copy, and pooling takes a third of the time
            x, size = self._layer(x, size, self.first, self.first_norm, pool=self.patch == 4, full=full)
            x, size = self._layer(x, size, self.second, self.second_norm, pool=True, full=full)
            x = x + self._layer(x, size, self.third, self.third_norm, pool=False, full=full)[0]
            height, width = x.shape[2:]
            items = x.permute(0, 2, 3, 1)
        valid = None if full else _inside(size, height, width).flatten(1)
        places = grid(height, width, x.device).expand(size.shape[0], -1, -1)
        return Collection.build(items.flatten(1, 2), valid, places, compact=not full)

    def _standard(self, levels: Float[Tensor, "B C h w"]) -> Tensor:
        """(x / most − mean) / scale = (x − most · mean) / (most · scale) of each channel, in place."""
        most = 65535 if self.wide else 255
        if self.channels == 1:
            return levels.sub_(most * self.mean[0]).div_(most * self.scale[0])
        mean, scale = (levels.new_tensor(v)[:, None, None] * most for v in (self.mean, self.scale))
        return levels.sub_(mean).div_(scale)

    def _layer(
        self,
        x: Float[Tensor, "B C h w"],
        size: Tensor,
        convolution: nn.Conv2d,
        norm: nn.LayerNorm,
        *,
        pool: bool,
        full: bool,
    ) -> tuple[Tensor, Tensor]:
        """Convolution, maximum over 2 × 2, norm over the channels, GELU; what lies outside a picture is zeros."""
        x = convolution(x)
        if pool:  # before the norm, which then has a quarter of the work
            if not full:
                x = x.masked_fill(~_inside(size, x.shape[2], x.shape[3]), torch.finfo(x.dtype).min)
            x = F.max_pool2d(x, 2, ceil_mode=True)
            size = (size + 1) // 2
            if not full:  # the norm of what lies outside must be finite
                x = x.masked_fill(~_inside(size, x.shape[2], x.shape[3]), 0)
        x = F.gelu(norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return x if full else x.masked_fill(~_inside(size, x.shape[2], x.shape[3]), 0), size

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray:
        """Patches of each picture."""
        size = columns["size"].values.reshape(-1, 2).astype(np.int64)
        return np.maximum(1, (-(-size // self.patch)).prod(1))

    def plain(self, columns: Mapping[str, Rows]) -> NDArray:
        """The pixels in [0, 1]; pictures of different sizes are brought to the commonest by nearest neighbours."""
        sizes = columns["size"].dense()
        kinds, counts = np.unique(columns["size"].column.values.reshape(-1, 2), axis=0, return_counts=True)
        height, width = np.minimum(kinds[counts.argmax()], 32).tolist()
        rows = []
        for row, (h, w) in zip(columns["pixels"].rows, sizes.tolist(), strict=True):
            x = columns["pixels"].column[row].reshape(h, w, -1)
            at = np.arange(height) * h // height, np.arange(width) * w // width
            rows.append(x[np.ix_(*at)].ravel())
        return np.array(rows, np.float32) / (65535 if self.wide else 255)

    def names(self, columns: Mapping[str, Rows]) -> list[list[str]]:
        """(row, column) of each patch."""
        cells = -(-columns["size"].dense() // self.patch)
        return [[f"{r}, {c}" for r in range(h) for c in range(w)] for h, w in cells.tolist()]


class Augment(Random):
    """Move and mirror pictures in training, each by its own draw."""

    def __init__(self, shift: int, flip: bool):
        super().__init__(0.0)
        self.shift, self.flip = shift, flip

    @property
    def moves(self) -> bool:
        """Whether anything is to be moved now."""
        return self.training and bool(self.shift or self.flip)

    def forward(self, x: Float[Tensor, "B C h w"], size: Tensor, inside: Bool[Tensor, "B 1 h w"]) -> Tensor:
        """Pictures of the same sizes; what moves out is lost, what moves in is zeros."""
        if not self.moves:
            return x
        source = self.draw(x.device)
        batch, _, height, width = x.shape
        by = torch.randint(-self.shift, self.shift + 1, (2, batch, 1), generator=source, device=x.device)
        mirror = torch.rand(batch, 1, generator=source, device=x.device) < (0.5 if self.flip else 0.0)
        row = torch.arange(height, device=x.device) + by[0]
        column = torch.arange(width, device=x.device) + by[1]
        column = torch.where(mirror, size[:, 1:] - 1 - column, column)
        seen = ((row >= 0) & (row < size[:, :1]))[:, :, None] & ((column >= 0) & (column < size[:, 1:]))[:, None, :]
        index = row.clamp(0, height - 1)[:, :, None] * width + column.clamp(0, width - 1)[:, None, :]
        moved = x.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view_as(x)
        return moved.masked_fill(~(seen[:, None] & inside), 0)


def _inside(size: Tensor, height: int, width: int) -> Bool[Tensor, "B 1 h w"]:
    row = torch.arange(height, device=size.device) < size[:, :1]
    column = torch.arange(width, device=size.device) < size[:, 1:]
    return (row[:, :, None] & column[:, None, :])[:, None]


def _channels_last(x: Float[Tensor, "B C h w"]) -> Tensor:
    """The same numbers, channels beside each other. Of a single one torch cannot tell, and goes by its stride."""
    if x.shape[1] == 1:
        return x[:, 0, :, :, None].permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)


def _unit(pixels: NDArray) -> NDArray:
    """In [0, 1], float64."""
    return pixels / (65535.0 if pixels.dtype == np.uint16 else 255.0)
