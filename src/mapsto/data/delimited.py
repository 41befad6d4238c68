"""CSV and TSV: pyarrow parses the grammar, and every cell stays the text it is in the file."""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv

from mapsto.data.block import Block, Quoted, blocks, digest, first_row, last_row
from mapsto.data.fault import fault
from mapsto.data.source import Chunk, Table

__all__ = ["Delimited"]

WIDEST = 100_000
BOM = b"\xef\xbb\xbf"  # pyarrow drops one at the start of what it is given: ours, and not one that is a cell's


class Delimited(Table):
    """A file of rows of cells with a header.

    An empty cell is missing (None), ``""`` is an empty text; nothing else is changed: "NA", "nan", "007" and spaces
    stay. Quoted cells may hold line breaks. Blank lines are passed over and not counted as rows.

    Args:
        path: the file, or a ``.gz`` of it.
        root: the folder that paths in it are relative to.
        delimiter: what parts the cells.
        quote: ``"``, or None to read quotes as they stand.
    """

    def __init__(self, path: Path, root: Path, delimiter: str, quote: str | None = '"'):
        self.path, self.name, self.root = path, path.name, root
        self.delimiter, self.quote = delimiter, quote
        self._quoted = Quoted(delimiter)

    @cached_property
    def columns(self) -> list[str]:  # type: ignore[override]
        """The names in the header, without spaces around them."""
        for block in self._blocks():
            header, _ = self._header(block)
            return header
        raise fault(f"{self.name} is empty.   Expected a header line with the names of the columns, then rows.")

    def fingerprint(self) -> str:
        """The SHA-256 of the file."""
        return digest(self.path)

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Stream columns, a block of the file at a time."""
        names, first, header = self.columns, 1, True
        wanted = [names.index(c) for c in columns]
        for block in self._blocks():
            data = block.data
            if header:
                data = data[self._header(block)[1] :]
                header = False
            if not data.strip(b"\r\n"):
                continue
            cells = self._parse(data, len(names), wanted, first)
            chunk = Chunk(first, dict(zip(columns, cells, strict=True)))
            first += len(chunk)
            yield chunk

    def _blocks(self) -> Iterator[Block]:
        skipping = True
        for block in blocks(self.path, self.name, self._quoted if self.quote else last_row):
            if skipping and not block.data.strip(b"\r\n"):
                continue
            skipping = False
            yield block

    def _header(self, block: Block) -> tuple[list[str], int]:
        blank = len(block.data) - len(block.data.lstrip(b"\r\n"))
        data = block.data[blank:]
        end = self._quoted.first(data) if self.quote else first_row(data)
        width = data[:end].count(self.delimiter.encode()) + 1
        if width > WIDEST:
            raise fault(f"{self.name} line {block.line}: more than {WIDEST} cells in the header. Is it a header?")
        table = pacsv.read_csv(
            pa.py_buffer(BOM + data[:end].rstrip(b"\r\n") + b"\n"),
            read_options=pacsv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=end + 8),
            parse_options=self._grammar(None),
            convert_options=pacsv.ConvertOptions(
                column_types={f"f{i}": pa.string() for i in range(width)}, null_values=[]
            ),
        )
        names = [column[0].as_py().strip() for column in table.columns]
        double = [name for name, count in Counter(names).items() if count > 1]
        if double:
            raise fault(
                f'{self.name} has {names.count(double[0])} columns named "{double[0]}". Names in the first line must '
                f"differ.   columns: {', '.join(names[:30])}."
            )
        return names, blank + end

    def _grammar(self, bad: list[pacsv.InvalidRow] | None) -> pacsv.ParseOptions:
        def note(row: pacsv.InvalidRow) -> str:
            if bad is not None:
                bad.append(row)
            return "skip"

        return pacsv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            newlines_in_values=bool(self.quote),
            invalid_row_handler=None if bad is None else note,
        )

    def _parse(self, data: bytes, width: int, wanted: list[int], first: int) -> list[list[str | None]]:
        if not data.endswith((b"\n", b"\r")):
            data += b"\n"  # without it pyarrow takes an empty last cell for a quoted one
        names = [str(i) for i in range(width)]
        bad: list[pacsv.InvalidRow] = []
        try:
            table = pacsv.read_csv(
                pa.py_buffer(BOM + data),
                read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 8),
                parse_options=self._grammar(bad),
                convert_options=pacsv.ConvertOptions(
                    column_types={name: pa.string() for name in names},
                    include_columns=[str(i) for i in wanted] or names[:1],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    null_values=[""],
                ),
            )
        except pa.ArrowException as error:
            raise fault(f"{self.name}: the rows from row {first} on cannot be read ({error}).") from None
        if bad:
            row = bad[0]
            shown = ", ".join(self.columns[:8]) + (", ..." if width > 8 else "")
            mark = {",": "comma", "\t": "tab"}.get(self.delimiter, self.delimiter)
            hint = f"   A cell that holds a {mark} is written in quotes." if row.actual_columns > width else ""
            number = first + row.number - 1
            raise fault(f"{self.name} row {number}: {row.actual_columns} cells, expected {width} ({shown}).{hint}")
        return [table.column(i).to_pylist() for i in range(len(wanted))]
