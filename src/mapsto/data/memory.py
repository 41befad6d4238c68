"""Rows that are in memory already: lists, dicts of arrays or tensors, and ``.npz`` files of arrays."""

import datetime
import hashlib
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapsto.data.block import digest
from mapsto.data.content import encode
from mapsto.data.fault import fault
from mapsto.data.source import Chunk, Table
from mapsto.errors import ResourceError

__all__ = ["Arrays", "Memory", "digest_columns", "free_memory"]

ROWS = 4096
PARTS = {"train": "train", "val": "val", "valid": "val", "test": "test"}


def digest_columns(names: Sequence[str], chunks: Iterable[Chunk]) -> str:
    """SHA-256 of the values of some columns, in any chunks."""
    sums = {name: hashlib.sha256() for name in names}
    for chunk in chunks:
        for name, cells in chunk.columns.items():
            for cell in cells:
                for piece in encode(cell):
                    sums[name].update(piece)
    whole = hashlib.sha256()
    for name in names:
        whole.update(repr(name).encode("utf-8", "surrogatepass") + sums[name].digest())
    return whole.hexdigest()


def as_column(values: Any, name: str) -> Sequence[Any] | NDArray:
    """A list, array or tensor as a column: its first axis counts the rows."""
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        values = values.detach().cpu()
        values = (values.float() if "bfloat16" in str(values.dtype) else values).numpy()
    if (
        not isinstance(values, str | bytes | Mapping)
        and hasattr(values, "__array__")
        and not isinstance(values, Sequence | np.ndarray)
    ):
        values = np.asarray(values)
    if isinstance(values, np.ndarray):
        if values.ndim == 0:
            raise fault(f'data: "{name}" is a single value, expected one value a row.')
        if values.dtype.kind == "V":
            raise fault(f'data: "{name}" holds records ({values.dtype}), expected numbers or texts.')
        if isinstance(values, np.ma.MaskedArray):
            if values.ndim > 1 and np.ma.is_masked(values):
                raise fault(f'data: "{name}" is a masked array.   Fill it: a NaN is a missing number')
            return values if np.ma.is_masked(values) else values.data
        return values
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise fault(f'data: "{name}" is a {type(values).__name__}, expected a list, an array or a tensor.')
    return values


def cells(column: Sequence[Any] | NDArray, start: int) -> list[Any]:
    part = column[start : start + ROWS]
    if not isinstance(part, np.ndarray):
        return [as_cell(cell) for cell in part]
    if part.ndim > 1:
        return list(part)
    if part.dtype.kind in "mM":
        return [time(value) for value in part]
    return part.tolist()


def time(value: np.datetime64 | np.timedelta64) -> Any:
    """As Python holds it; with digits beyond microseconds, or outside the years 1 to 9999, as numpy's ISO text."""
    if np.isnat(value):
        return None
    try:
        coarse = value.astype(f"{value.dtype.kind}8[us]")
        same = coarse.astype(value.dtype) == value and isinstance(coarse.item(), datetime.datetime | datetime.timedelta)
    except (TypeError, OverflowError):  # months have no length; very far years
        return str(value)
    return coarse.item() if same else str(value)


def as_cell(cell: Any) -> Any:
    if isinstance(cell, np.datetime64 | np.timedelta64):
        return time(cell)
    if isinstance(cell, np.generic):
        return cell.item()
    if hasattr(cell, "detach"):
        return as_column(cell, "cell") if cell.ndim else cell.item()
    return cell


def by_text(names: Iterable[Any], name: str) -> dict[str, Any]:
    """Names as text, each with the key it stands for; 1 and "1" are one name and refused together."""
    keys: dict[str, Any] = {}
    for key in names:
        if keys.setdefault(str(key), key) != key:
            raise fault(f'{name} has 2 columns named "{key}" ({keys[str(key)]!r} and {key!r}). Names must differ.')
    return keys


def form_of_row(row: Any) -> str:
    return "dicts" if isinstance(row, Mapping) else "texts" if isinstance(row, str) else "arrays or values"


class Memory(Table):
    """Columns in memory.

    Args:
        columns: a list, array or tensor a column; the first axis counts the rows.
        root: the folder that paths in them are relative to.
        name: how errors call the table.
    """

    def __init__(self, columns: Mapping[str, Any], root: Path, name: str = "data"):
        self.name, self.root = name, root
        self.values = {text: as_column(columns[key], text) for text, key in by_text(columns, name).items()}
        lengths = {key: len(values) for key, values in self.values.items()}
        first = next(iter(lengths), "")
        odd = next((key for key, length in lengths.items() if length != lengths[first]), None)
        if odd is not None:
            raise fault(
                f'{name}: "{first}" has {lengths[first]} rows, "{odd}" has {lengths[odd]}. All columns must have the '
                "same number of rows."
            )

    @classmethod
    def of(cls, rows: Sequence[Any], root: Path) -> "Memory":
        """A list of dicts (one a row), of texts (column "text"), or of arrays or lists (column "value")."""
        if not len(rows):
            raise fault("data has no rows.")
        form = form_of_row(next((row for row in rows if row is not None), None))
        odd = next((i for i, row in enumerate(rows, 1) if row is not None and form_of_row(row) != form), None)
        if odd is not None:
            raise fault(
                f"data row {odd}: {form_of_row(rows[odd - 1])} where the rows before are {form}. Expected a list of "
                "dicts, or of texts, or of arrays."
            )
        if form != "dicts":
            return cls({"text" if form == "texts" else "value": rows}, root)
        keys = by_text(dict.fromkeys(key for row in rows if row is not None for key in row), "data")
        return cls({name: [None if row is None else row.get(key) for row in rows] for name, key in keys.items()}, root)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.values)

    def fingerprint(self) -> str:
        """A hash of the values."""
        return digest_columns(self.columns, self.chunks())

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Stream columns, some thousand rows at a time."""
        rows = len(next(iter(self.values.values()), []))
        for start in range(0, rows, ROWS):
            yield Chunk(start + 1, {c: cells(self.values[c], start) for c in columns})


class Arrays(Table):
    """An ``.npz`` file: each array is a column, its first axis counts the rows.

    Arrays named ``x_train``, ``y_train``, ``x_test``, ``y_test`` (or ``_val``, ``_valid``) are columns ``x`` and ``y``
    with a column ``split``. Never unpickles; refuses what does not fit in memory before it is read.
    """

    def __init__(self, path: Path, root: Path):
        self.path, self.name, self.root = path, path.name, root

    @cached_property
    def memory(self) -> Memory:
        """The arrays."""
        arrays = self._load()
        parts = {name: name.rpartition("_") for name in arrays}
        if arrays and all(stem and part in PARTS for stem, _, part in parts.values()):
            arrays = self._join(arrays)
        return Memory(arrays, self.root, self.name)

    @property
    def columns(self) -> list[str]:
        """The names of the arrays."""
        return self.memory.columns

    def fingerprint(self) -> str:
        """The SHA-256 of the file."""
        return digest(self.path)

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Stream columns, some thousand rows at a time."""
        return self.memory.read(columns)

    def _load(self) -> dict[str, NDArray]:
        try:
            with zipfile.ZipFile(self.path) as archive, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of numpy, about headers that Python 2 wrote
                members = archive.infolist()
                if promised(self.path, len(archive.comment)) not in (len(members), 0xFFFF):  # the latter: see elsewhere
                    raise ValueError("its list of arrays is damaged")
                double = [
                    name
                    for name, count in Counter(m.filename.removesuffix(".npy") for m in members).items()
                    if count > 1
                ]
                if double:
                    raise ValueError(f"{double[0]} is in it twice")
                for member in members:
                    check_header(archive, member)
                needed = sum(member.file_size for member in members)
                if needed > free_memory():
                    raise ResourceError(
                        f"{self.name}: its arrays need {needed / 2**30:.1f} GiB, {free_memory() / 2**30:.1f} GiB are "
                        "free."
                    )
            with np.load(self.path, allow_pickle=False) as archive, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                arrays = {name: archive[name] for name in archive.files}
        except DAMAGE as error:
            cause = str(error)[:200] or type(error).__name__
            raise fault(f"{self.name} is not an .npz file of numbers and texts, or damaged ({cause}).") from None
        if not arrays:
            raise fault(f"{self.name} holds no arrays.   Expected one a column.")
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.ndim == 0:
                raise fault(f'{self.name}: "{name}" is a single value, expected an array with one item a row.')
            if array.dtype.kind == "V":
                raise fault(f'{self.name}: "{name}" holds records ({array.dtype}), expected numbers or texts.')
        return arrays

    def _join(self, arrays: dict[str, NDArray]) -> dict[str, Any]:
        stems = dict.fromkeys(name.rpartition("_")[0] for name in arrays)
        parts = [p for p in PARTS if any(f"{stem}_{p}" in arrays for stem in stems)]
        lacking = [f"{stem}_{p}" for stem in stems for p in parts if f"{stem}_{p}" not in arrays]
        if lacking:
            raise fault(f'{self.name} has no array "{lacking[0]}".   arrays: {", ".join(arrays)}.')
        first = next(iter(stems))
        joined: dict[str, Any] = {}
        for stem in stems:
            shapes = {arrays[f"{stem}_{p}"].shape[1:] for p in parts}
            if len(shapes) > 1:
                raise fault(f'{self.name}: the arrays "{stem}_*" have rows of different shapes {sorted(shapes)}.')
            joined[stem] = np.concatenate([arrays[f"{stem}_{p}"] for p in parts])
        joined["split"] = [PARTS[p] for p in parts for _ in range(len(arrays[f"{first}_{p}"]))]
        return joined


DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError),
    *(ValueError, OSError, EOFError, LookupError, RuntimeError, TypeError, SyntaxError, OverflowError, MemoryError),
)


def promised(path: Path, comment: int) -> int:
    # How many arrays the end of the archive speaks of; zipfile does not look, and a damaged list may swallow some.
    with path.open("rb") as file:
        file.seek(-22 - comment, os.SEEK_END)
        return int.from_bytes(file.read(12)[10:], "little")


def check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    # A header may promise any shape; numpy would allocate it before it reads. What it leaves unread is not checked by
    # the archive's sum, so the sizes must be equal.
    try:
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            start = file.tell()
    except ValueError as error:
        raise ValueError(f"{member.filename}: {str(error).splitlines()[0]}") from None
    if dtype.hasobject:
        raise ValueError(f"{member.filename} is an array of Python objects")
    if not dtype.itemsize or 0 in shape[1:]:
        raise ValueError(f"{member.filename} has rows without items")
    size = start + math.prod(shape) * dtype.itemsize
    if size > member.file_size:
        raise ValueError(f"{member.filename} is cut off")
    if size < member.file_size:
        raise ValueError(f"{member.filename} holds more than its header says")


def free_memory() -> int:
    """Bytes of memory that can be had without swapping; very many where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62
