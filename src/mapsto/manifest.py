"""Manifests: the sizes and SHA-256 of a folder's files, written last; a folder without one that fits is no folder."""

import hashlib
import re
from pathlib import Path
from typing import Any

from mapsto import disk, document
from mapsto.errors import ModelFileError

__all__ = ["MANIFEST", "digest", "seal", "verify"]

MANIFEST = "manifest.json"
FORMAT = 1
LIMIT = 1 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
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

    Every byte of the manifest is checked too: it ends with the SHA-256 of the rest, and must be written as
    :func:`mapsto.document.dump` writes it.

    Raises:
        ModelFileError: names the file that does not fit.
    """
    path = folder / MANIFEST
    try:
        data = disk.read(path, LIMIT)
        content: dict[str, Any] = document.parse(data.decode())
        own = content.pop("sha256")
        fits = hashlib.sha256(document.dump(content)).hexdigest() == own
        files = {str(name): (int(known["bytes"]), str(known["sha256"])) for name, known in content["files"].items()}
        if not fits or document.dump({**content, "sha256": own}) != data:
            raise ModelFileError(f"{path}: checksum mismatch")
        if content["format"] != FORMAT:
            raise ModelFileError(f"{path}: format {content['format']}, this version reads {FORMAT}")
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFileError(f"{path} is damaged ({error})") from None
    for name, (size, known) in files.items():
        if not NAME.fullmatch(name):
            raise ModelFileError(f"{path}: {name!r} is no name of a file of this folder")
        check(folder / name, size, known)
    return content


def check(path: Path, size: int, known: str) -> None:
    if path.is_symlink() or not path.is_file():
        raise ModelFileError(f"{path} is missing" if not path.exists() else f"{path} is a link or no plain file")
    found = path.stat().st_size
    if found != size:
        raise ModelFileError(f"{path}: {found:,} bytes, expected {size:,}")
    if digest(path) != known:
        raise ModelFileError(f"{path}: checksum mismatch")
