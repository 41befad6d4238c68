"""Cells into values, strictly: a cell is what it says or it is refused; nothing is guessed.

All functions raise a DataError that says what was found and expected; the caller adds file, row and column.
"""

import datetime
import decimal
import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapsto.data.fault import fault
from mapsto.errors import DataError

__all__ = ["NUMBER", "label", "labels", "missing", "number", "numbers", "seconds", "show", "within"]

NUMBER = r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"  # possessive: no way to read it twice
ONE = re.compile(rf"\s*{NUMBER}\s*", re.ASCII)
LARGEST = float(np.finfo(np.float32).max)
SEPARATOR = re.compile(r"\s*[,;]\s*|\s+", re.ASCII)


def show(value: Any) -> str:
    """A value as an error shows it: short, on one line, control characters escaped."""
    try:
        text = repr(value) if isinstance(value, str) else " ".join(repr(value).split())
    except ValueError:  # a whole number of more digits than Python writes
        text = f"a {type(value).__name__} that is too long to be shown"
    text = text if len(text) <= 60 else text[:57] + "..."
    return f'"{text[1:-1]}"' if isinstance(value, str) and len(text) <= 60 and text[0] == "'" == text[-1] else text


def missing(value: Any) -> bool:
    """Whether a cell holds nothing: None, or the NaN (NaT) that data frames use for it."""
    if value is None:
        return True
    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    return isinstance(value, float | np.floating | datetime.date) and bool(value != value)


def number(value: Any) -> float:
    """A finite float64: a number, or text such as "1", "-2.5e3", "+.5" (ASCII digits, a point, spaces around).

    Raises:
        DataError: anything else: "1_000", "1,5", "nan", "1e400", full-width digits, "", true and false.
    """
    if isinstance(value, str):
        if not ONE.fullmatch(value):
            raise fault(f"{show(value)} is not a number.{_number_hint(value)}")
        result = float(value)
    elif isinstance(value, bool | np.bool_):
        raise fault(f"{str(bool(value)).lower()} is not a number. Use the column as a label, or write 0 and 1.")
    elif isinstance(value, int | float | np.integer | np.floating | decimal.Decimal):
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        except ValueError:  # a signalling NaN
            result = math.nan
    elif value is None:
        raise fault("is missing, expected a number.")
    else:
        raise fault(f"{show(value)} is not a number.")
    if not math.isfinite(result):
        raise fault(f"{show(value)} is not a finite number.")
    return result


def within(value: float) -> float:
    """The number itself, if 32 bits can hold it: what models compute with.

    Raises:
        DataError: it is greater.
    """
    if abs(value) > LARGEST:
        raise fault(f"{value:g} is beyond the range of 32 bits (3.4e38). Scale the column.")
    return value


def _number_hint(text: str) -> str:
    text = text.strip()
    if re.fullmatch(r"[+-]?[0-9]+,[0-9]+", text):
        return " Write decimals with a point."
    if re.fullmatch(r"[+-]?[0-9]+(?:[_' ,][0-9]{3})+(?:\.[0-9]+)?", text):
        return " Write it without marks between the digits."
    if text.lower() in ("nan", "na", "n/a", "null", "none", "-", "?"):
        return " Leave the cell empty if the value is missing."
    return ""


def numbers(value: Any, *, holes: bool = False) -> NDArray[np.float64]:
    """A float64 array, (T,) or (T, C) for T lists of C numbers; all of them within the range of 32 bits.

    Takes an array, a list of numbers or of lists of equal lengths, the same as JSON text, or text of numbers parted
    by spaces, commas or semicolons.

    Args:
        value: the cell.
        holes: whether numbers may be missing (null, and NaN from memory or a binary file): they become NaN.

    Raises:
        DataError: a value that is not a finite number, with its place; lists of different lengths.
    """
    if isinstance(value, str):
        value = _numbers_of_text(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        array = value.astype(np.float64)
    elif isinstance(value, Sequence | np.ndarray) and not isinstance(value, bytes):
        array = _numbers_of_list(value, holes)
    else:
        raise fault(f"{'is missing' if value is None else show(value) + ' is'}, expected a list of numbers.")
    if array.ndim not in (1, 2):
        raise fault(f"is an array of {array.ndim} axes, expected times, or times x channels.")
    bad = ~(np.abs(array) <= LARGEST)
    if holes:
        bad &= ~np.isnan(array)
    if bad.any():
        at = tuple(np.argwhere(bad)[0].tolist())
        raise fault(f"{show(array[at].item())} at item {at[0] + 1} is not a finite 32-bit number.")
    return array


def _numbers_of_text(text: str) -> Any:
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            return json.loads(stripped, parse_constant=str)
        except (ValueError, RecursionError):
            raise fault(f"{show(text)} is not a list of numbers.") from None
    if not stripped:
        return []
    return SEPARATOR.split(stripped)


def _numbers_of_list(items: Sequence[Any] | NDArray, holes: bool) -> NDArray[np.float64]:
    nested = [isinstance(item, Sequence | np.ndarray) and not isinstance(item, str | bytes) for item in items]
    if not any(nested):
        return np.array([_item(item, i, holes) for i, item in enumerate(items, 1)], np.float64)
    there = [True if holes and missing(item) else inner for item, inner in zip(items, nested, strict=True)]
    if not all(there):
        raise fault(f"item {there.index(not there[0]) + 1}: lists and numbers are mixed.")
    first = nested.index(True)
    width = len(items[first])
    rows = []
    for i, item in enumerate(items, 1):
        row = [None] * width if missing(item) else item
        if len(row) != width:
            raise fault(f"item {i} has {len(row)} numbers, item {first + 1} has {width}. All items must have as many.")
        rows.append([_item(x, i, holes) for x in row])
    return np.array(rows, np.float64).reshape(len(items), width)


def _item(value: Any, place: int, holes: bool) -> float:
    if holes and missing(value):
        return math.nan
    try:
        return number(value)
    except DataError as error:
        raise fault(f"item {place}: {error}") from None


def label(value: Any) -> str:
    """The name of a class: text as it is, whole numbers as "3" (also 3.0, as Parquet has it), "true", "false".

    Raises:
        DataError: missing, empty, not finite, or a list.
    """
    if isinstance(value, str):
        if not value:
            raise fault("is empty, expected a label.")
        return value
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        try:
            return str(int(value))
        except ValueError:
            raise fault("is a whole number of more than 4300 digits, expected a label.") from None
    if isinstance(value, float | np.floating) and math.isfinite(value):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    if isinstance(value, datetime.date | decimal.Decimal) and not missing(value):
        return str(value)
    raise fault(f"{'is missing' if missing(value) else show(value) + ' is'}, expected a label.")


def labels(value: Any) -> list[str]:
    """Several labels: a list, or text parted by ``|`` or ``;``. Missing or empty is none. Each once, in order.

    Example:
        >>> labels("drama | war"), labels(["a", 3]), labels(None)
        (['drama', 'war'], ['a', '3'], [])
    """
    if missing(value):
        return []
    if isinstance(value, str):
        names = [name.strip() for name in re.split(r"[|;]", value)]
        return list(dict.fromkeys(name for name in names if name))
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, bytes):
        return list(dict.fromkeys(label(item) for item in value))
    return [label(value)]


def seconds(value: Any) -> float:
    """A time in seconds: a number as it is, an ISO date or time ("2024-05-01", "2024-05-01T12:30:00+02:00") since 1970.

    A time without a zone counts as UTC.

    Raises:
        DataError: neither.
    """
    if isinstance(value, str) and not ONE.fullmatch(value):
        try:
            value = datetime.datetime.fromisoformat(value.strip())
        except ValueError:
            raise fault(f'{show(value)} is not a time. Expected seconds, or a date such as "2024-05-01".') from None
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if isinstance(value, datetime.datetime):
        value = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return (value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) / datetime.timedelta(seconds=1)
    if isinstance(value, datetime.timedelta):
        return value / datetime.timedelta(seconds=1)
    return number(value)
