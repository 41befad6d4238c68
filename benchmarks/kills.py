"""Law Q: runs that are killed and resumed give the bits of runs that are not.

    python benchmarks/kills.py --kills 2000          kills at random moments, over tasks, workers and precisions
    python benchmarks/kills.py --operations          SIGKILL, a torn write, ENOSPC and EIO at every file operation of a run

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
from collections.abc import Callable
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
    """Kinds of map over few rows, and a language model."""
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
        "pairs": Task(
            [{"x": t, "y": t[::-1][:6]} for t in texts],
            ["x"],
            ["y:sequence"],
            {"output.beam": 2, "train.smoothing": 0.1},
        ),
        "novel": Task([{"y": t} for t in texts], ["nothing"], ["y"], {"output.limit": 7, "output.vocabulary": "bytes"}),
    }


def fork() -> int:
    """Fork; the child must not use what threads of torch the parent may have."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, about those threads
        return os.fork()


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
        child = fork()
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
        for name in names if arguments.operations else ():
            began = time.perf_counter()
            count = every_operation(bench(name, f"operations {name}", **SHORT), source, arguments.share)
            broken += report(f"operations {name}", count, time.perf_counter() - began)
    print("law Q holds" if not broken else f"law Q is broken in {broken} runs")
    return min(broken, 1)


if __name__ == "__main__":
    sys.exit(main())
