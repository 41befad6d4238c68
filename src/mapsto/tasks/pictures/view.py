"""One row of one input as a person can look at it: what the model receives, item by item."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapsto.models.mapper import Mapper
from mapsto.ragged import Rows
from mapsto.tasks.pictures.text import number
from mapsto.vocabulary import BEGIN, END, UNKNOWN, Vocabulary

__all__ = ["ImageView", "SeriesView", "TokensView", "VectorView", "View", "inputs", "told", "views"]


@dataclass(frozen=True)
class TokensView:
    """A sequence as it was cut.

    Attributes:
        tokens: in order.
        unknown: which of them the vocabulary lacks.
        full: whether the row fills the model's limit, so that there may have been more.
    """

    tokens: list[str]
    unknown: NDArray[np.bool_]
    full: bool = False

    @property
    def items(self) -> int:
        """How many items the model receives."""
        return len(self.tokens)


@dataclass(frozen=True)
class ImageView:
    """A picture, standardised.

    Attributes:
        pixels: (height, width, channels), in standard deviations from the training rows' mean.
        patch: pixels a side of what becomes an item.
        grey: (height, width) the brightness in [0, 1].
    """

    pixels: NDArray
    patch: int
    grey: NDArray

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self.pixels.shape[:2]
        return -(-height // self.patch), -(-width // self.patch)

    @property
    def items(self) -> int:
        """How many items the model receives."""
        return self.grid[0] * self.grid[1]


@dataclass(frozen=True)
class SeriesView:
    """A series.

    Attributes:
        times: (T,) of the samples: seconds from the first, or ranks.
        values: (T, channels) in the user's own units, NaN where missing.
        starts: (items,) the time of each item.
        timed: whether times are seconds.
    """

    times: NDArray
    values: NDArray
    starts: NDArray
    timed: bool

    @property
    def items(self) -> int:
        """How many items the model receives."""
        return len(self.starts)


@dataclass(frozen=True)
class VectorView:
    """A row of a table.

    Attributes:
        names: of the columns, in the model's order.
        values: standardised; NaN for categories and where missing.
        texts: the cell as a person writes it.
        missing: which cells have no value.
        unknown: which categories did not occur in training.
    """

    names: list[str]
    values: NDArray
    texts: list[str]
    missing: NDArray[np.bool_]
    unknown: NDArray[np.bool_]

    @property
    def items(self) -> int:
        """How many items the model receives."""
        return len(self.names)


def inputs(model: Mapper) -> dict[str, Any]:
    """The inputs of a model by name."""
    return dict(zip(model.names, model.inputs, strict=True))


View = TokensView | ImageView | SeriesView | VectorView


def views(part: Any, columns: Mapping[str, Rows]) -> list[View]:
    """A view of each row.

    Args:
        part: the input. A kind that is not known here is shown by the names of its items.
        columns: its stored columns, for some rows.
    """
    make = {"sequence": _tokens, "image": _images, "series": _series, "vector": _vectors}.get(part.kind, _names)
    return make(part, columns)


def told(vocabulary: Vocabulary, ids: ArrayLike, *, full: bool = False) -> TokensView:
    """A sequence that is written: its tokens, without the marks of its begin and end.

    Args:
        vocabulary: of the output.
        ids: its tokens.
        full: whether it was cut.
    """
    array = np.asarray(ids, np.int64).reshape(-1)
    shown = array[(array != BEGIN) & (array != END)]
    return TokensView(vocabulary.names(shown.tolist()), shown == UNKNOWN, full)


def _names(part: Any, columns: Mapping[str, Rows]) -> list[View]:
    return [TokensView(names, np.zeros(len(names), np.bool_)) for names in part.names(columns)]


def _tokens(part: Any, columns: Mapping[str, Rows]) -> list[View]:
    ids = [columns["ids"].column[row] for row in columns["ids"].rows]
    return [
        TokensView(names, np.asarray(row) == UNKNOWN, bool(part.limit) and len(row) >= part.limit)
        for names, row in zip(part.names(columns), ids, strict=True)
    ]


def _images(part: Any, columns: Mapping[str, Rows]) -> list[View]:
    made: list[View] = []
    for row, size in zip(columns["pixels"].rows, columns["size"].dense().tolist(), strict=True):
        unit = columns["pixels"].column[row].reshape(*size, -1) / (65535.0 if part.wide else 255.0)
        made.append(ImageView((unit - np.array(part.mean)) / np.array(part.scale), part.patch, unit.mean(2)))
    return made


def _series(part: Any, columns: Mapping[str, Rows]) -> list[View]:
    made: list[View] = []
    for row in columns["values"].rows:
        patches, starts = columns["values"].column[row], np.asarray(columns["times"].column[row], np.float64)
        values = np.asarray(patches, np.float64).reshape(-1, part.channels) * part.scale + part.mean
        starts = starts * (part.gap or 1.0) if part.gap else starts * part.patch
        times = _between(starts, part.patch)
        padding = len(values) - np.flatnonzero(np.isfinite(values).any(1)).max(initial=-1) - 1
        kept = len(values) - min(int(padding), part.patch - 1)  # what fills the last patch up is no missing sample
        made.append(SeriesView(times[:kept], values[:kept], starts, part.gap is not None))
    return made


def _between(starts: NDArray, patch: int) -> NDArray:
    """Times of all samples: only those of each patch's first are kept, the others lie evenly between."""
    if patch == 1 or not len(starts):
        return starts
    gap = starts[-1] - starts[-2] if len(starts) > 1 else float(patch)
    ends = np.append(starts[1:], starts[-1] + gap)
    return (starts[:, None] + (ends - starts)[:, None] * np.arange(patch) / patch).ravel()


def _vectors(part: Any, columns: Mapping[str, Rows]) -> list[View]:
    numbers, labels = columns["numbers"].dense(), columns["labels"].dense()
    return [_vector(part, x, ids) for x, ids in zip(numbers, labels, strict=True)]


def _vector(part: Any, x: NDArray, ids: NDArray) -> VectorView:
    names, values, texts, missing, unknown = [], [], [], [], []
    start = 0
    for column, width in zip(part.numbers, part.widths, strict=True):
        own = x[start : start + width].astype(np.float64)
        start += width
        gone = bool(np.isnan(own).any())
        back = own * column["scale"] + column["mean"]
        names.append(column["name"])
        values.append(np.nan if gone else float(own[0] if width == 1 else own.mean()))
        texts.append("missing" if gone else number(back[0]) if width == 1 else f"{width} numbers")
        missing.append(gone)
        unknown.append(False)
    for column, first, own_id in zip(part.labels, part.starts, ids.tolist(), strict=True):
        local = own_id - first
        names.append(column["name"])
        values.append(np.nan)
        texts.append(("missing", "not seen in training")[local] if local < 2 else column["classes"][local - 2])
        missing.append(local == 0)
        unknown.append(local == 1)
    return VectorView(names, np.array(values), texts, np.array(missing, np.bool_), np.array(unknown, np.bool_))
