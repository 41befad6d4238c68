"""A folder of pictures or of music: sub-folders are labels, and folders train, val and test are the split."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mapsto.data.block import digest
from mapsto.data.fault import fault
from mapsto.data.source import Chunk, Table
from mapsto.errors import DataError

__all__ = ["MUSIC", "PICTURES", "Folder"]

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif")
MUSIC = (".mid", ".midi")
PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val", "test": "test"}
ROWS = 4096


class Folder(Table):
    """The pictures, or the pieces of music, under a folder, sorted by path; of both, those there are more of.

    Columns: ``path`` (of music: ``music``), relative to the folder; ``label``, the sub-folder, if there are any;
    ``split``, if the folders at the top are called train, val (valid, validation, dev) and test. Hidden files and other
    files are passed over.

    Args:
        path: the folder.
        around: a folder around it that links may lead to; by default they may not leave ``path``.
    """

    def __init__(self, path: Path, around: Path | None = None):
        self.name, self.root, self.bounds = path.resolve().name or str(path), path, around or path
        files = sorted(PurePosixPath(Path(d, f).relative_to(path).as_posix()) for d, f in walk(path))
        music = [p for p in files if p.suffix.lower() in MUSIC]
        self._files = "music" if 2 * len(music) > len(files) else "path"
        found = music if self._files == "music" else [p for p in files if p.suffix.lower() in PICTURES]
        if not found:
            known = ", ".join(PICTURES + MUSIC)
            raise fault(f"{self.name}: no pictures and no music in this folder.   Expected {known}.")
        for p in found:
            try:
                str(p).encode()
            except UnicodeEncodeError:
                raise fault(f'{self.name}: the name of "{p}" is not UTF-8.   Rename it') from None
        tops = {p.parts[0] for p in found}
        named = len(tops) > 1 and tops <= set(PARTS) and all(len(p.parts) > 1 for p in found)
        deep = 1 if named else 0
        labels = ["/".join(p.parts[deep:-1]) or None for p in found]
        self._cells: dict[str, list[str | None]] = {self._files: [str(p) for p in found]}
        if any(labels):
            self._cells["label"] = labels
        if named:
            self._cells["split"] = [PARTS[p.parts[0]] for p in found]
            self.split = "split"

    @property
    def columns(self) -> list[str]:
        """``path`` or ``music``, and ``label`` and ``split`` where the folders say so."""
        return list(self._cells)

    def fingerprint(self) -> str:
        """A hash of all paths and of the bytes of the files."""
        whole = hashlib.sha256()
        for path in self._cells[self._files]:
            try:
                whole.update(f"{path}\0{digest(self.file(str(path)))}\n".encode())
            except DataError as error:  # such as a link that leads outside: its row is refused, and never read
                whole.update(f"{path}\0{error}\n".encode())
        return whole.hexdigest()

    def _around(self) -> Path:
        return self.bounds

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Stream the paths and labels; the files are opened by whoever needs them."""
        for start in range(0, len(self._cells[self._files]), ROWS):
            yield Chunk(start + 1, {c: list(self._cells[c][start : start + ROWS]) for c in columns})


def walk(root: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".")]
        for file in files:
            if not file.startswith(".") and file.lower().endswith(PICTURES + MUSIC):
                yield folder, file
