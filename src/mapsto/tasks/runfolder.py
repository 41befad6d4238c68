"""The folder of a run: made exclusively and whole, used by one process at a time, resumed only as what it was."""

import contextlib
import datetime
import errno
import glob
import json
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mapsto import disk, document
from mapsto.data.fault import plain
from mapsto.errors import ConfigError, ModelFileError
from mapsto.tasks.config import Config, read_config, write_config

try:
    import fcntl
except ImportError:  # without it (Windows) nothing keeps two processes out of one folder
    fcntl = None  # type: ignore[assignment]

__all__ = ["RunFolder", "default_name"]

STALE = 60.0  # seconds
LEFT = re.compile(r"\.(?:result\.json|model)\.[0-9]+")

EXACT = {  # what two runs must share to give the same bits, and how to call it
    "versions.torch": "torch",
    "versions.numpy": "numpy",
    "versions.mapsto": "mapsto",
    "threads": "threads",
    "capability": "CPU capability",
    "processor": "processor",
    "device": "device",
    "processes": "processes",
    "process.products": "matrix products",
}


def default_name(source: str) -> str:
    """The run's name from the data's: ``data/reviews.csv`` is ``reviews``."""
    text = source.removeprefix("demo:").rstrip("/")
    stem = Path(text).name.split(".")[0] if text else "run"
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "run"


class RunFolder:
    """A run folder that this process holds the lock of, until :meth:`close`.

    Attributes:
        path: where it is.
        config: every setting.
        environment: what ``environment.json`` says: versions, threads, the run's id, the data's hashes.
    """

    def __init__(self, path: Path, config: Config, environment: dict[str, Any], lock: int):
        self.path, self.config, self.environment, self._lock = path, config, environment, lock

    @classmethod
    def new(cls, path: Path, config: Config, environment: dict[str, Any]) -> "RunFolder":
        """Make NAME, or NAME-2, NAME-3 and so on: with its config and environment in it, or not at all.

        Raises:
            ResourceError: the disk is full or cannot be written.
        """
        environment = {**environment, "run": secrets.token_hex(8), "config": config.model_dump()}
        aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep(path)
            disk.make(aside)
            lock = locked(aside)
            files = {"config.yaml": write_config(config).encode(), "environment.json": document.dump(environment)}
            for name, data in files.items():
                disk.write(aside / name, data)
                disk.sync(aside / name)
            disk.sync(aside)
            for number in range(1, 10_000):
                found = path if number == 1 else path.with_name(f"{path.name}-{number}")
                if not os.path.lexists(found) and moved(aside, found):
                    disk.sync(found.parent)
                    return cls(found, config, environment, lock)
        except OSError as error:
            raise disk.full(path, error) from None
        finally:
            if aside.exists():
                with contextlib.suppress(OSError):
                    disk.remove(aside)
        raise ConfigError(f"{path} and 9,999 more exist already.   Choose another name with --run")

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Take a run up again.

        Raises:
            ConfigError: there is none, or another process is at work in it; or its settings were changed.
            ModelFileError: its files are damaged.
            ResourceError: it cannot be written.
        """
        if not (path / "config.yaml").is_file():
            there = sorted(p.name for p in path.parent.iterdir() if p.is_dir()) if path.parent.is_dir() else []
            raise ConfigError(f"there is no run {path} to resume.   Runs: {', '.join(there) or 'none'}")
        try:
            lock = locked(path)
        except OSError as error:
            raise disk.full(path, error) from None
        try:
            config = read_config(path / "config.yaml")
            environment = disk.read_json(path / "environment.json")
            if not isinstance(environment, dict) or not isinstance(environment.get("run"), str):
                raise ModelFileError(f"{path / 'environment.json'} is of another version of mapsto")
            changed = list(differences(environment.get("config", {}), config.model_dump()))
            if changed:
                raise ConfigError(
                    f"{path / 'config.yaml'} was changed since the run began: {told(changed)}.   "
                    f"Change it back, or start anew with mapsto train {path / 'config.yaml'}"
                )
            for left in path.iterdir():  # of writes that were killed
                if LEFT.fullmatch(left.name):
                    disk.remove(left)
        except OSError as error:
            os.close(lock)
            raise disk.full(path, error) from None
        except BaseException:
            os.close(lock)
            raise
        return cls(path, config, environment, lock)

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "result.json").is_file()

    def check_data(self, facts: Mapping[str, Any]) -> None:
        """Refuse to go on with other data.

        Raises:
            ConfigError: says what differs.
        """
        changed = list(differences(self.environment.get("data", {}), facts))
        if changed:
            raise ConfigError(
                f"the data have changed since {self.path} began: {told(changed)}.   "
                f"Restore them, or start anew with mapsto train {self.path / 'config.yaml'}"
            )

    def inexact(self, now: Mapping[str, Any]) -> list[str]:
        """What is not as it was, so that the bits may differ from those of an uninterrupted run."""
        found = []
        for key, name in EXACT.items():
            was, here = reach(self.environment, key), reach(now, key)
            if was != here:
                found.append(f"{name} {was}, here {here}")
        return found

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._lock)


def reach(content: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        content = content.get(part, {}) if isinstance(content, Mapping) else {}
    return content if content != {} else None


def differences(was: Any, now: Any, key: str = "") -> Iterator[str]:
    """Each value that differs, as ``key: was -> now``."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*was, *now]):
            yield from differences(was.get(name), now.get(name), f"{key}.{name}" if key else str(name))
    elif was != now:
        yield f"{key}: {short(was)} -> {short(now)}"


def told(changed: list[str]) -> str:
    more = f"; and {len(changed) - 6} more" if len(changed) > 6 else ""
    return plain("; ".join(changed[:6])) + more


def short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:17] + "..."


def moved(aside: Path, path: Path) -> bool:
    try:
        disk.move(aside, path)
    except OSError:
        if not os.path.lexists(path):
            raise
        return False  # another process was quicker
    return True


def sweep(path: Path) -> None:
    """Remove what was left where a run of this name was being made and the process was killed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.????????"):
        with contextlib.suppress(OSError, ConfigError):
            if time.time() - left.stat().st_mtime > STALE:
                os.close(locked(left))  # nobody is at work in it
                disk.remove(left)


def locked(folder: Path) -> int:
    """A lock on a folder; the system lets go of it when this process ends, however it ends."""
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | disk.NOT_FOLLOWED, 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "a pipe or device")
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC):
            raise
        raise ConfigError(f"{folder / '.lock'} cannot be locked ({error.strerror or error}).   Remove it") from None
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.read(handle, 500).decode("utf-8", "replace").strip()
        os.close(handle)
        raise ConfigError(f"{folder} is in use by {owner or 'another process'}.   Wait for it, or stop it") from None
    now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} of {platform.node()} since {now}\n".encode(), 0)
    return handle
