"""Real-valued series: several channels over time, with or without times."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.errors import DataError
from mapsto.inputs import Input
from mapsto.ragged import Ragged, Rows

__all__ = ["SeriesInput"]

RESAMPLED = 16


class SeriesInput(Input):
    """P samples of C channels in a row ↦ one item W x + b, at the time of the first of them.

    Channels are standardised by the training rows' mean and scale; a missing sample (NaN) is 0 with a mark beside it.
    Places are ranks, or seconds since the row's first sample divided by the training rows' median gap.

    Args:
        dim: D.
        mean: of each channel.
        scale: of each channel.
        gap: the median time between samples, or None for series without times.
        patch: P, samples an item.
        limit: at most so many items a row; longer rows keep their last. 0 is no limit.
    """

    kind = "series"

    def __init__(
        self,
        dim: int,
        *,
        mean: list[float],
        scale: list[float],
        gap: float | None = None,
        patch: int = 1,
        limit: int = 0,
    ):
        super().__init__()
        self.mean, self.scale, self.gap, self.patch, self.limit = mean, scale, gap, patch, limit
        self.channels = len(mean)
        self.linear = nn.Linear(2 * self.channels * patch, dim)

    @classmethod
    def measure(cls, chunks: Iterable[Sequence[Any]], *, patch: int = 1, limit: int = 2048, **_: Any) -> dict[str, Any]:
        """Mean and scale of each channel, and the median gap; a value is (T, C) numbers, or a pair (numbers, times)."""
        count: NDArray = np.zeros(1)
        first: NDArray = np.zeros(1)
        second: NDArray = np.zeros(1)
        shift: NDArray | None = None
        gaps: list[NDArray] = []
        for chunk in chunks:
            for value in chunk:
                x, times = _matrix(value)
                if shift is None:
                    shift = np.nan_to_num(np.nanmean(x, 0)) if np.isfinite(x).any() else np.zeros(x.shape[1])
                    count, first, second = (np.zeros(x.shape[1]) for _ in range(3))
                if x.shape[1] != len(shift):
                    raise DataError(f"{x.shape[1]} channels where the first row has {len(shift)}")
                known = np.isfinite(x)
                y = np.where(known, x - shift, 0)
                count, first, second = count + known.sum(0), first + y.sum(0), second + (y * y).sum(0)
                if times is not None and len(times) > 1:
                    gaps.append(np.diff(times)[:1000])
        if shift is None or not count.all():
            raise DataError("a channel has no number in any training row")
        mean = first / count
        sigma = np.sqrt(np.maximum(second / count - mean**2, 0))
        gap = float(np.median(np.concatenate(gaps))) if gaps else None
        if gap is not None and gap <= 0:
            gap = 1.0
        return {
            "mean": (mean + shift).tolist(),
            "scale": np.where(sigma > 1e-12, sigma, 1.0).tolist(),
            "gap": gap,
            "patch": patch,
            "limit": limit,
        }

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but ``dim``."""
        return {"mean": self.mean, "scale": self.scale, "gap": self.gap, "patch": self.patch, "limit": self.limit}

    def parse(self, value: Any) -> dict[str, NDArray]:
        """``values`` (items, P, C) standardised, NaN where missing, and ``times`` (items,)."""
        x, times = _matrix(value)
        if not len(x):
            raise DataError("is empty")
        if x.shape[1] != self.channels:
            raise DataError(f"{x.shape[1]} channels where the model expects {self.channels}")
        if (times is None) != (self.gap is None):
            raise DataError("needs times" if times is None else "has times, but the model was trained without")
        items = -(-len(x) // self.patch)
        padded = np.full((items * self.patch, self.channels), np.nan)
        padded[: len(x)] = (x - np.array(self.mean)) / np.array(self.scale)
        at = (
            np.arange(items, dtype=np.float64) if times is None else (times[:: self.patch] - times[0]) / (self.gap or 1)
        )
        cut = slice(-self.limit if self.limit else None, None)
        values = padded.reshape(items, self.patch, self.channels)[cut].astype(np.float32)
        return {"values": values, "times": (at[cut] - at[cut][0]).astype(np.float32)}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``values`` (B, N, P, C), ``times`` and ``valid`` (B, N)."""
        values, valid = columns["values"].pad()
        times, _ = columns["times"].pad()
        return {"values": torch.from_numpy(values), "times": torch.from_numpy(times), "valid": torch.from_numpy(valid)}

    def forward(self, batch: Mapping[str, Tensor]) -> Collection:
        """One item a patch, at its time."""
        values, valid = batch["values"].flatten(2).to(self.linear.weight.dtype), batch["valid"]
        hole = torch.isnan(values) | ~valid[..., None]
        items = self.linear(torch.cat([values.masked_fill(hole, 0), hole.to(values.dtype)], -1))
        return Collection.build(items, valid, batch["times"][..., None])

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray:
        """Items of each row."""
        return columns["values"].lengths

    def plain(self, columns: Mapping[str, Rows]) -> NDArray:
        """Each channel resampled to 16 points, with its mean, standard deviation, and the length."""
        rows = []
        for row in columns["values"].rows:
            x = np.nan_to_num(columns["values"].column[row].reshape(-1, self.channels))
            at = np.linspace(0, len(x) - 1, RESAMPLED)
            resampled = [np.interp(at, np.arange(len(x)), channel) for channel in x.T]
            rows.append(np.concatenate([*resampled, x.mean(0), x.std(0), [np.log(len(x))]]))
        return np.array(rows, np.float32)

    def names(self, columns: Mapping[str, Rows]) -> list[list[str]]:
        """The times."""
        times = columns["times"]
        unit = self.gap or 1
        return [[f"{t * unit:g}" for t in times.column[row]] for row in times.rows]


def _matrix(value: Any) -> tuple[NDArray, NDArray | None]:
    """(T, C) float64 and (T,) times in float64 or None."""
    numbers, times = value if isinstance(value, tuple) else (value, None)
    x = np.asarray(numbers, np.float64)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2:
        raise DataError(f"a series is (times, channels), got {x.ndim} dimensions")
    if times is None:
        return x, None
    t = np.asarray(times, np.float64)
    if t.shape != (len(x),):
        raise DataError(f"{t.size} times for {len(x)} samples")
    if not np.isfinite(t).all() or (np.diff(t) < 0).any():
        raise DataError("times are not in order, or not finite")
    return x, t
