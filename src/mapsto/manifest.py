"""Manifests: the sizes and SHA-256 of a folder's files, written last; a folder without one that fits is no folder."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from mapsto import disk, document
from mapsto.errors import ModelFileError

__all__ = ["MANIFEST", "check", "digest", "read", "seal", "verify"]

MANIFEST = "manifest.json"
FORMAT = 1
LIMIT = 1 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with disk.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, facts: dict[str, Any], names: list[str]) -> None:
    """Sync some files of a folder, then write a manifest of them, then sync it and the folder.

    Args:
        folder: where they are.
        facts: JSON values to keep beside: whose files these are.
        names: the files.
    """
    for name in names:
        disk.sync(folder / name)
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": digest(folder / name)} for name in names}
    content = {"format": FORMAT, **facts, "files": files}
    content["sha256"] = hashlib.sha256(document.dump(content)).hexdigest()
    disk.write(folder / MANIFEST, document.dump(content))
    disk.sync(folder / MANIFEST)
    disk.sync(folder)


def verify(folder: Path) -> dict[str, Any]:
    """Check a folder against its manifest; gives the manifest.

    Raises:
        ModelFileError: names the file that does not fit.
    """
    content = read(folder)
    for name in content["files"]:
        check(folder, content, name)
    return content


def read(folder: Path) -> dict[str, Any]:
    """A folder's manifest, whose files are still to be checked.

    Every byte of it is checked: it ends with the SHA-256 of the rest, and must be written as
    :func:`mapsto.document.dump` writes it.

    Raises:
        ModelFileError: names the manifest, or the folder if that is a link.
    """
    path = folder / MANIFEST
    if folder.is_symlink():
        raise ModelFileError(f"{folder} is a link, and is not read")
    try:
        data = disk.read(path, LIMIT)
        content: dict[str, Any] = document.parse(data.decode())
        own = content.pop("sha256")
        fits = hashlib.sha256(document.dump(content)).hexdigest() == own
        files = {n: {"bytes": int(f["bytes"]), "sha256": str(f["sha256"])} for n, f in content["files"].items()}
        if not fits or document.dump({**content, "sha256": own}) != data:
            raise ModelFileError(f"{path}: checksum mismatch")
        if content["format"] != FORMAT:
            raise ModelFileError(f"{path}: format {content['format']!r:.40}, this version reads {FORMAT}")
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ModelFileError(f"{path} is damaged ({str(error)[:80]})") from None
    for name in files:
        if not NAME.fullmatch(name):
            raise ModelFileError(f"{path}: {name!r:.80} is no name of a file of this folder")
    return {**content, "files": files}


def check(folder: Path, content: dict[str, Any], name: str, limit: int | None = None) -> None:
    """Check one file against a manifest.

    Args:
        folder: where it is.
        content: the manifest, as :func:`read` gives it.
        name: of the file.
        limit: the most bytes it may have; a longer one is not even read.

    Raises:
        ModelFileError: it does not fit.
    """
    path, known = folder / name, content["files"][name]
    try:
        with disk.opened(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != known["bytes"]:
                raise ModelFileError(f"{path}: {found:,} bytes, expected {known['bytes']:,}")
            if limit is not None and found > limit:
                raise ModelFileError(f"{path} has {found:,} bytes, expected at most {limit:,}")
            fits = hashlib.file_digest(file, "sha256").hexdigest() == known["sha256"]
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing") from None
    if not fits:
        raise ModelFileError(f"{path}: checksum mismatch")
