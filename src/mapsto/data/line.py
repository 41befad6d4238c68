"""Text files of one item a line: JSONL, read strictly, and plain text."""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from mapsto import document
from mapsto.data.block import blocks, digest, last_row
from mapsto.data.fault import fault
from mapsto.data.source import Chunk, Table

__all__ = ["JsonLines", "TextLines"]


def numbered(path: Path, name: str) -> Iterator[tuple[int, list[str]]]:
    for block in blocks(path, name, last_row):
        text = block.data.decode()
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        if not lines[-1]:  # what follows the last line break is not a line
            lines.pop()
        yield block.line, lines


class TextLines(Table):
    """A text file of one item a line, as column "text". Row n is line n; an empty line is a missing item.

    LF, CRLF and a CR alone end a line; other separators (U+2028, form feeds) stay in it.
    """

    def __init__(self, path: Path, root: Path):
        self.path, self.name, self.root = path, path.name, root

    @property
    def columns(self) -> list[str]:
        """Only "text"."""
        return ["text"]

    def fingerprint(self) -> str:
        """The SHA-256 of the file."""
        return digest(self.path)

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Stream the lines, a block of the file at a time."""
        for first, lines in numbered(self.path, self.name):
            yield Chunk(first, {c: [line or None for line in lines] for c in columns})


class JsonLines(Table):
    """One JSON object a line. A key that an object lacks, or that is null, is a missing cell.

    Refused, with the line: what is no object, keys given twice, NaN and Infinity, numbers beyond float64, lone
    surrogates, and lists deeper than 64. Blank lines are passed over.
    """

    def __init__(self, path: Path, root: Path):
        self.path, self.name, self.root = path, path.name, root

    @cached_property
    def columns(self) -> list[str]:  # type: ignore[override]
        """All keys, in the order in which they first occur: a pass through the file."""
        names: dict[str, None] = {}
        for _, row in self._rows():
            for key in row:
                names.setdefault(key)
        if not names:
            raise fault(f"{self.name} is empty.   Expected one JSON object a line.")
        return list(names)

    def fingerprint(self) -> str:
        """The SHA-256 of the file."""
        return digest(self.path)

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Stream columns, some thousand rows at a time."""
        first, rows = 1, list[dict[str, Any]]()
        for _, row in self._rows():
            rows.append(row)
            if len(rows) == 4096:
                yield Chunk(first, {c: [r.get(c) for r in rows] for c in columns})
                first, rows = first + len(rows), []
        if rows:
            yield Chunk(first, {c: [r.get(c) for r in rows] for c in columns})

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for first, lines in numbered(self.path, self.name):
            for number, line in enumerate(lines, first):
                if line and not line.isspace():
                    yield number, self._decode(line, number)

    def _decode(self, line: str, number: int) -> dict[str, Any]:
        try:
            row = document.parse(line)
        except json.JSONDecodeError as error:
            array = line.lstrip().startswith("[") and number == 1
            hint = " The file looks like one JSON list; write one object a line." if array else ""
            raise fault(f"{self.name} line {number}, column {error.colno}: not JSON ({error.msg}).{hint}") from None
        except ValueError as error:
            raise fault(f"{self.name} line {number}: {error}") from None
        if not isinstance(row, dict):
            raise fault(
                f"{self.name} line {number}: a JSON {KIND.get(type(row), 'value')}, expected an object such as "
                '{"text": "...", "label": "..."}.'
            )
        return row


KIND = {list: "list", str: "text", int: "number", float: "number", bool: "true or false", type(None): "null"}
