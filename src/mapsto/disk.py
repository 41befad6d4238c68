"""Files that survive: what is written is on the disk before it has its name, what is read is no more than expected.

Everything that a run folder holds goes through these functions, so that a test can stop, fail or forget any of them.
"""

import math
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from mapsto import document
from mapsto.errors import ModelFileError, ResourceError

__all__ = [
    "Entry",
    "append",
    "full",
    "make",
    "move",
    "opened",
    "read",
    "read_header",
    "read_json",
    "read_tensors",
    "remove",
    "replace",
    "sync",
    "truncate",
    "write",
    "write_tensors",
]

JSON_LIMIT = 16 << 20  # bytes
HEADER_LIMIT = 4 << 20  # likewise
VALUE_LIMIT = 1 << 20
NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
NOT_FOLLOWED = NO_LINK | getattr(os, "O_NONBLOCK", 0)  # a pipe put there a moment ago is not waited for either
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, data: bytes) -> None:
    """A new file, or the old one emptied and written: not on the disk until :func:`sync`."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK, 0o666)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A new safetensors file: not on the disk until :func:`sync`."""
    try:
        save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, path)
    except SafetensorError as error:  # its text ends with the operating system's: "... (os error 28)"
        number = str(error).rpartition("(os error ")[2].partition(")")[0]
        if not number.isdigit():
            raise
        raise OSError(int(number), os.strerror(int(number)), str(path)) from None
    path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors lets nobody else read


def append(path: Path, data: bytes) -> None:
    """Bytes at the end of a file; all of them or, after an error, none."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK, 0o666)
    try:
        before = os.fstat(handle).st_size
        try:
            done = 0
            while done < len(data):
                done += os.write(handle, data[done:])
        except OSError:
            os.ftruncate(handle, before)
            raise
    finally:
        os.close(handle)


def truncate(path: Path, size: int) -> None:
    """Cut a file to its first bytes."""
    handle = os.open(path, os.O_WRONLY | NOT_FOLLOWED)
    try:
        os.ftruncate(handle, size)
    finally:
        os.close(handle)


def make(folder: Path) -> None:
    """A new folder.

    Raises:
        FileExistsError: there is one.
    """
    folder.mkdir()


def move(source: Path, target: Path) -> None:
    """Give a file or folder another name: at once or not at all. Not on the disk until the folder is synced."""
    os.rename(source, target)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, if it is there; never follows a link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(path: Path, data: bytes) -> None:
    """Write aside, sync, rename, sync: after a crash the file is the old or the new one, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(aside, data)
        sync(aside)
        move(aside, path)
    except OSError:
        remove(aside)
        raise
    sync(path.parent)


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A plain file, open for reading; a link is not followed, a pipe or device not waited for.

    Raises:
        FileNotFoundError: there is none.
        ModelFileError: a link, no plain file, or it cannot be read.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ModelFileError(f"{path} is a link or no plain file, and is not read")
        with os.fdopen(os.open(path, os.O_RDONLY | NOT_FOLLOWED), "rb") as file:
            yield file
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a ValueError: a NUL in the name
        raise ModelFileError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def read(path: Path, limit: int) -> bytes:
    """A plain file of at most ``limit`` bytes; a link is not followed, a pipe or device not opened.

    Raises:
        FileNotFoundError: there is none.
        ModelFileError: a link, no plain file, or longer.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ModelFileError(f"{path} has {size:,} bytes, expected at most {limit:,}")
        return file.read(limit + 1)[:limit]


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """A JSON file, read strictly.

    Raises:
        ModelFileError: missing, too long, not UTF-8, not strict JSON, or of more than a million values.
    """
    try:
        return strict(read(path, limit))
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is damaged: {error}") from None


def strict(data: bytes) -> Any:
    # A value takes some hundred bytes of memory, and as few as two of the file.
    if sum(map(data.count, (b",", b"[", b"{"))) > VALUE_LIMIT:
        raise ValueError(f"more than {VALUE_LIMIT:,} values")
    return document.parse(data.decode())


@dataclass(frozen=True)
class Entry:
    """Where a tensor is in a safetensors file.

    Attributes:
        dtype: its type.
        shape: its sizes.
        begin: its first byte, counted from the start of the file.
        size: its bytes.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    size: int


def read_header(path: Path) -> dict[str, Entry]:
    """What tensors a safetensors file holds, without reading them.

    The header is JSON after its length in 8 bytes. It must say one thing only: no name twice, known types, sizes whose
    product is the number of bytes, and parts that fill the file without gaps or overlaps.

    Raises:
        ModelFileError: missing, a link, or damaged.
    """
    try:
        with opened(path) as file:
            return _header(file, path)
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing") from None


def _header(file: BufferedReader, path: Path) -> dict[str, Entry]:
    def damaged(why: str) -> ModelFileError:
        return ModelFileError(f"{path} is damaged: {why}")

    total = os.fstat(file.fileno()).st_size
    start = 8 + int.from_bytes(file.read(8), "little")
    if total < 8 or start > total:
        raise damaged(f"its header is said to end at byte {start:,}, and it has {total:,}")
    if start > HEADER_LIMIT:
        raise damaged(f"a header of {start:,} bytes, expected at most {HEADER_LIMIT:,}")
    try:
        content = strict(file.read(start - 8))
    except (ValueError, RecursionError) as error:
        raise damaged(f"its header: {error}") from None
    if not isinstance(content, dict):
        raise damaged("its header is no object")
    content.pop("__metadata__", None)
    entries = {}
    for name, part in content.items():
        if not isinstance(part, dict) or set(part) != {"dtype", "shape", "data_offsets"}:
            raise damaged(f"the header of {name!r:.80} is not dtype, shape and data_offsets")
        kind, shape, place = part["dtype"], part["shape"], part["data_offsets"]
        if not isinstance(kind, str) or kind not in DTYPES:
            raise damaged(f"{name!r:.80} is of type {kind!r:.80}, known are {', '.join(DTYPES)}")
        if not whole(shape) or not whole(place) or len(place) != 2 or len(shape) > 8:
            raise damaged(f"{name!r:.80} has a shape or place that is not whole numbers from 0 on")
        begin, end = place
        size = math.prod(shape) * DTYPES[kind].itemsize
        if end - begin != size or start + end > total:
            raise damaged(f"{name!r:.80} of shape {shape!r:.80} needs {size:,} bytes, and has {begin:,} to {end:,}")
        entries[name] = Entry(DTYPES[kind], tuple(shape), start + begin, size)
    place = start
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].begin, pair[1].size)):
        if entry.begin != place:
            raise damaged(f"{name!r:.80} begins at byte {entry.begin:,}, expected {place:,}")
        place += entry.size
    if place != total:
        raise damaged(f"{total - place:,} bytes at its end are of no tensor")
    return entries


def whole(numbers: Any) -> bool:
    """Whether it is a list of whole numbers that are not negative and fit into 63 bits."""
    return isinstance(numbers, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A safetensors file, as :func:`read_header` checks it; it takes as much memory as the file is long.

    Raises:
        ModelFileError: missing, a link, or damaged.
    """
    try:
        with opened(path) as file:
            entries = _header(file, path)
            found = {}
            for name, entry in entries.items():
                data = bytearray(entry.size)
                file.seek(entry.begin)
                if file.readinto(data) != entry.size:
                    raise ModelFileError(f"{path} is damaged: cut off")
                flat = torch.frombuffer(data, dtype=entry.dtype) if data else torch.empty(0, dtype=entry.dtype)
                found[name] = flat.view(entry.shape)
            return found
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing") from None


def full(path: Path, error: OSError, needed: int = 0) -> ResourceError:
    """What to tell when something cannot be written: where, why, how much was needed and how much is free."""
    near = next((p for p in (path, *path.parents) if p.is_dir()), Path())
    need = f"{needed / 1e6:,.1f} MB needed, " if needed else ""
    free = shutil.disk_usage(near).free
    return ResourceError(
        f"{path} cannot be written ({error.strerror or error}): {need}{free / 1e6:,.1f} MB free.   "
        "Make room, or write elsewhere"
    )
