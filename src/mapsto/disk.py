"""Files that survive: what is written is on the disk before it has its name, what is read is no more than expected.

Everything that a run folder holds goes through these functions, so that a test can stop, fail or forget any of them.
"""

import os
import shutil
import stat
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mapsto import document
from mapsto.errors import ModelFileError, ResourceError

__all__ = [
    "append",
    "full",
    "make",
    "move",
    "read",
    "read_json",
    "read_tensors",
    "remove",
    "replace",
    "sync",
    "truncate",
    "write",
    "write_tensors",
]

JSON_LIMIT = 64 << 20


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, data: bytes) -> None:
    """A new file, or the old one emptied and written: not on the disk until :func:`sync`."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
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
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
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
    os.truncate(path, size)


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


def read(path: Path, limit: int) -> bytes:
    """A plain file of at most ``limit`` bytes; a link is not followed, a pipe or device not opened.

    Raises:
        FileNotFoundError: there is none.
        ModelFileError: a link, no plain file, or longer.
    """
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise ModelFileError(f"{path} is a link or no plain file, and is not read")
        if found.st_size > limit:
            raise ModelFileError(f"{path} has {found.st_size:,} bytes, expected at most {limit:,}")
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read(limit + 1)[:limit]
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """A JSON file, read strictly.

    Raises:
        ModelFileError: missing, too long, not UTF-8, or not strict JSON.
    """
    try:
        return document.parse(read(path, limit).decode())
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is damaged: {error}") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A safetensors file.

    Raises:
        ModelFileError: missing, a link, or damaged.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ModelFileError(f"{path} is a link or no plain file, and is not read")
        return load_file(path)
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged: {error}") from None


def full(path: Path, error: OSError, needed: int = 0) -> ResourceError:
    """What to tell when something cannot be written: where, why, how much was needed and how much is free."""
    near = next((p for p in (path, *path.parents) if p.is_dir()), Path())
    need = f"{needed / 1e6:,.1f} MB needed, " if needed else ""
    free = shutil.disk_usage(near).free
    return ResourceError(
        f"{path} cannot be written ({error.strerror or error}): {need}{free / 1e6:,.1f} MB free.   "
        "Make room, or write elsewhere"
    )
