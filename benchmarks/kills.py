"""Law Q: runs that are killed and resumed give the bits of runs that are not.

    python benchmarks/kills.py --kills 2000          kills at random moments, over tasks, workers and precisions
    python benchmarks/kills.py --operations          SIGKILL, a torn write, ENOSPC and EIO at every file operation of a run
    python benchmarks/kills.py --power               what a power loss may leave after every file operation

Each run is real: ``mapsto.tasks.train.train`` in a forked process, from preparing the data to the last line of the log.
What must be equal at the end: the files of the model but its card, ``metrics.jsonl``, ``log.txt`` and
``bad-batches.jsonl``, with the numbers of clocks left out. With ``--seed N`` another order of everything random.
"""

import argparse
import contextlib
import errno
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from mapsto import disk
from mapsto.errors import MapstoError
from mapsto.tasks.config import Config, override
from mapsto.tasks.train import train

SETTINGS = {
    "model.dim": 8,
    "model.depth": 1,
    "model.heads": 2,
    "model.dropout": 0.2,
    "train.steps": 24,
    "train.evaluate_every": 6,
    "train.save_every": 2,
    "train.accumulate": 2,
    "train.batch_tokens": 64,
    "train.average": 0.9,
    "threads": 1,
}
SHORT = {"train.steps": 6, "train.evaluate_every": 3, "train.save_every": 2}  # one try of each operation takes a run
Twin = Callable[[], None]


@dataclass(frozen=True)
class Task:
    """Rows to learn from, and what of them."""

    rows: list[dict[str, Any]]
    inputs: list[str]
    targets: list[str]
    settings: dict[str, Any] = field(default_factory=dict)

    def config(self, **more: Any) -> Config:
        """All settings."""
        config = override(Config(), [f"{k}={json.dumps(v)}" for k, v in (SETTINGS | self.settings | more).items()])
        config.data.inputs, config.data.targets = self.inputs, self.targets
        return config


def tasks() -> dict[str, Task]:
    """Four kinds of map over few rows."""
    draw = np.random.default_rng(0)
    words = ["slow", "lovely", "film", "plot", "dull", "bright", "a", "the"]
    texts = [" ".join(draw.choice(words, draw.integers(2, 9))) for _ in range(60)]
    waves = [np.sin(np.arange(draw.integers(4, 12)) * (1 + i % 2)) + draw.normal(0, 0.1) for i in range(60)]
    pictures = [draw.integers(0, 120, (8, 8)) + 100 * (i % 2) for i in range(60)]
    return {
        "text": Task([{"x": t, "y": "good" if "lovely" in t else "bad"} for t in texts], ["x"], ["y:label"]),
        "series": Task(
            [{"x": w.tolist(), "y": float(w.mean())} for w in waves],
            ["x:series"],
            ["y:number"],
            {"model.sigma": "datum"},
        ),
        "picture": Task(
            [{"x": p.astype(np.uint8), "y": f"{i % 2}"} for i, p in enumerate(pictures)],
            ["x:image"],
            ["y:label"],
            {"input.flip": True, "input.shift": 1},
        ),
        "tags": Task(
            [
                {"x": list(t.replace(" ", "")), "y": ["v" if c in "aeiou" else "c" for c in t.replace(" ", "")]}
                for t in texts
            ],
            ["x:sequence"],
            ["y:items"],
            {"train.patience": 1, "train.lr": 0.3},
        ),
    }


@dataclass
class Bench:
    """A place to run one task in, again and again.

    Attributes:
        task: what is trained.
        folder: where the runs are.
        more: further settings.
    """

    task: Task
    folder: Path
    more: dict[str, Any] = field(default_factory=dict)

    def attempt(self, name: str, twin: Twin | None = None) -> int:
        """Fork, and start or resume a run in the child; gives its process number."""
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch: the child uses none of them
            child = os.fork()
        if child:
            return child
        code = 70
        try:
            torch.set_num_threads(1)
            if twin is not None:
                twin()
            path = self.folder / name
            train(
                self.task.config(**self.more),
                self.task.rows,
                name=name,
                resume=path.exists(),
                root=self.folder,
                console=Console(quiet=True),
            )
            code = 0
        except MapstoError as error:
            code = error.code
            (self.folder / f"{name}.error").write_text(str(error))
        except BaseException as error:  # whatever it is, the parent must hear of it
            (self.folder / f"{name}.error").write_text(f"{type(error).__name__}: {error}")
        finally:
            os._exit(code)

    def whole(self, name: str, twin: Twin | None = None) -> int:
        """One attempt to its end; its exit code, or minus the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.attempt(name, twin), 0)[1])

    def reference(self) -> dict[str, str]:
        """The outcome of a run that is left alone."""
        assert self.whole("reference") == 0, self.error("reference")
        return outcome(self.folder / "reference")

    def error(self, name: str) -> str:
        """What the last attempt that failed said."""
        path = self.folder / f"{name}.error"
        return path.read_text() if path.exists() else ""


def outcome(run: Path) -> dict[str, str]:
    """All that a finished run promises, by file, clocks left out."""
    found = {}
    for path in sorted((run / "model").glob("*")):
        if path.name != "README.md":
            found[f"model/{path.name}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    for name in ("metrics.jsonl", "bad-batches.jsonl"):
        if (run / name).exists():
            lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
            found[name] = json.dumps([{k: v for k, v in r.items() if k not in CLOCKS} for r in lines])
    log = (run / "log.txt").read_text() if (run / "log.txt").exists() else ""
    found["log.txt"] = re.sub(r"( *\d+\.\d +)?\b(\d+:)?\d+:\d\d\b", " TIME", log).replace(str(run), "RUN")
    result = json.loads((run / "result.json").read_text())
    found["result.json"] = json.dumps({k: v for k, v in result.items() if k not in ("run", "seconds")})
    return found


CLOCKS = ("seconds", "steps_per_second")


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """The files in which two outcomes differ."""
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]


@dataclass
class Count:
    """What came of it."""

    kills: int = 0
    runs: int = 0
    lost: int = 0
    different: int = 0
    notes: list[str] = field(default_factory=list)

    def judge(self, bench: Bench, name: str, wanted: dict[str, str], what: str) -> None:
        """Compare one run that has ended with the one that was left alone."""
        self.runs += 1
        run = bench.folder / name
        if not (run / "result.json").exists():
            self.lost += 1
            self.notes.append(f"{what}: lost ({bench.error(name)})")
            return
        found = outcome(run)
        if files := differing(found, wanted):
            self.different += 1
            lines = [(found.get(files[0], "").split("\n"), wanted.get(files[0], "").split("\n"))]
            first = next(((a, b) for one, other in lines for a, b in zip_longest(one, other) if a != b), "")
            self.notes.append(f"{what}: {', '.join(files)} differ: {first}")

    @property
    def broken(self) -> int:
        """How many runs broke the law."""
        return self.lost + self.different


def random_kills(bench: Bench, kills: int, source: random.Random, twin: Twin | None = None) -> Count:
    """Kill and resume until there were so many kills; one in eight is a signal that a run may answer."""
    count = Count()
    began = time.perf_counter()
    wanted = bench.reference()
    usual = time.perf_counter() - began
    while count.kills < kills:
        name = f"run-{count.runs}"
        for attempt in range(200):
            child = bench.attempt(name, twin)
            kind = source.choice([signal.SIGKILL] * 7 + [signal.SIGTERM])
            if attempt < 60:  # then it is left alone
                time.sleep(usual * 0.7 * source.random())
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, kind)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            count.kills += code in (-signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM)
            if code not in (0, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGTERM):
                break
            if code == 0:
                break
        count.judge(bench, name, wanted, f"run {count.runs}")
        shutil.rmtree(bench.folder / name, ignore_errors=True)
    return count


# Every file operation: mapsto.disk is the only way that a run folder is written


OPERATIONS = ("write", "write_tensors", "append", "truncate", "sync", "make", "move", "remove")


def tapped(before: Callable[[str, tuple[Any, ...]], None], after: Callable[[str, tuple[Any, ...]], None]) -> None:
    """Call something around every file operation from now on, in this process."""
    for name in OPERATIONS:
        inner = getattr(disk, name)

        def outer(*arguments: Any, name: str = name, inner: Any = inner) -> Any:
            before(name, arguments)
            found = inner(*arguments)
            after(name, arguments)
            return found

        setattr(disk, name, outer)


def at_operation(number: int, act: str) -> Twin:
    """Do something bad at the N-th file operation: kill before it, kill in the middle of it, or let it fail."""
    seen = [0]

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        seen[0] += 1
        if seen[0] != number and not (act == "full" and seen[0] > number):
            return
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if act in ("ENOSPC", "EIO") or (act == "full" and name in ("write", "write_tensors", "append", "make")):
            code = errno.EIO if act == "EIO" else errno.ENOSPC
            raise OSError(code, os.strerror(code), str(arguments[0]))

    def after(name: str, arguments: tuple[Any, ...]) -> None:
        if seen[0] == number and act == "torn":
            path = Path(arguments[0])
            if name in ("write", "write_tensors", "append"):
                written = len(arguments[1]) if name == "append" else path.stat().st_size
                os.truncate(path, path.stat().st_size - (written + 1) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: tapped(before, after)


def count_operations(bench: Bench) -> int:
    """How many file operations a whole run makes."""
    log = bench.folder / "operations"

    def note() -> None:
        def before(name: str, arguments: tuple[Any, ...]) -> None:
            with log.open("a") as file:
                file.write(f"{name}\n")

        tapped(before, lambda name, arguments: None)

    assert bench.whole("counted", note) == 0, bench.error("counted")
    return len(log.read_text().splitlines())


ACTS = ("kill", "torn", "ENOSPC", "EIO", "full")


def fail_at(
    bench: Bench, number: int, act: str, wanted: dict[str, str], count: Count, twin: Twin | None = None
) -> None:
    """One way to fail at one file operation of a run; then it goes on undisturbed."""
    name = f"{act}-{number}"

    def disturbed() -> None:
        if twin is not None:
            twin()
        at_operation(number, act)()

    code = bench.whole(name, disturbed)
    count.kills += 1
    said = bench.error(name)
    if code not in (0, -signal.SIGKILL, 5) or (code == 5 and not re.search(r"cannot be (written|used)", said)):
        count.notes.append(f"{name}: exit code {code}: {said}")
        count.lost += 1
    for _ in range(3):
        if (bench.folder / name / "result.json").exists() or bench.whole(name, twin) == 0:
            break
    count.judge(bench, name, wanted, name)
    shutil.rmtree(bench.folder / name, ignore_errors=True)


def every_operation(bench: Bench, source: random.Random, share: float = 1.0) -> Count:
    """Each way to fail at each file operation of a run."""
    count = Count()
    wanted = bench.reference()
    for number in range(1, count_operations(bench) + 1):
        for act in ACTS:
            if source.random() < share:
                fail_at(bench, number, act, wanted, count)
    return count


# Power loss


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


def recorded(log: Path) -> Twin:
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

    return lambda: tapped(lambda name, arguments: None, after)


def survivals(source: random.Random) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Nothing that was not synced; only names; only data; everything; and by chance."""
    yield "nothing", lambda what: False
    yield "names", lambda what: what == "name"
    yield "data", lambda what: what == "data"
    for i in range(2):
        yield f"chance {i}", lambda what: source.random() < 0.5


def power_losses(bench: Bench, source: random.Random, share: float = 1.0, twin: Twin | None = None) -> Count:
    """Resume from what a power loss may leave after each operation of a run."""
    count = Count()
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


def report(title: str, count: Count, seconds: float) -> int:
    """A line for people; gives how many runs broke the law."""
    print(
        f"{title:<44} {count.kills:>6} faults {count.runs:>6} runs   lost {count.lost}   not bit-identical "
        f"{count.different}   {seconds:.0f} s",
        flush=True,
    )
    for note in count.notes[:5]:
        print(f"    {note}", flush=True)
    return count.broken


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0, help="random kills, spread over all tasks and settings")
    parser.add_argument("--operations", action="store_true", help="every file operation")
    parser.add_argument("--power", action="store_true", help="every state a power loss may leave")
    parser.add_argument("--share", type=float, default=1.0, help="try so large a share of the operations")
    parser.add_argument("--tasks", default="text,series,picture,tags", help="which")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    broken, known = 0, tasks()
    names = arguments.tasks.split(",")
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        source = random.Random(arguments.seed)

        def bench(name: str, title: str, **more: Any) -> Bench:
            folder = Path(place, title.replace(" ", "-"))
            folder.mkdir()
            return Bench(known[name], folder, more)

        kinds = [(n, w, p) for n in names for w in (0, 2) for p in ("float32", "bfloat16")]
        for name, workers, precision in kinds if arguments.kills else ():
            title = f"kills {name}, {workers} workers, {precision}"
            began = time.perf_counter()
            one = bench(name, title, **{"train.workers": workers, "train.precision": precision})
            count = random_kills(one, -(-arguments.kills // len(kinds)), source)
            broken += report(title, count, time.perf_counter() - began)
        for title, work in (("operations", every_operation), ("power", power_losses)):
            for name in names if getattr(arguments, title) else ():
                began = time.perf_counter()
                count = work(bench(name, f"{title} {name}", **SHORT), source, arguments.share)
                broken += report(f"{title} {name}", count, time.perf_counter() - began)
    print("law Q holds" if not broken else f"law Q is broken in {broken} runs")
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
