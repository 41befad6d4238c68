"""A cell as the kind of its column: what the inputs and outputs of a model are given."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapsto.data.source import Table
from mapsto.data.value import label, labels, number, numbers, seconds, show, within
from mapsto.errors import ConfigError, DataError

__all__ = ["FILES", "SOURCES", "content_of", "convert", "even", "same_length", "times"]

SOURCES = ("sequence", "series", "image", "music", "number", "label", "vector")
FILES = ("image", "music")
"""Kinds whose cells may be paths, relative to the data."""


def convert(cell: Any, kind: str, column: str) -> Any:
    """A cell as its kind.

    Raises:
        DataError: names the column and what was found; the caller adds file and row.
    """
    if cell is None:
        if kind == "labels":
            return []
        raise DataError(f'"{column}" is empty')
    try:
        match kind:
            case "label":
                return label(cell)
            case "labels":
                return labels(cell)
            case "number":
                return _several(cell) if isinstance(cell, list | tuple | np.ndarray) else within(number(cell))
            case "series":
                return numbers(cell, holes=True)
            case "sequence":
                return cell if isinstance(cell, str) else _each(cell, label)
            case "items-label":
                return _each(cell, label)
            case "items-number":
                return _each(cell, lambda value: within(number(value)))
    except DataError as error:
        raise DataError(f'"{column}": {error}') from None
    raise ConfigError(f'column "{column}": kind "{kind}" is not one of {", ".join(SOURCES)}')


def _several(cell: Any) -> list[float]:
    values = numbers(cell)
    if values.ndim > 1 or not len(values):
        raise DataError(f"{show(cell)} is neither a number nor a list of numbers")
    return [float(x) for x in values]


def _each(cell: Any, read: Callable[[Any], Any]) -> list[Any]:
    values = []
    for place, item in enumerate(_list(cell), 1):
        try:
            values.append(read(item))
        except DataError as error:
            raise DataError(f"item {place}: {error}") from None
    return values


def _list(cell: Any) -> Sequence[Any]:
    if isinstance(cell, str):
        parts = cell.split()
        return parts if len(parts) > 1 else list(cell)
    if isinstance(cell, list | tuple):
        return cell
    if isinstance(cell, np.ndarray) and cell.ndim == 1:
        return list(cell.tolist())
    raise DataError(f"{show(cell)} is neither text nor a list")


def times(cell: Any) -> NDArray[np.float64]:
    """Seconds of a list, or of a text parted by spaces, commas or semicolons.

    Raises:
        DataError: no list, or an item that is no time.
    """
    if isinstance(cell, str):
        cell = cell.replace(",", " ").replace(";", " ").split()
    if isinstance(cell, Mapping | bytes) or not isinstance(cell, Sequence | np.ndarray):
        raise DataError(f"{show(cell)} is, expected a list of times")
    return np.array(_each(cell, seconds), np.float64)


def content_of(cell: Any, kind: str, table: Table) -> Any:
    """What stands for a cell in the hash of its row: a file's bytes rather than its path."""
    if kind in FILES and isinstance(cell, str):
        try:
            return table.file(cell).read_bytes()
        except (DataError, OSError):  # told when the file is decoded
            return cell
    return cell


def same_length(field: str, kind: str, value: Any, target: Sequence[Any], name: str) -> None:
    """Hold the answers of an output of items to the number of items.

    Raises:
        DataError: names both.
    """
    size = len(value[0]) if isinstance(value, tuple) else len(value)
    if kind in ("sequence", "series") and not (isinstance(value, str) and " " in value) and size != len(target):
        raise DataError(f'"{name}" has {len(target)} entries, "{field}" has {size} items')


def even(column: str, value: Any, row: int, seen: dict[str, tuple[str, int]]) -> None:
    """Hold a column to the form of its first row: text or list, how many numbers, how many channels.

    Args:
        column: its name.
        value: a text or list of symbols, a number or list of numbers, or samples (T,) or (T, C).
        row: its number.
        seen: of each column, its form and the row where it was first seen; written to.

    Raises:
        DataError: another form.
    """
    if isinstance(value, np.ndarray):
        if not value.size:
            return  # told where it is read
        form = f"{value.shape[1] if value.ndim > 1 else 1} channels"
    elif isinstance(value, str):
        form = "a text"
    elif isinstance(value, list) and value and isinstance(value[0], float):
        form = f"{len(value)} numbers"
    else:
        form = "a list" if isinstance(value, list) else "1 numbers"
    before, first = seen.setdefault(column, (form, row))
    if form != before:
        raise DataError(f'"{column}": {form} where row {first} has {before}'.replace("1 numbers", "a number"))
