"""Columns of a table: numbers and categories, one item a column, missing values marked."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.errors import DataError
from mapsto.inputs import Input
from mapsto.ragged import Ragged, Rows

__all__ = ["VectorInput"]

RARE = 10_000


class VectorInput(Input):
    """A row of a table as a set of items, one a column (Gorishniy et al., FT-Transformer, 2021).

    A number x ↦ w_c (x − mean_c)/scale_c + b_c; a list of numbers ↦ W_c x + b_c; a category ↦ its embedding; a missing
    value ↦ a learned vector of the column. A category not seen in training has an embedding of its own.

    Args:
        dim: D.
        columns: for each, in order, ``{"name", "kind": "number", "mean": [...], "scale": [...]}`` or
            ``{"name", "kind": "label", "classes": [...]}``.
    """

    kind = "vector"

    def __init__(self, dim: int, *, columns: list[dict[str, Any]]):
        super().__init__()
        self.columns = columns
        self.numbers = [c for c in columns if c["kind"] == "number"]
        self.labels = [c for c in columns if c["kind"] == "label"]
        self.widths = [len(c["mean"]) for c in self.numbers]
        self._ids = [{s: i + 2 for i, s in enumerate(c["classes"])} for c in self.labels]
        starts = np.cumsum([0] + [2 + len(c["classes"]) for c in self.labels])
        self.starts = starts[:-1].tolist()
        self.weight = nn.Parameter(torch.zeros(sum(self.widths), dim))
        self.offset = nn.Parameter(torch.zeros(len(self.numbers), dim))
        self.missing = nn.Parameter(torch.zeros(len(self.numbers), dim))
        # Of each category column: 0 missing, 1 unknown, then its classes.
        self.embedding = nn.Embedding(int(starts[-1]), dim) if self.labels else None

    @classmethod
    def measure(
        cls, chunks: Iterable[Sequence[Any]], *, columns: Sequence[tuple[str, str]] = (), **_: Any
    ) -> dict[str, Any]:
        """Means and scales, or the categories, of each (name, kind); a value is a tuple of cells."""
        totals: list[Any] = [Counter() if kind == "label" else None for _, kind in columns]
        for chunk in chunks:
            for i, ((name, kind), cells) in enumerate(zip(columns, zip(*chunk, strict=True), strict=True)):
                known = [c for c in cells if c is not None]
                if kind == "label":
                    totals[i].update(known)
                elif known:
                    totals[i] = _add(totals[i], np.array([np.atleast_1d(c) for c in known], np.float64), name)
        measured: list[dict[str, Any]] = []
        for (name, kind), total in zip(columns, totals, strict=True):
            if kind == "label":
                classes = sorted(total, key=lambda s: (-total[s], s))[:RARE]
                measured.append({"name": name, "kind": "label", "classes": classes})
            elif total is None:
                raise DataError(f'"{name}": every training row lacks this number.   Leave the column out')
            else:
                count, mean, square = total
                sigma = np.sqrt(square / count)
                scale = np.where(sigma > 0, sigma, 1.0)
                measured.append({"name": name, "kind": "number", "mean": mean.tolist(), "scale": scale.tolist()})
        return {"columns": measured}

    def settings(self) -> dict[str, Any]:
        """The columns."""
        return {"columns": self.columns}

    @torch.no_grad()
    def reset(self, stream: torch.Generator) -> None:
        """Normal: weights with standard deviation 1/√width, offsets 0.1·that, embeddings as those of tokens."""
        for start, width in zip(np.cumsum([0, *self.widths]), self.widths, strict=False):
            part = self.weight[start : start + width]
            part.copy_(torch.randn(part.shape, generator=stream) / width**0.5)
        for vector in (self.offset, self.missing):
            vector.copy_(0.5 * torch.randn(vector.shape, generator=stream))

    def parse(self, value: Sequence[Any]) -> dict[str, NDArray]:
        """``numbers`` standardised (NaN = missing) and ``labels`` as ids."""
        cells = dict(zip((c["name"] for c in self.columns), value, strict=True))
        numbers = np.zeros(sum(self.widths), np.float32)
        start = 0
        for c, width in zip(self.numbers, self.widths, strict=True):
            cell = cells[c["name"]]
            if cell is None:
                numbers[start : start + width] = np.nan
            else:
                x = np.atleast_1d(np.asarray(cell, np.float64))
                if x.shape != (width,):
                    raise DataError(f'"{c["name"]}": {x.size} numbers where the model expects {width}')
                numbers[start : start + width] = (x - c["mean"]) / c["scale"]
            start += width
        labels = [
            first + (0 if cells[c["name"]] is None else ids.get(cells[c["name"]], 1))
            for c, ids, first in zip(self.labels, self._ids, self.starts, strict=True)
        ]
        return {"numbers": numbers, "labels": np.array(labels, np.int32)}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``numbers`` (B, widths) and ``labels`` (B, category columns)."""
        return {name: torch.from_numpy(columns[name].dense()) for name in ("numbers", "labels")}

    def forward(self, batch: Mapping[str, Tensor]) -> Collection:
        """One item a column, in the columns' order of kind; a set, so no places."""
        numbers, labels = batch["numbers"].to(self.weight.dtype), batch["labels"]
        parts = []
        if self.numbers:
            hole = torch.isnan(numbers)
            weighed = numbers.masked_fill(hole, 0)[..., None] * self.weight
            if max(self.widths) > 1:
                weighed = torch.stack([w.sum(1) for w in weighed.split(self.widths, 1)], 1)
                hole = torch.stack([h.any(1) for h in hole.split(self.widths, 1)], 1)
            parts.append(torch.where(hole[..., None], self.missing, weighed + self.offset))
        if self.embedding is not None:
            parts.append(self.embedding(labels))
        return Collection.build(torch.cat(parts, 1))

    def hide(self, batch: Mapping[str, Tensor], hidden: Bool[Tensor, "B C"]) -> dict[str, Tensor]:
        """The same rows without some cells, by their columns in order."""
        numbers, labels = batch["numbers"], batch["labels"]
        kinds = [c["kind"] for c in self.columns]
        if self.numbers:
            at = [i for i, kind in enumerate(kinds) if kind == "number" for _ in self.columns[i]["mean"]]
            numbers = numbers.masked_fill(hidden[:, at], torch.nan)
        if self.labels:
            at = [i for i, kind in enumerate(kinds) if kind == "label"]
            labels = torch.where(hidden[:, at], torch.tensor(self.starts).to(labels), labels)
        return {**batch, "numbers": numbers, "labels": labels}

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray:
        """The number of columns, for every row."""
        return np.full(len(columns["numbers"]), len(self.columns), np.int64)

    def plain(self, columns: Mapping[str, Rows]) -> NDArray:
        """Numbers (missing: 0, with a mark beside) and one-hot categories."""
        numbers, labels = columns["numbers"].dense(), columns["labels"].dense()
        hole = np.isnan(numbers)
        parts = [np.where(hole, 0, numbers), hole.astype(np.float32)]
        for i, c in enumerate(self.labels):
            ids = np.arange(2 + min(len(c["classes"]), 200)) + self.starts[i]
            parts.append((labels[:, i, None] == ids).astype(np.float32))
        return np.concatenate(parts, 1)

    def names(self, columns: Mapping[str, Rows]) -> list[list[str]]:
        """The columns' names."""
        return [[c["name"] for c in self.numbers] + [c["name"] for c in self.labels]] * len(columns["numbers"])


def _add(total: Any, x: NDArray, name: str) -> Any:
    """Chan's parallel update of (count, mean, sum of squares)."""
    count, mean = len(x), x.mean(0)
    square = ((x - mean) ** 2).sum(0)
    if total is None:
        return count, mean, square
    n, m, s = total
    if m.shape != mean.shape:
        raise DataError(f'"{name}": {mean.size} numbers where earlier rows have {m.size}')
    step = mean - m
    return n + count, m + step * count / (n + count), s + square + step**2 * n * count / (n + count)
