"""The contract of every source of rows: named columns, streamed in chunks that know their row numbers."""

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapsto.data.fault import fault, plain
from mapsto.errors import did_you_mean

__all__ = ["Chunk", "Table"]


@dataclass(frozen=True)
class Chunk:
    """Some rows that follow each other.

    Attributes:
        first: the number of the first of them; the first data row of a table is row 1.
        columns: the cells of each column; None is a missing cell.
    """

    first: int
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))


class Table(ABC):
    """Rows of named columns. Each call of :meth:`chunks` streams them anew from the start.

    Attributes:
        name: how errors call it, such as ``reviews.csv``.
        root: the folder that paths in the data are relative to.
        split: a column that the source itself brings, which says train, val or test; empty if it brings none.
    """

    name: str
    root: Path
    split: str = ""

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """The names of the columns, in the order of the data."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content: the bytes of the file or files, or the values in memory."""

    @abstractmethod
    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Stream some of the columns; the names are known to exist."""

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Chunk]:
        """Stream columns (all of them by default) from the first row on.

        Raises:
            DataError: no such column; a malformed row, with its number; no rows at all.
        """
        wanted = self.columns if columns is None else list(dict.fromkeys(columns))
        self.require(*wanted)
        rows = 0
        for chunk in self.read(wanted):
            rows += len(chunk)
            yield chunk
        if wanted and not rows:
            raise fault(f"{self.name} has no rows.   columns: {', '.join(self.columns)}.")

    def require(self, *names: str, form: str = "{}") -> None:
        """Check that columns exist.

        Args:
            names: the columns.
            form: how the user would type the right name, such as ``--to {}``.

        Raises:
            DataError: names the column, those there are, and the closest one.
        """
        for name in names:
            if name not in self.columns:
                known = ", ".join(self.columns[:30]) + (", ..." if len(self.columns) > 30 else "")
                hint = did_you_mean(name, self.columns, form=form)
                raise fault(f'{self.name} has no column "{name}".   columns: {known}.{hint}')

    def column(self, name: str) -> list[Any]:
        """All cells of one column, in memory."""
        return [cell for chunk in self.chunks([name]) for cell in chunk.columns[name]]

    def place(self, row: int, column: str) -> str:
        """How an error names a cell: ``reviews.csv row 12: "text"``."""
        return plain(f'{self.name} row {row}: "{column}"')

    def file(self, value: str) -> Path:
        """The file that a cell names, relative to :attr:`root`.

        Raises:
            DataError: it lies outside of the root or does not exist; the caller adds the row.
        """
        name = value if len(value) <= 300 else f"{value[:297]}..."
        try:
            path = (self.root / value).resolve()
            inside = path.is_relative_to(self._around().resolve())
            there = inside and path.is_file()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a name too long, a circle of links
            raise fault(f'"{name}": no such file ({str(error)[:200]}).') from None
        if not inside:
            raise fault(f'"{name}" lies outside of the folder of the data.   data.root=FOLDER allows another one.')
        if not there:
            raise fault(f'"{name}": no such file.{did_you_mean(path.name, self._near(path.parent))}')
        return path

    def _around(self) -> Path:
        # Where files that cells name must lie.
        return self.root

    def _near(self, folder: Path) -> list[str]:
        # Some names of a folder, for the first rows that name no file: thousands of rows would take hours.
        hints: list[None] = self.__dict__.setdefault("_hints", [])
        hints.append(None)
        if len(hints) > 20 or not folder.is_dir():
            return []
        return [entry.name for entry in itertools.islice(os.scandir(folder), 2000)]
