"""Append-only files of a run, whose length on the disk is known at every checkpoint."""

import os
import stat
from pathlib import Path

from mapsto import disk
from mapsto.errors import ModelFileError

__all__ = ["Journal"]


class Journal:
    """A file that lines are added to. What cannot be written (a full disk) is kept, and written when it can be.

    Args:
        path: the file; None keeps nothing.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.waiting = b""

    def add(self, line: str) -> None:
        """One more line."""
        if self.path is not None:
            self.waiting += line.encode("utf-8", "backslashreplace") + b"\n"
            self.flush()

    def flush(self) -> OSError | None:
        """Write what waits; gives what stopped it."""
        if self.path is not None and self.waiting:
            try:
                disk.append(self.path, self.waiting)
            except OSError as error:
                return error
            self.waiting = b""
        return None

    def settle(self) -> int:
        """Put everything on the disk; gives its length in bytes.

        Raises:
            ResourceError: it cannot be written.
        """
        if self.path is None:
            return 0
        try:
            if error := self.flush():
                raise error
            if not self.path.exists():
                return 0
            disk.sync(self.path)
            disk.sync(self.path.parent)
            return self.path.stat().st_size
        except OSError as error:
            raise disk.full(self.path, error, len(self.waiting)) from None

    def _plain(self) -> int:
        if self.path is None or not os.path.lexists(self.path):
            return 0
        found = os.lstat(self.path)
        if not stat.S_ISREG(found.st_mode):
            raise ModelFileError(f"{self.path} is a link or no plain file, and is not written")
        return found.st_size

    def cut(self, size: int) -> int:
        """Forget what was added after a checkpoint; gives the bytes that the checkpoint knew and that are not there.

        Raises:
            ModelFileError: a link or no plain file stands there.
        """
        self.waiting = b""
        found = self._plain()
        if self.path is not None and found > size:
            disk.truncate(self.path, size)
            disk.sync(self.path)
        return max(0, size - found)
