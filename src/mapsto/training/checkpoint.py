"""Checkpoints: ``step-N/{weights,optim}.safetensors, state.json, manifest.json``, made aside and renamed whole."""

import contextlib
import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mapsto import disk, document, manifest
from mapsto.errors import ModelFileError

__all__ = ["Checkpoint", "Checkpoints"]

FILES = ["weights.safetensors", "optim.safetensors", "state.json"]
KEPT = 2  # the newest, and the one before for the day that the newest is damaged


@dataclass(frozen=True)
class Checkpoint:
    """All that a run is at one step."""

    step: int
    weights: dict[str, Tensor]
    optim: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run; only one process may write them.

    A folder counts only if its manifest, written last, fits its files and names this run.

    Args:
        folder: where they are; made when the first one is saved.
        facts: what the manifests say beside: ``"run"`` tells this run's checkpoints from another's.
    """

    def __init__(self, folder: Path, facts: dict[str, Any] | None = None):
        self.folder, self.facts = folder, {"run": "", **(facts or {})}
        self.bad: dict[int, str] = {}

    def path(self, step: int) -> Path:
        """The folder of a step."""
        return self.folder / f"step-{step:06d}"

    def save(self, step: int, weights: dict[str, Tensor], optim: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Save a step, and then remove all but this and the one before.

        Raises:
            ResourceError: the disk is full or cannot be written; what was saved before is still there.
        """
        target, aside = self.path(step), self.folder / f".step-{step:06d}.{os.getpid()}"
        needed = sum(t.nbytes for part in (weights, optim) for t in part.values()) + (1 << 16)
        try:
            if not self.folder.is_dir():
                disk.make(self.folder)
                disk.sync(self.folder.parent)
            if shutil.disk_usage(self.folder).free < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            disk.make(aside)
            disk.write_tensors(aside / FILES[0], weights)
            disk.write_tensors(aside / FILES[1], optim)
            disk.write(aside / FILES[2], document.dump(state))
            manifest.seal(aside, {**self.facts, "step": step}, FILES)
            disk.remove(target)  # there only if it did not verify
            disk.move(aside, target)
            disk.sync(self.folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                disk.remove(aside)
            raise disk.full(target, error, needed) from None
        self.bad.pop(step, None)
        with contextlib.suppress(OSError):  # what is left too much does no harm
            self._prune(step)

    def _prune(self, newest: int) -> None:
        good = [s for s in self.steps() if s < newest and s not in self.bad]
        for step in self.steps():
            if step != newest and step not in good[1 - KEPT :] and not self._foreign(step):
                disk.remove(self.path(step))

    def _foreign(self, step: int) -> bool:
        try:
            found = disk.read_json(self.path(step) / manifest.MANIFEST)
        except ModelFileError:
            return False
        return isinstance(found, dict) and found.get("run") != self.facts["run"]

    def sweep(self) -> None:
        """Remove what a save that was killed left; nobody else may be writing."""
        for left in self.folder.glob(".step-*"):
            disk.remove(left)

    def steps(self) -> list[int]:
        """The steps there are folders of, ascending.

        Raises:
            ModelFileError: the folder of checkpoints is a link.
        """
        if self.folder.is_symlink():
            raise ModelFileError(f"{self.folder} is a link, and is not read")
        if not self.folder.is_dir():
            return []
        names = (p.name for p in self.folder.iterdir())
        return sorted(int(n[5:]) for n in names if n.startswith("step-") and n[5:].isascii() and n[5:].isdigit())

    def verify(self, step: int) -> None:
        """Check a folder against its manifest, and that it is of this run.

        Raises:
            ModelFileError: names the file that does not fit.
        """
        path = self.path(step)
        found = manifest.verify(path)
        if sorted(found["files"]) != sorted(FILES) or found.get("step") != step:
            raise ModelFileError(f"{path / manifest.MANIFEST} is of no checkpoint of step {step}")
        if found.get("run") != self.facts["run"]:
            raise ModelFileError(f"{path} is of another run")

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; None if there are none.

        The newer ones that do not verify are in :attr:`bad`, with the reason.

        Raises:
            ModelFileError: there are checkpoints, and none verifies.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                self.verify(step)
                path = self.path(step)
                state = disk.read_json(path / FILES[2])
                if not isinstance(state, dict):
                    raise ModelFileError(f"{path / FILES[2]} is of another version of mapsto")
                return Checkpoint(step, disk.read_tensors(path / FILES[0]), disk.read_tensors(path / FILES[1]), state)
            except ModelFileError as error:
                self.bad[step] = str(error)
        if steps:
            raise ModelFileError(f"no checkpoint in {self.folder} can be used: {self.bad[steps[-1]]}")
        return None
