"""Law Q where the power goes: what may be left on the disk after any file operation of a run resumes to the same bits.

    python benchmarks/power.py [--share 0.2] [--tasks text,series,picture,tags]

The file operations of a whole run are written down with what they leave. After each of them the disk may hold, of what was
not synced, nothing, all names but no data, all data but no names, or any part; the run goes on from every such state.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import kills
from mapsto import disk


class Inode:
    """A file or folder as the system holds it, and as it is on the disk."""

    def __init__(self, names: dict[str, "Inode"] | None = None):
        self.data, self.kept = b"", b""
        self.names, self.kept_names = names, None if names is None else dict(names)


class Disk:
    """Which files there are after some operations, and which of them a power loss may leave.

    The content of a file is on the disk when the file was synced after it was written, a name when its folder was
    synced after it was given. Everything else may be there or not, each on its own.
    """

    def __init__(self, root: Path):
        self.root, self.top = root, Inode({})

    def find(self, path: Path) -> Inode:
        """The inode at a path."""
        node = self.top
        for part in path.relative_to(self.root).parts:
            assert node.names is not None
            node = node.names[part]
        return node

    def apply(self, name: str, path: Path, other: Path | None, data: bytes) -> None:
        """One operation that was done."""
        if name == "sync":
            node = self.find(path)
            node.kept = node.data
            node.kept_names = None if node.names is None else dict(node.names)
            return
        parent = self.find(path.parent).names
        assert parent is not None
        if name in ("write", "write_tensors", "append", "truncate"):
            node = parent.setdefault(path.name, Inode())
            node.data = data
        elif name == "make":
            parent[path.name] = Inode({})
        elif name == "move" and other is not None:
            names = self.find(other.parent).names
            assert names is not None
            names[other.name] = parent.pop(path.name)
        elif name == "remove":
            parent.pop(path.name, None)

    def leave(self, target: Path, survives: Callable[[str], bool]) -> None:
        """Write out a state that a power loss may leave.

        Args:
            target: an empty folder.
            survives: asked for "name" and "data" whether what was not synced is there.
        """
        self._leave(self.top, target, survives)

    def _leave(self, node: Inode, path: Path, survives: Callable[[str], bool]) -> None:
        if node.names is None or node.kept_names is None:
            data = node.data if node.kept == node.data or survives("data") else node.kept
            path.write_bytes(data)
            return
        path.mkdir(exist_ok=True)
        for name in sorted({*node.names, *node.kept_names}):
            now, kept = node.names.get(name), node.kept_names.get(name)
            found = now if now is kept or survives("name") else kept
            if found is not None:
                self._leave(found, path / name, survives)


def recorded(log: Path) -> kills.Twin:
    """Write down every file operation with what it left."""
    log.mkdir()
    number = [0]

    def after(name: str, arguments: tuple[Any, ...]) -> None:
        number[0] += 1
        path = Path(arguments[0])
        data = path.read_bytes() if name in ("write", "write_tensors", "append", "truncate") else b""
        (log / f"{number[0]:05}.data").write_bytes(data)
        other = str(arguments[1]) if name == "move" else ""
        (log / f"{number[0]:05}.json").write_text(json.dumps([name, str(path), other]))

    return lambda: kills.tapped(lambda name, arguments: None, after)


def survivals(source: random.Random) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Nothing that was not synced; only names; only data; everything; and by chance."""
    yield "nothing", lambda what: False
    yield "names", lambda what: what == "name"
    yield "data", lambda what: what == "data"
    for i in range(2):
        yield f"chance {i}", lambda what: source.random() < 0.5


def power_losses(
    bench: kills.Bench, source: random.Random, share: float = 1.0, twin: kills.Twin | None = None
) -> kills.Count:
    """Resume from what a power loss may leave after each operation of a run."""
    count = kills.Count()
    wanted = bench.reference()
    log = bench.folder.with_name(f"{bench.folder.name}-log")
    record = recorded(log)

    def both() -> None:
        record()
        if twin is not None:
            twin()

    assert bench.whole("run", both) == 0, bench.error("run")
    shutil.rmtree(bench.folder / "run")
    there = Disk(bench.folder)
    for entry in sorted(log.glob("*.json")):
        name, path, other = json.loads(entry.read_text())
        there.apply(name, Path(path), Path(other) if other else None, entry.with_suffix(".data").read_bytes())
        for title, survives in survivals(source):
            if source.random() >= share:
                continue
            for left in bench.folder.iterdir():
                if left.name not in ("reference", "operations"):
                    disk.remove(left)
            there.leave(bench.folder, survives)
            count.kills += 1
            code = bench.whole("run")
            count.judge(
                bench, "run", wanted, f"after operation {entry.stem} ({name} {Path(path).name}), {title}: {code}"
            )
    return count


def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="try so large a share of the states")
    parser.add_argument("--tasks", default="text,series,picture,tags", help="which")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    broken, source = 0, random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        for name in arguments.tasks.split(","):
            began, folder = time.perf_counter(), Path(place, name)
            folder.mkdir()
            count = power_losses(kills.Bench(kills.tasks()[name], folder, kills.SHORT), source, arguments.share)
            broken += kills.report(f"power lost, {name}", count, time.perf_counter() - began)
    print("law Q holds" if not broken else f"law Q is broken in {broken} runs")
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
