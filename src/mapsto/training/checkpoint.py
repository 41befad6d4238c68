"""Checkpoints: ``step-N/{weights,optim}.safetensors, state.json, manifest.json``, made aside and renamed whole."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mapsto.errors import ModelFileError

__all__ = ["Checkpoints", "digest", "read_tensors", "write_json", "write_tensors"]


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, content: Any) -> None:
    """Write aside, sync, rename: the file is the old or the new one, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, ensure_ascii=False, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    _sync(path.parent)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write safetensors aside, sync, rename."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, aside)
    _sync(aside)
    os.replace(aside, path)
    _sync(path.parent)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read safetensors.

    Raises:
        ModelFileError: missing or damaged.
    """
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ModelFileError(f"{path} is missing") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{path} is damaged: {error}") from None


class Checkpoints:
    """The checkpoints of one run.

    A folder counts only if its manifest, written last, fits its files. The newest and the best are kept.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def save(
        self, step: int, weights: dict[str, Tensor], optim: dict[str, Tensor], state: dict[str, Any], *, keep: set[int]
    ) -> Path:
        """Save one step, then prune all steps but this one and ``keep``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        target = self.folder / f"step-{step:06d}"
        aside = self.folder / f".step-{step:06d}.{os.getpid()}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        write_tensors(aside / "weights.safetensors", weights)
        write_tensors(aside / "optim.safetensors", optim)
        write_json(aside / "state.json", state)
        files = {f.name: {"bytes": f.stat().st_size, "sha256": digest(f)} for f in sorted(aside.iterdir())}
        write_json(aside / "manifest.json", {"format": 1, "step": step, "files": files})
        if target.exists():
            shutil.rmtree(target)
        os.rename(aside, target)
        _sync(self.folder)
        for other in self.steps():
            if other != step and other not in keep:
                shutil.rmtree(self.folder / f"step-{other:06d}")
        return target

    def steps(self) -> list[int]:
        """The steps there are folders of, ascending."""
        if not self.folder.is_dir():
            return []
        names = (p.name for p in self.folder.iterdir())
        return sorted(int(n[5:]) for n in names if n.startswith("step-") and n[5:].isdigit())

    def verify(self, step: int) -> None:
        """Check a folder against its manifest.

        Raises:
            ModelFileError: names the file that does not fit.
        """
        folder = self.folder / f"step-{step:06d}"
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            files = manifest["files"]
            assert set(files) == {"weights.safetensors", "optim.safetensors", "state.json"}
        except (OSError, ValueError, KeyError, AssertionError, TypeError):
            raise ModelFileError(f"{folder / 'manifest.json'} is missing or damaged") from None
        for name, known in files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != known["bytes"] or digest(path) != known["sha256"]:
                raise ModelFileError(f"{path}: checksum mismatch")

    def newest(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]] | None:
        """The newest checkpoint that verifies, as (weights, optim, state); None if there is none."""
        for step in reversed(self.steps()):
            try:
                self.verify(step)
            except ModelFileError:
                continue
            folder = self.folder / f"step-{step:06d}"
            state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            return read_tensors(folder / "weights.safetensors"), read_tensors(folder / "optim.safetensors"), state
        return None

    def weights(self, step: int) -> dict[str, Tensor]:
        """The weights of one step, verified."""
        self.verify(step)
        return read_tensors(self.folder / f"step-{step:06d}" / "weights.safetensors")
