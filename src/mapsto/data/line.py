"""Text files of one item a line: JSONL, read strictly, and plain text."""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from mapsto.data.block import blocks, digest, last_line
from mapsto.data.fault import fault
from mapsto.data.source import Chunk, Table

__all__ = ["JsonLines", "TextLines"]

DEEPEST = 64


def numbered(path: Path, name: str) -> Iterator[tuple[int, list[str]]]:
    for block in blocks(path, name, last_line):
        lines = block.data.decode().split("\n")
        if not lines[-1]:  # what follows the last line break is not a line
            lines.pop()
        yield block.line, [line.removesuffix("\r") for line in lines]


class TextLines(Table):
    """A text file of one item a line, as column "text". Row n is line n; an empty line is a missing item."""

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
            row = parse(line)
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


def parse(text: str) -> Any:
    """Strict JSON.

    Raises:
        ValueError: says what is wrong.
    """
    if text.count("[") + text.count("{") > DEEPEST and depth(text) > DEEPEST:
        raise ValueError(f"lists or objects nested deeper than {DEEPEST}.")
    try:
        value = DECODER.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's own limit
            raise ValueError("a whole number of more than 4300 digits.") from None
        raise
    if "\\u" in text and ("\\ud" in text or "\\uD" in text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair (\\ud800 to \\udfff) stands alone.") from None
    return value


BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]')


def depth(text: str) -> int:
    now = deepest = 0
    for mark in BRACKET.findall(text):
        if mark in "[{":
            now += 1
            deepest = max(deepest, now)
        elif mark in "]}":
            now -= 1
    return deepest


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [key for key, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'the key "{double}" is given {names.count(double)} times.')
    return row


def refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON. Write null for a missing value.")


def bounded(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:20]} is beyond the range of 64 bits.")
    return value


DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=refuse, parse_float=bounded)
