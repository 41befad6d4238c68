"""Ragged columns on disk: written row by row, checked when opened, read through memory maps.

A store is a folder: ``0.bin``, ``0.offsets.npy``, ... one pair a column, and ``manifest.json``, written last, with the
type, shape, size and SHA-256 of each. It is built beside its place and renamed, so it is whole or not there.
"""

import contextlib
import hashlib
import json
import os
import platform
import secrets
import shutil
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapsto.data.fault import fault
from mapsto.errors import DataError, ResourceError
from mapsto.ragged import Ragged, Rows

__all__ = ["Store", "build", "cache_folder", "cached", "open_store"]

VERSION = 2
BUFFER = 1 << 20
SMALL = 64 << 20  # files up to this size are hashed when a store is opened
STALE = 7 * 86_400.0


@dataclass(frozen=True)
class Store:
    """Named ragged columns of the same number of rows."""

    columns: dict[str, Ragged]

    @classmethod
    def of(cls, columns: Mapping[str, Ragged]) -> "Store":
        """A store in memory."""
        assert len({len(column) for column in columns.values()}) <= 1, "columns of different lengths"
        return cls(dict(columns))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def take(self, rows: NDArray[np.int64]) -> dict[str, Rows]:
        """A view of some rows of each column, gathered when it is read."""
        return {name: column.take(rows) for name, column in self.columns.items()}


class Writer:
    """One column on its way to disk."""

    def __init__(self, folder: Path, stem: str, name: str):
        self.path, self.stem, self.name = folder / f"{stem}.bin", stem, name
        self.file = self.path.open("wb", buffering=BUFFER)
        self.sum = hashlib.sha256()
        self.offsets = array("q", [0])
        self.dtype: np.dtype | None = None
        self.shape: tuple[int, ...] = ()

    def append(self, row: NDArray, number: int) -> None:
        row = np.atleast_1d(row)
        if self.dtype is None:
            assert row.dtype.kind in "biufc", f"{self.name}: a store holds numbers, not {row.dtype}"
            self.dtype, self.shape = row.dtype, row.shape[1:]
        if row.dtype != self.dtype or row.shape[1:] != self.shape:
            raise fault(
                f'row {number}: "{self.name}" has items of type {row.dtype} and shape {row.shape[1:]}, the rows before '
                f"{self.dtype} and {self.shape}. All rows must have the same."
            )
        data = np.ascontiguousarray(row).data.cast("B") if row.size else b""
        self.file.write(data)
        self.sum.update(data)
        self.offsets.append(self.offsets[-1] + len(row))

    def close(self) -> dict[str, Any]:
        flush(self.file)
        path = self.path.with_name(f"{self.stem}.offsets.npy")
        with path.open("wb") as file:
            np.save(file, np.frombuffer(self.offsets, np.int64), allow_pickle=False)
            flush(file)
        with path.open("rb") as file:
            offsets_sum = hashlib.file_digest(file, "sha256").hexdigest()
        dtype = self.dtype or np.dtype(np.float32)
        return {
            "name": self.name,
            "dtype": dtype.str,
            "shape": list(self.shape),
            "bytes": self.path.stat().st_size,
            "sha256": self.sum.hexdigest(),
            "offsets_bytes": path.stat().st_size,
            "offsets_sha256": offsets_sum,
        }


def flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def build(folder: Path, rows: Iterable[Mapping[str, NDArray]]) -> Store:
    """Write rows, one after the other, to a new store; never holds more than one of them (and 8 bytes a row).

    The values of a row lie along axis 0; a value without axes counts as one item. All rows have the same names, types
    and trailing shapes. If another process has built the same store meanwhile, that one is opened.

    Args:
        folder: where the store will be.
        rows: consumed once.

    Raises:
        DataError: rows of different types or shapes, with the row's number.
        ResourceError: the disk is full or may not be written.
    """
    made = folder.parent / f".{host()}.{os.getpid()}.{secrets.token_hex(4)}"
    writers: dict[str, Writer] = {}
    try:
        with written(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            sweep(folder.parent)
            made.mkdir()
        for number, row in enumerate(rows, 1):  # an OSError of the source is not one of the store
            with written(folder):
                if number == 1:
                    writers.update({name: Writer(made, str(i), name) for i, name in enumerate(row)})
                assert row.keys() == writers.keys(), f"row {number} has other columns than row 1"
                for name, values in row.items():
                    writers[name].append(np.asarray(values), number)
        with written(folder):
            finish(made, folder, list(writers.values()))
    finally:
        for writer in writers.values():
            with contextlib.suppress(OSError):  # a full disk was told above
                writer.file.close()
        shutil.rmtree(made, ignore_errors=True)
    return open_store(folder)


@contextlib.contextmanager
def written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        near = next((p for p in folder.parents if p.is_dir()), Path())
        raise ResourceError(
            f"{folder}: cannot be written ({error.strerror or error}), {shutil.disk_usage(near).free / 2**20:,.0f} MiB "
            "are free.   XDG_CACHE_HOME=FOLDER sets another place."
        ) from None


def finish(made: Path, folder: Path, writers: list[Writer]) -> None:
    rows = len(writers[0].offsets) - 1 if writers else 0
    manifest = {"version": VERSION, "rows": rows, "columns": [writer.close() for writer in writers]}
    with (made / "manifest.json").open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        flush(file)
    sync(made)
    with contextlib.suppress(FileExistsError):
        rename(made, folder)
    sync(folder.parent)


def rename(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not (folder / "manifest.json").exists():
            raise
        raise FileExistsError(folder) from None  # built by another process meanwhile


def sync(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def host() -> str:
    return hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()


def sweep(parent: Path) -> None:
    """Remove what builders left that were killed: on this machine at once, of others after a week."""
    for left in parent.glob(".????????.*.????????"):
        machine, pid = left.name.split(".")[1:3]
        with contextlib.suppress(OSError):
            age = time.time() - left.stat().st_mtime
            if age > STALE or (machine == host() and pid.isdigit() and not alive(int(pid))):
                shutil.rmtree(left, ignore_errors=True)


def alive(pid: int) -> bool:
    if os.name != "posix":
        return True  # signal 0 would end the process there; a week decides
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def open_store(folder: Path) -> Store:
    """Map a store, after checking its files against the manifest: all sizes, and the hashes of those up to 64 MiB.

    Raises:
        DataError: a file is missing, cut off or changed; says to delete the folder.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        if manifest["version"] != VERSION:
            raise fault(f"{folder} is of another version of mapsto.   Delete the folder; it is built again.")
        return Store(dict(load(folder, str(i), entry, manifest["rows"]) for i, entry in enumerate(manifest["columns"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise fault(f"{folder} is damaged ({error}).   Delete the folder; it is built again.") from None


def load(folder: Path, stem: str, entry: dict[str, Any], rows: int) -> tuple[str, Ragged]:
    data, index = folder / f"{stem}.bin", folder / f"{stem}.offsets.npy"
    verify(data, entry["bytes"], entry["sha256"])
    verify(index, entry["offsets_bytes"], entry["offsets_sha256"])
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    if dtype.kind not in "biufc":
        raise ValueError(f"type {entry['dtype']}")
    offsets = np.load(index, allow_pickle=False)
    width = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if (
        offsets.shape != (rows + 1,)
        or offsets[0] != 0
        or (np.diff(offsets) < 0).any()
        or offsets[-1] * width != entry["bytes"]
    ):
        raise ValueError(f"{index.name} does not fit {data.name}")
    shape = (int(offsets[-1]), *shape)
    if entry["bytes"]:
        values = np.asarray(np.memmap(data, dtype, "r", shape=shape))  # a plain view: a memmap's own slices are slow
    else:
        values = np.zeros(shape, dtype)
    return str(entry["name"]), Ragged(values, offsets.astype(np.int64, copy=False))


def verify(path: Path, size: int, digest: str) -> None:
    found = path.stat().st_size
    if found != size:
        raise ValueError(f"{path.name} has {found} bytes, expected {size}")
    if size <= SMALL:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(f"the content of {path.name} has changed")


def cache_folder(fingerprint: str, settings: Mapping[str, Any]) -> Path:
    """Where the store of some data, prepared with some settings, belongs: ``$XDG_CACHE_HOME/mapsto/store/HASH``.

    Args:
        fingerprint: of the data, by ``Table.fingerprint``.
        settings: all that the rows depend on beside the data; JSON values.
    """
    text = json.dumps([VERSION, fingerprint, settings], sort_keys=True, ensure_ascii=False)
    home = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return root / "mapsto" / "store" / hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def cached(folder: Path, rows: Callable[[], Iterable[Mapping[str, NDArray]]]) -> Store:
    """The store at a folder, built if it is not there or damaged."""
    if folder.exists():
        try:
            return open_store(folder)
        except DataError:  # it is only a cache
            shutil.rmtree(folder, ignore_errors=True)
    return build(folder, rows())
