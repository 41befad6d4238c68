"""A mutated source of rows, what must come out of it, and whether it did.

A mutant's ``Want`` comes from a model of the format that shares no code with the library's readers.
"""

import random
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mapsto.data.kind import describe
from mapsto.data.table import open_table
from mapsto.errors import MapstoError

__all__ = ["Mutant", "Verdict", "Want", "damage", "judge", "read_table", "same"]

PIECES = [
    b'"',
    b'""',
    b"\n",
    b"\r",
    b"\r\n",
    b",",
    b"\t",
    b"\xff",
    b"\xe9",
    b"\xc3",
    b"\0",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
]
PIECES += [
    b"NaN",
    b"1e999",
    b"\xef\xbb\xbf",
    b"\\ud800",
    b"\\",
    b" ",
    b"\xe2\x80\xa8",
    b"\xed\xa0\x80",
    b"\x1b[31m",
    b"'",
]


@dataclass(frozen=True)
class Want:
    """What must come out.

    Attributes:
        values: the right values by column, or None where there are none: it must be refused.
        places: ``row 3``, ``line 4``: a refusal names one of them; none if the fault is the whole file's.
        optional: the bytes were damaged: refusing is right too, naming the file.
        other: gives further values that are right for damaged bytes without a checksum, or raises.
        near: how far numbers of arrays may be off.
    """

    values: Mapping[str, Sequence[Any]] | None
    places: frozenset[str] = frozenset()
    optional: bool = False
    other: Callable[[], Mapping[str, Sequence[Any]]] | None = None
    near: float = 0.0


@dataclass(frozen=True)
class Mutant:
    """A source.

    Attributes:
        mutation: what was done.
        files: by name, what lies in the folder.
        source: the file's name (or "" for the folder), or values in memory.
        want: what must come out.
        name: how errors call it.
        read: reads it; by default all of its table.
        links: names in the folder that link to something.
    """

    mutation: str
    files: Mapping[str, bytes]
    source: Any
    want: Want
    name: str
    read: Callable[["Mutant", Path], Mapping[str, Sequence[Any]]] = field(default=lambda m, p: read_table(m, p))
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """``right``, ``refused``, or what is broken: ``unnamed``, ``overstrict``, ``different``, ``traceback``."""

    kind: str
    text: str = ""


def read_table(mutant: Mutant, folder: Path, opener: Callable[..., Any] = open_table) -> dict[str, list[Any]]:
    """All columns of a mutant, through its chunks; the columns are described too, as every command does."""
    table = opener(folder / mutant.source if isinstance(mutant.source, str) else mutant.source)
    found: dict[str, list[Any]] = {name: [] for name in table.columns}
    rows = 0
    for chunk in table.chunks():
        if chunk.first != rows + 1:
            raise AssertionError(f"a chunk starts at row {chunk.first}, expected {rows + 1}")
        rows += len(chunk)
        for name in found:
            found[name].extend(chunk.columns[name])
    describe(table)
    return found


def judge(mutant: Mutant, folder: Path) -> Verdict:
    """Write a mutant to a folder, read it, and compare."""
    for name, data in mutant.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    for name, target in mutant.links.items():
        (folder / name).symlink_to(target)
    want = mutant.want
    try:
        got = mutant.read(mutant, folder)
    except MapstoError as error:
        return refusal(mutant, str(error))
    except Exception:  # what the law forbids
        return Verdict("traceback", traceback.format_exc())
    if want.values is not None and same(got, want.values, want.near):
        return Verdict("right")
    if want.other is not None:
        try:
            if same(got, want.other(), want.near):
                return Verdict("right")
        except Exception as error:
            return Verdict("different", f"read, but the reference says {error!r}")
    return Verdict("different", f"got      {shown(got)}\nexpected {shown(want.values)} {sorted(want.places)}")


def refusal(mutant: Mutant, text: str) -> Verdict:
    want = mutant.want
    if want.values is not None and not want.optional:
        return Verdict("overstrict", f"{text}\nexpected {shown(want.values)}")
    if not text.isprintable():
        return Verdict("unnamed", f"not one printable line: {text!r}")
    if mutant.name not in text:
        return Verdict("unnamed", f"no file: {text}")
    if want.places and not any(re.search(rf"\b{place}\b", text) for place in want.places):
        return Verdict("unnamed", f"not at {sorted(want.places)}: {text}")
    return Verdict("refused", text)


def shown(values: Any) -> str:
    try:
        return str(values)[:1500]
    except ValueError:  # a whole number that Python does not write
        return "values too long to be shown"


def same(a: Any, b: Any, near: float = 0.0) -> bool:
    """Equal in type and value; a NaN equals a NaN, an array a list of its numbers."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype.kind in "biuf":
        if a.shape != b.shape:
            return False
        x, y = a.astype(np.float64), b.astype(np.float64)
        return bool(((np.abs(x - y) <= near) | (x == y) | (np.isnan(x) & np.isnan(y))).all())
    a, b = (x.tolist() if isinstance(x, np.ndarray | np.generic) else x for x in (a, b))
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and list(a) == list(b) and all(same(a[k], b[k], near) for k in a)
    if isinstance(a, list | tuple):
        return (
            isinstance(b, list | tuple)
            and len(a) == len(b)
            and all(same(x, y, near) for x, y in zip(a, b, strict=True))
        )
    if type(a) is not type(b):
        return False
    return bool(a == b) or bool(a != a and b != b)


def damage(draw: random.Random, data: bytes, *, times: int = 1, pieces: Sequence[bytes] = PIECES) -> bytes:
    """Flip, insert, delete, double, move or cut bytes anywhere."""
    for _ in range(times):
        at = draw.randrange(len(data) + 1)
        size = draw.choice([1, 2, 8, 60, 500])
        match draw.randrange(7):
            case 0 | 1 if data:
                changed = bytearray(data)
                changed[at % len(data)] ^= 1 << draw.randrange(8)
                data = bytes(changed)
            case 2:
                data = data[:at] + draw.choice(pieces) + data[at:]
            case 3:
                data = data[:at] + data[at + size :]
            case 4:
                data = data[:at] + data[at : at + size] * 2 + data[at + size :]
            case 5:
                block, rest = data[at : at + size], data[:at] + data[at + size :]
                to = draw.randrange(len(rest) + 1)
                data = rest[:to] + block + rest[to:]
            case _:
                data = data[:at]
    return data
