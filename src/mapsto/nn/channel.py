"""Channels of a series: their numbers, how they are distributed over all rows, and where they end in each."""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from mapsto.errors import DataError

__all__ = ["Frame", "Moments", "ending", "samples"]

LEAST = 1e-2  # of a row's spread, in standard deviations of all rows: one whose numbers are all the same has none


class Frame(NamedTuple):
    """Where the series of each row end, and how far they spread, in standard deviations of the training rows.

    Attributes:
        origin: the last known number; 0, the mean of all rows, where none is known.
        unit: the standard deviation of the known numbers, never zero.
        tail: the last K samples less the origin, in that unit; 0 where nothing is known, and before the start.
    """

    origin: Float[Tensor, "B C"]
    unit: Float[Tensor, "B C"]
    tail: Float[Tensor, "B K C"]


def ending(x: Float[Tensor, "B T C"], known: Bool[Tensor, "B T C"], length: Int[Tensor, " B"], past: int = 0) -> Frame:
    """o_bc = x_btc at the last t that is known; u_bc = √(e² + Var_t x_btc) over those that are, with e = 0.01.

    Args:
        x: samples, in order of time.
        known: those that are there.
        length: how many samples each row has, known or not.
        past: K, how many of the last are wanted.
    """
    # One more sample, of which nothing is known: a series without any is none other, and no reduction is over nothing.
    x = torch.cat([x.masked_fill(~known, 0), x.new_zeros(len(x), 1, x.shape[2])], 1)
    known = torch.cat([known, known.new_zeros(len(x), 1, x.shape[2])], 1)
    rank = torch.arange(x.shape[1], device=x.device)
    last = rank[:, None].expand_as(x).masked_fill(~known, -1).amax(1)
    origin = x.gather(1, last.clamp(min=0)[:, None])[:, 0]
    count = known.sum(1).clamp(min=1)
    mean = x.sum(1) / count
    variance = (x - mean[:, None]).masked_fill(~known, 0).square().sum(1) / count
    unit = torch.sqrt(variance + LEAST**2)
    at = length[:, None] - past + torch.arange(past, device=x.device)
    index = at.clamp(min=0)[..., None].expand(-1, -1, x.shape[2])
    there = known.gather(1, index) & (at >= 0)[..., None]
    tail = ((x.gather(1, index) - origin[:, None]) / unit[:, None]).masked_fill(~there, 0)
    return Frame(origin, unit, tail)


def samples(value: Any) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """(T, C) numbers and (T,) times or None, from (T,) or (T, C) numbers or a pair of them and times.

    Raises:
        DataError: other shapes, or times that are not in order.
    """
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


class Moments:
    """Mean and standard deviation of each channel, of series that come one after the other; NaN is not known."""

    def __init__(self) -> None:
        self.shift: NDArray[np.float64] | None = None
        self.count = self.first = self.second = np.zeros(1)

    def add(self, x: NDArray[np.float64]) -> None:
        """(T, C) more.

        Raises:
            DataError: another number of channels.
        """
        if self.shift is None:
            # Near the mean, so that the sums of squares keep their digits.
            self.shift = np.nan_to_num(np.nanmean(x, 0)) if np.isfinite(x).any() else np.zeros(x.shape[1])
            self.count, self.first, self.second = (np.zeros(x.shape[1]) for _ in range(3))
        if x.shape[1] != len(self.shift):
            raise DataError(f"{x.shape[1]} channels where the first row has {len(self.shift)}")
        known = np.isfinite(x)
        y = np.where(known, x - self.shift, 0)
        self.count = self.count + known.sum(0)
        self.first, self.second = self.first + y.sum(0), self.second + (y * y).sum(0)

    def told(self) -> dict[str, list[float]]:
        """``mean`` and ``scale``; a channel that is always the same has a scale of 1.

        Raises:
            DataError: a channel has no number.
        """
        if self.shift is None or not self.count.all():
            raise DataError("a channel has no number in any training row")
        mean = self.first / self.count
        sigma = np.sqrt(np.maximum(self.second / self.count - mean**2, 0))
        return {"mean": (mean + self.shift).tolist(), "scale": np.where(sigma > 1e-12, sigma, 1.0).tolist()}
