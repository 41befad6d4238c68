"""Text files as blocks of whole rows: decompressed, checked to be UTF-8, cut where a row ends and nowhere else.

This is where a file that lies about its rows is caught: a quote that is never closed would make any CSV parser swallow
the rows behind it.
"""

import gzip
import hashlib
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mapsto.data.fault import fault

__all__ = ["Block", "Malformed", "Quoted", "blocks", "digest", "first_row", "last_row"]

PIECE = 1 << 20
LONGEST = 16 << 20


class Malformed(Exception):
    """A row that breaks the grammar, at a byte of the block; the reader adds file and line."""

    def __init__(self, text: str, at: int):
        super().__init__(text)
        self.at = at


@dataclass(frozen=True)
class Block:
    """Whole rows. ``line`` is the number in the file (from 1) of the first line of ``data``."""

    data: bytes
    line: int


def pieces(path: Path, name: str) -> Iterator[bytes]:
    gz = path.suffix.lower() == ".gz"
    open_file: Callable[..., gzip.GzipFile] = gzip.open if gz else open  # type: ignore[assignment]
    try:
        with open_file(path, "rb") as file:
            while piece := file.read(PIECE):
                yield piece
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise fault(f"{name}: the gzip data is damaged or cut off ({error}). Compress or download it again.") from None
    except OSError as error:
        raise fault(f"{name}: cannot be read ({error.strerror or error}).") from None


def digest(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise fault(f"{path.name}: cannot be read ({error.strerror or error}).") from None


def last_row(data: bytes, final: bool) -> int:
    """Where the last whole row ends that ends with LF, CRLF or CR; all of it when nothing follows."""
    if final:
        return len(data)
    end = len(data) - data.endswith(b"\r")  # that CR may be half of a CRLF
    return max(data.rfind(b"\n", 0, end), data.rfind(b"\r", 0, end)) + 1


class Quoted:
    """The strict grammar of cells: a cell that starts with a quote ends with one, and doubles those within.

    A quote inside a cell that does not start with one stands for itself (``5" disk``).

    Args:
        delimiter: what parts the cells of a row.
    """

    def __init__(self, delimiter: str):
        self.ends = np.zeros(256, np.bool_)  # the bytes that may stand before or after a quoted cell
        self.ends[[ord(delimiter), 10, 13]] = True
        d = re.escape(delimiter.encode())
        self.quoted = re.compile(rb'"[^"]*+(?:""[^"]*+)*+"')
        self.cell = re.compile(
            rb'(?:"[^"]*+(?:""[^"]*+)*+"|[^"\r\n' + d + rb"][^\r\n" + d + rb"]*+|)(" + d + rb"|\r\n|\r|\n|\Z)"
        )

    def __call__(self, data: bytes, final: bool) -> int:
        """Where the last whole row ends.

        Raises:
            Malformed: a quote that is opened and never closed, or text after a closing quote.
        """
        if b'"' not in data:
            return last_row(data, final)
        end = self._glance(data, final)
        return self._walk(data, final) if end is None else end

    def _glance(self, data: bytes, final: bool) -> int | None:
        # If every quote opens or closes a cell or is one of a doubled pair, a byte is inside a cell iff the number of
        # quotes before it is odd: no loop is needed. None where that does not hold.
        a = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(a == 34)
        if final:
            end = len(data)
        else:
            breaks = np.flatnonzero((a == 10) | (a == 13))
            breaks = breaks[: np.searchsorted(breaks, len(a) - data.endswith(b"\r"))]  # it may be half of a CRLF
            breaks = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
            end = int(breaks[-1]) + 1 if len(breaks) else 0
            quotes = quotes[: np.searchsorted(quotes, end)]
        if len(quotes) % 2:
            return None
        opens, closes = quotes[::2], quotes[1::2]
        before = self.ends[a[np.maximum(opens - 1, 0)]] | (opens == 0)
        before[1:] |= opens[1:] == closes[:-1] + 1
        after = self.ends[a[np.minimum(closes + 1, len(a) - 1)]] | (closes == len(a) - 1)
        after[:-1] |= opens[1:] == closes[:-1] + 1
        return end if bool(before.all() and after.all()) else None

    def _walk(self, data: bytes, final: bool) -> int:
        at = end = 0
        while at < len(data):
            cell = self.cell.match(data, at)
            if cell is None:
                quoted = self.quoted.match(data, at)
                if quoted is not None and quoted.end() < len(data):
                    raise Malformed(
                        "text after the closing quote of a cell, or a quote that was opened and never closed. "
                        'A quote inside a quoted cell is written twice ("").',
                        at,
                    )
                if final:
                    raise Malformed("a quote is opened and never closed.", at)
                return end
            at = cell.end()
            if cell[1] in (b"\n", b"\r\n") or (cell[1] == b"\r" and at < len(data)):
                end = at
            elif not cell[1]:
                break
        return len(data) if final else end

    def first(self, data: bytes) -> int:
        """Where the first row of a block of whole rows ends."""
        at = 0
        while at < len(data) and (cell := self.cell.match(data, at)):
            at = cell.end()
            if cell[1] in (b"\n", b"\r", b"\r\n"):
                break
        return at


def first_row(data: bytes) -> int:
    """Where the first row ends, if quotes mean nothing."""
    ends = [end for end in (data.find(b"\n"), data.find(b"\r")) if end >= 0]
    if not ends:
        return len(data)
    return min(ends) + (2 if data.startswith(b"\r\n", min(ends)) else 1)


def blocks(path: Path, name: str, end: Callable[[bytes, bool], int]) -> Iterator[Block]:
    """Cut a text file (or a ``.gz`` of one) into blocks of whole rows. A byte-order mark is dropped.

    Lines are counted as editors count them: LF, CRLF and a CR alone end one.

    Args:
        path: the file.
        name: how errors call it.
        end: where the last whole row of some bytes ends, given whether nothing follows them.

    Raises:
        DataError: not UTF-8, with the line and the byte; a malformed or endless row, with its line.
    """
    rest, line, start = b"", 1, True
    for piece in itertools.chain(pieces(path, name), (None,)):
        final = piece is None
        data = rest + (piece or b"")
        if start and (final or len(data) >= 4):
            start = False
            if data.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise fault(f"{name}: is UTF-16. Save it as UTF-8.")
            data = data.removeprefix(b"\xef\xbb\xbf")
        try:
            cut = end(data, final)
        except Malformed as error:
            raise fault(f"{name} line {line + lines(data[: error.at])}: {error}") from None
        whole, rest = data[:cut], data[cut:]
        if len(rest) > LONGEST:
            cause = "a quote is opened and never closed, or the row is" if b'"' in rest[:PIECE] else "the row is"
            raise fault(f"{name} line {line + lines(whole)}: {cause} longer than {LONGEST >> 20} MB.")
        if whole:
            check_text(whole, name, line)
            yield Block(whole, line)
            line += lines(whole)


def lines(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def check_text(data: bytes, name: str, line: int) -> None:
    if data.isascii():
        return
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line += lines(data[: error.start])
        raise fault(
            f"{name} line {line}: byte 0x{data[error.start]:02X} is not UTF-8. Save the file as UTF-8 "
            f"(from Latin-1: iconv -f latin1 -t utf-8)."
        ) from None
