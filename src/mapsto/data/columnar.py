"""Parquet files, and anything that speaks Arrow in memory (pandas, polars, pyarrow)."""

import datetime
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mapsto.data.block import digest
from mapsto.data.fault import fault
from mapsto.data.memory import digest_columns
from mapsto.data.source import Chunk, Table

__all__ = ["Arrow", "Parquet"]

ROWS = 4096
DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError, TypeError, KeyError, IndexError, MemoryError)
EPOCH = datetime.datetime(1970, 1, 1)


def cells(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """An Arrow column as Python values; lists of numbers without gaps as numpy arrays.

    Times with nanoseconds, which Python's cannot hold, are ISO texts.
    """
    if isinstance(column, pa.ChunkedArray):
        return [cell for part in column.chunks for cell in cells(part)]
    kind = column.type
    if isinstance(kind, pa.ExtensionType | pa.BaseExtensionType):
        return cells(column.storage)
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return [None if ns is None else nanoseconds(ns, kind.tz) for ns in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return [None if ns is None else span(ns) for ns in column.cast(pa.int64()).to_pylist()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = column.flatten()
        if (pa.types.is_integer(inner.type) or pa.types.is_floating(inner.type)) and not inner.null_count:
            values = inner.to_numpy(zero_copy_only=False)
            lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            ends = np.cumsum(lengths).tolist()
            rows = [values[e - n : e] for e, n in zip(ends, lengths.tolist(), strict=True)]
            if column.null_count:
                rows = [row if there else None for row, there in zip(rows, column.is_valid().to_pylist(), strict=True)]
            return rows
    return column.to_pylist()


def nanoseconds(ns: int, zone: str | None) -> Any:
    us, rest = divmod(ns, 1000)
    time = EPOCH + datetime.timedelta(microseconds=us)
    if zone is None:
        return time if not rest else f"{time.isoformat(timespec='microseconds')}{rest:03d}"
    aware = time.replace(tzinfo=datetime.UTC)
    if zone.upper() != "UTC":
        aware = aware.astimezone(ZoneInfo(zone))
    if not rest:
        return aware
    text = aware.isoformat(timespec="microseconds")
    return f"{text[:26]}{rest:03d}{text[26:]}"


def span(ns: int) -> Any:
    us, rest = divmod(ns, 1000)
    return datetime.timedelta(microseconds=us) if not rest else ns / 1e9


def named(column: pa.Array | pa.ChunkedArray, table: str, name: str, first: int) -> list[Any]:
    # The values of a column; if one cannot be held, its row is found and named.
    try:
        return cells(column)
    except DAMAGE:
        for i in range(len(column)):
            try:
                cells(column.slice(i, 1))
            except DAMAGE as error:
                raise fault(
                    f'{table} row {first + i}: "{name}": a value that cannot be read ({brief(error)}).'
                ) from None
        raise


def check_names(names: list[str], table: str) -> list[str]:
    if not names:
        raise fault(f"{table} has no columns.")
    double = [name for name, count in Counter(names).items() if count > 1]
    if double:
        raise fault(f'{table} has {names.count(double[0])} columns named "{double[0]}". Names must differ.')
    return names


class Parquet(Table):
    """A Parquet file, streamed some thousand rows at a time."""

    def __init__(self, path: Path, root: Path):
        self.path, self.name, self.root = path, path.name, root

    @cached_property
    def columns(self) -> list[str]:  # type: ignore[override]
        """The names of the top-level columns."""
        with self._open() as file:
            return check_names(list(file.schema_arrow.names), self.name)

    def fingerprint(self) -> str:
        """The SHA-256 of the file."""
        return digest(self.path)

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Stream columns, some thousand rows at a time."""
        first = 1
        try:
            with self._open() as file:
                for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
                    yield Chunk(first, {c: named(batch.column(c), self.name, c, first) for c in columns})
                    first += batch.num_rows
        except DAMAGE as error:
            raise fault(f"{self.name}: damaged after row {first - 1} ({brief(error)}).") from None

    def _open(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path, page_checksum_verification=True)
        except DAMAGE as error:
            raise fault(f"{self.name} is not a Parquet file, or damaged ({brief(error)}).") from None


def brief(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")[:200] if str(error) else type(error).__name__


class Arrow(Table):
    """A table in memory with ``__arrow_c_stream__``: of pandas, polars, pyarrow, duckdb.

    Args:
        source: the table.
        root: the folder that paths in it are relative to.
    """

    def __init__(self, source: Any, root: Path):
        self.name, self.root = "data", root
        try:
            self.table = source if isinstance(source, pa.Table) else pa.table(source)
        except DAMAGE as error:
            raise fault(
                f"data: the {type(source).__name__} is no table of Arrow ({brief(error)}).   A column of mixed kinds can "
                "be given as a dict of lists"
            ) from None

    @cached_property
    def columns(self) -> list[str]:  # type: ignore[override]
        """The names of the columns."""
        return check_names([str(name) for name in self.table.column_names], self.name)

    def fingerprint(self) -> str:
        """A hash of the values."""
        return digest_columns(self.columns, self.chunks())

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Stream columns, some thousand rows at a time."""
        for start in range(0, self.table.num_rows, ROWS):
            part = self.table.slice(start, ROWS)
            yield Chunk(start + 1, {c: named(part.column(c), self.name, c, start + 1) for c in columns})
