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
from mapsto.likelihoods import wide
from mapsto.nn.channel import Frame, Moments, ending, samples
from mapsto.ragged import Ragged, Rows

__all__ = ["SeriesInput"]

RESAMPLED = 16


class SeriesInput(Input):
    """P samples of C channels in a row ↦ one item W x + b, at the time of the first of them.

    Channels are standardised by the training rows' mean and scale; a missing sample (NaN) is 0 with a mark beside it.
    Places are ranks, or seconds since the row's first sample divided by the training rows' median gap.

    A relative series is told as it moves, not where it is: each row less its last known sample, in units of its own
    spread (:func:`~mapsto.nn.channel.ending`), at places that count from its end (the last item is at ``limit`` - 1, or
    0 without a limit). What a forecast learns on one level then holds on every other.

    Args:
        dim: D.
        mean: of each channel.
        scale: of each channel.
        gap: the median time between samples, or None for series without times.
        patch: P, samples an item.
        limit: at most so many items a row; longer rows keep their last. 0 is no limit.
        relative: whether each row is told by how it moves.

    Reference: Kim et al., Reversible instance normalization, 2022.
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
        relative: bool = False,
    ):
        super().__init__()
        self.mean, self.scale, self.gap, self.patch, self.limit = mean, scale, gap, patch, limit
        self.relative = relative
        self.channels = len(mean)
        self.linear = nn.Linear(2 * self.channels * patch, dim)

    @classmethod
    def measure(
        cls,
        chunks: Iterable[Sequence[Any]],
        *,
        patch: int = 1,
        limit: int = 2048,
        relative: bool = False,
        **_: Any,
    ) -> dict[str, Any]:
        """Mean and scale of each channel, and the median gap; a value is (T, C) numbers, or a pair (numbers, times)."""
        moments = Moments()
        gaps: list[NDArray] = []
        for chunk in chunks:
            for value in chunk:
                x, times = samples(value)
                moments.add(x)
                if times is not None and len(times) > 1:
                    gaps.append(np.diff(times)[:1000])
        told = moments.told()
        gap = float(np.median(np.concatenate(gaps))) if gaps else None
        if gap is not None and gap <= 0:
            gap = 1.0
        return {**told, "gap": gap, "patch": patch, "limit": limit, "relative": relative}

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but ``dim``."""
        return {n: getattr(self, n) for n in ("mean", "scale", "gap", "patch", "limit", "relative")}

    def parse(self, value: Any) -> dict[str, NDArray]:
        """``values`` (items, P, C) standardised, NaN where missing, and ``times`` (items,)."""
        x, times = samples(value)
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
        values, valid, times = batch["values"], batch["valid"], batch["times"]
        if self.relative:
            origin, unit, _ = self.frame(batch)
            values = (values.to(origin.dtype) - origin[:, None, None]) / unit[:, None, None]
            late = times.masked_fill(~valid, -torch.inf)
            end = torch.cat([late, late.new_full((len(late), 1), -torch.inf)], 1).amax(1, keepdim=True)
            times = max(self.limit - 1, 0) + times - end.where(end > -torch.inf, 0.0)
        flat = values.flatten(2).to(self.linear.weight.dtype)
        hole = torch.isnan(flat) | ~valid[..., None]
        items = self.linear(torch.cat([flat.masked_fill(hole, 0), hole.to(flat.dtype)], -1))
        return Collection.build(items, valid, times[..., None])

    def frame(self, batch: Mapping[str, Tensor], past: int = 0) -> Frame:
        """Where each row ends, and how far it spreads."""
        values = wide(batch["values"].to(self.linear.weight.dtype))
        known = (torch.isfinite(values) & batch["valid"][..., None, None]).flatten(1, 2)
        length = batch["valid"].sum(1) * self.patch
        if self.patch > 1:  # what only fills the last patch up is no sample
            rank = torch.arange(1, known.shape[1] + 1, device=known.device)
            there = torch.cat([rank * known.any(2), rank.new_zeros(len(known), 1)], 1).amax(1)
            length = torch.maximum(there, length - self.patch + 1)
        return ending(values.flatten(1, 2), known, length, past)

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
