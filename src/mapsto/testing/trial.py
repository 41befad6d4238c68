"""What the checks try things with: types and modes, numbers, rows as a run stores them, settings as a file keeps them."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.inputs import Input
from mapsto.nn.initial import initialise
from mapsto.outputs import Output
from mapsto.ragged import Ragged, Rows
from mapsto.stream import stream
from mapsto.testing.verdict import Case
from mapsto.vocabulary import Vocabulary, restore

__all__ = ["FILLINGS", "MODES", "TYPES", "Stored", "bits", "draw", "drawn", "prefix", "rewritten", "ways"]

FILLINGS = (7.0, 1e38, math.inf, -math.inf, math.nan)
"""What may stand in padding, and must change nothing."""

MODES = ("train", "eval")

TYPES = (torch.float64, torch.float32)


def ways() -> list[tuple[str, torch.dtype, str]]:
    """Every mode in every type, and what to call it."""
    return [(f"{mode}, {str(dtype)[6:]}", dtype, mode) for dtype in TYPES for mode in MODES]


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, the same at every call and, but for rounding, for every type."""
    return torch.randn(*shape, generator=stream(seed, "law", *shape), dtype=torch.float64).to(dtype)


def drawn(module: nn.Module) -> None:
    """Draw a module's weights anew, and leave the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        initialise(module, 1)


def prefix(lengths: list[int], longest: int) -> Bool[Tensor, "B N"]:
    """The first so many items of each row exist."""
    return torch.arange(longest) < torch.tensor(lengths, dtype=torch.int64)[:, None]


def bits(x: Tensor) -> Tensor:
    """The bytes: a missing number is a NaN, which equals nothing."""
    return x.contiguous().view(torch.uint8) if x.numel() else x


def rewritten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, written to JSON and vocabulary files and read again."""
    return {
        name: restore(value.kind, value.dump()) if isinstance(value, Vocabulary) else json.loads(json.dumps(value))
        for name, value in settings.items()
    }


class Stored:
    """Raw values of some rows, parsed and packed as a run stores them.

    Args:
        kind: the input or output they are for.
        values: one a row, as its ``parse`` takes them.
    """

    def __init__(self, kind: Input | Output, values: Sequence[Any]):
        self.kind, self.values = kind, list(values)
        parsed = [kind.parse(value) for value in self.values]
        self.columns = {name: Ragged.pack([row[name] for row in parsed]) for name in parsed[0]}

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Sequence[int] | None = None) -> dict[str, Rows]:
        """The columns of some rows; of all, if none are named."""
        index = np.arange(len(self)) if rows is None else np.array(rows, np.int64)
        return {name: column.take(index) for name, column in self.columns.items()}

    def gather(self, rows: Sequence[int] | None = None) -> dict[str, Tensor]:
        """A batch of some rows."""
        return self.kind.gather(self.take(rows))

    def companies(self) -> list[list[int]]:
        """Each row alone, all of them from the last to the first, and one three times."""
        return [*([b] for b in range(len(self))), list(range(len(self)))[::-1], [0] * 3]

    def reparse(self, other: Input | Output, case: Case) -> None:
        """Another of the kind parses the values alike."""

        def same(a: NDArray, b: NDArray) -> bool:
            return np.array_equal(a, b, equal_nan=b.dtype.kind == "f")

        for value in self.values:
            mine, theirs = other.parse(value), self.kind.parse(value)
            case.that(all(same(mine[n], theirs[n]) for n in theirs), "parses otherwise")
