"""Open any source of rows by what it is: a file, a folder of pictures or music, or values in memory."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mapsto.data.delimited import Delimited
from mapsto.data.fault import fault
from mapsto.data.folder import Folder
from mapsto.data.line import JsonLines, TextLines
from mapsto.data.memory import Arrays, Memory
from mapsto.data.source import Chunk, Table
from mapsto.errors import ConfigError, did_you_mean

__all__ = ["ENDINGS", "Chunk", "Table", "open_table"]

ENDINGS = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".txt", ".npz", ".parquet", ".pq", ".gz")  # of files of rows
KNOWN = ".csv, .tsv, .jsonl, .parquet, .txt, .npz, a folder of pictures or of music; .csv, .tsv, .jsonl and .txt also as .gz"
HINT = {
    ".json": "Write one object a line, as .jsonl.",
    ".xlsx": "Save the sheet as .csv.",
    ".xls": "Save the sheet as .csv.",
    ".pkl": "Pickles run code when they are read, and are not opened. Save the rows as .parquet or .jsonl.",
    ".pickle": "Pickles run code when they are read, and are not opened. Save the rows as .parquet or .jsonl.",
    ".pt": "Pickles run code when they are read, and are not opened. Save the arrays as .npz.",
    ".npy": "Save the arrays with np.savez, one a column.",
    ".zip": "Unpack it first.",
    ".mid": "Give the folder that it lies in.",
    ".midi": "Give the folder that it lies in.",
}


def open_table(source: Any, *, root: str | os.PathLike[str] | None = None, quote: str | None = '"') -> Table:
    """Open a source of rows.

    Args:
        source: a path (.csv, .tsv, .jsonl, .parquet, .txt, .npz, a folder of pictures or of MIDI files; the first three
            and .txt also with .gz behind); or in memory a list of dicts, a list of texts, a dict of lists, arrays or
            tensors whose first axis counts the rows, or anything with ``__arrow_c_stream__``; or a Table.
        root: the folder that paths in the data are relative to; by default that of the file, or the current one.
        quote: what quotes a cell of a CSV or TSV: ``"``; None or empty to read quotes as they stand.

    Raises:
        DataError: no such file, an unknown ending, or columns of different lengths.
        ConfigError: another quote.

    Example:
        >>> table = open_table([{"text": "good", "label": 1}, {"text": "bad"}])
        >>> table.columns, table.column("label")
        (['text', 'label'], [1, None])
    """
    if isinstance(source, Table):
        return source
    if quote not in ('"', "", None):
        raise ConfigError(f'quote={quote}: cells are quoted by " or, if it is empty, by nothing')
    if isinstance(source, str | os.PathLike):
        return open_path(Path(source).expanduser(), Path(root) if root is not None else None, quote or None)
    folder = Path(root) if root is not None else Path()
    if hasattr(source, "__arrow_c_stream__"):
        from mapsto.data.columnar import Arrow

        return Arrow(source, folder)
    if isinstance(source, Mapping):
        if not source:
            raise fault("data has no columns.")
        return Memory(source, folder)
    if isinstance(source, np.ndarray) or hasattr(source, "detach"):
        return Memory({"value": source}, folder)
    if isinstance(source, Sequence) and not isinstance(source, bytes):
        return Memory.of(source, folder)
    raise fault(
        f"data: a {type(source).__name__} is not a source of rows. Expected a path, a list of dicts or texts, a dict "
        "of arrays, or a table of pandas, polars or pyarrow."
    )


def open_path(path: Path, around: Path | None, quote: str | None) -> Table:
    try:
        there, folder = path.exists(), path.is_dir()
        near = [p.name for p in path.parent.iterdir()] if not there and path.parent.is_dir() else []
    except (OSError, ValueError) as error:  # a NUL, a name too long, a folder that may not be read
        raise fault(f"{path}: cannot be read ({error}).") from None
    if not there:
        where = "" if near or path.parent.is_dir() else f"   There is no folder {path.parent}."
        raise fault(f"{path}: no such file.{where}{did_you_mean(path.name, near)}")
    if folder:
        return Folder(path, around)
    if not path.is_file():
        raise fault(f"{path}: is no regular file.   Write what comes out of it to a file first.")
    root = path.parent if around is None else around
    plain = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    match plain.suffix.lower():
        case ".csv":
            return Delimited(path, root, ",", quote)
        case ".tsv" | ".tab":
            return Delimited(path, root, "\t", quote)
        case ".jsonl" | ".ndjson":
            return JsonLines(path, root)
        case ".txt":
            return TextLines(path, root)
        case ".npz" if plain is path:
            return Arrays(path, root)
        case ".parquet" | ".pq" if plain is path:
            from mapsto.data.columnar import Parquet

            return Parquet(path, root)
        case ending:
            hint = HINT.get(ending, f"Known are {KNOWN}.")
            raise fault(f'{path.name}: cannot read "{path.name[len(plain.stem) :] or path.name}" files.   {hint}')
