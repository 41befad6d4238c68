"""Law Q: a damaged file of a checkpoint or a model is found, named, and never used.

    python benchmarks/flips.py --count 5000

Flipped bits, changed, inserted, removed and appended bytes, truncated, emptied, missing and swapped files, in every file
of the newest checkpoint of a real run: the one before must be given, and the file that was damaged named. And in every
sealed file of its model: loading it must name the file. With ``--seed N`` another order of everything random.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console

from mapsto import disk
from mapsto.errors import ModelFileError
from mapsto.tasks.build import load_model
from mapsto.tasks.config import Config, override
from mapsto.tasks.train import train
from mapsto.training.checkpoint import FILES, Checkpoints

SETTINGS = ["model.dim=8", "model.depth=1", "model.heads=2", "train.steps=6", "train.save_every=2", "threads=1"]


def make_run(root: Path) -> Path:
    """A real run with two checkpoints, on texts, so that the model has a file of its vocabulary."""
    words = ["slow", "lovely", "film", "plot", "dull", "bright"]
    rows = [{"x": " ".join(words[(i * k) % 6] for k in range(1, 6)), "y": "ab"[i % 2]} for i in range(60)]
    config = override(Config(), SETTINGS)
    config.data.inputs, config.data.targets = ["x"], ["y:label"]
    return train(config, rows, name="flips", root=root, console=Console(quiet=True))[0].folder


Damage = Callable[[bytes, random.Random], bytes | None]
"""A file's bytes to others, or to None for a file that is gone."""


def _bit(data: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << source.randrange(8))]) + data[at + 1 :]


def _byte(data: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(data))
    return data[:at] + bytes([(data[at] + source.randrange(1, 256)) % 256]) + data[at + 1 :]


def _several(data: bytes, source: random.Random) -> bytes:
    for _ in range(source.randrange(2, 9)):
        data = _bit(data, source)
    return data


def _more(data: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(data) + 1)
    return data[:at] + source.randbytes(source.choice([1, 2, 8, 64])) + data[at:]


def _less(data: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(data))
    return data[:at] + data[at + source.choice([1, 2, 8, 64]) :]


DAMAGES: dict[str, Damage] = {
    "a flipped bit": _bit,
    "a changed byte": _byte,
    "several flipped bits": _several,
    "bytes put in": _more,
    "bytes taken out": _less,
    "cut off": lambda data, source: data[: source.randrange(len(data))],
    "bytes appended": lambda data, source: data + source.randbytes(source.choice([1, 8, 4096])),
    "zeros appended": lambda data, source: data + bytes(source.choice([1, 8, 4096])),
    "zeros for its end": lambda data, source: (k := source.randrange(1, len(data) + 1), data[:-k] + bytes(k))[1],
    "empty": lambda data, source: b"",
    "gone": lambda data, source: None,
}
WEIGHTS = [12, 6, 2, 2, 2, 4, 2, 2, 2, 1, 1]


@dataclass
class Count:
    """What came of it."""

    tried: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def judge(self, what: str, file: str, wrong: str) -> None:
        """One damage; ``wrong`` says what was not as it must be."""
        self.tried[what] += 1
        if wrong:
            self.missed.append(f"{what} in {file}: {wrong}")


def damaged(path: Path, source: random.Random, others: list[Path]) -> tuple[str, dict[Path, bytes], list[Path]]:
    """Damage a file, or swap it with another; gives what was done, how to undo it, and the files that may be named."""
    data = path.read_bytes()
    if source.random() < 0.05:
        other = source.choice(others)
        theirs = other.read_bytes()
        if theirs != data:
            path.write_bytes(theirs)
            if other.parent == path.parent:
                other.write_bytes(data)
            names = [path, other]
            if path.name == "manifest.json":  # a true one of other files: the first that it does not fit is named
                names += [path.with_name(name) for name in FILES]
            return f"swapped with another ({other.name})", {path: data, other: theirs}, names
    while True:
        what = source.choices(list(DAMAGES), WEIGHTS)[0]
        new = DAMAGES[what](data, source)
        if new is None:
            path.unlink()
        elif new != data:
            path.write_bytes(new)
        else:
            continue
        return what, {path: data}, [path]


def flip_checkpoints(run: Path, count: int, source: random.Random) -> Count:
    """Damage the newest checkpoint again and again, and ask which is the newest that can be used."""
    found = Count()
    facts = {"run": disk.read_json(run / "environment.json")["run"]}
    before, newest = Checkpoints(run / "checkpoints", facts).steps()[-2:]
    folder, older = (Checkpoints(run / "checkpoints").path(step) for step in (newest, before))
    for number in range(count):
        path = folder / [*FILES, "manifest.json"][number % 4]
        others = [older / path.name, *(folder / name for name in FILES if name != path.name)]
        what, undo, names = damaged(path, source, others)
        checkpoints = Checkpoints(run / "checkpoints", facts)
        wrong = ""
        try:
            given = checkpoints.newest()
            if given is None or given.step != before:
                wrong = f"step {given and given.step} was given"
            elif not any(str(name) in checkpoints.bad[newest] for name in names):
                wrong = f"not named: {checkpoints.bad[newest]}"
        except Exception as error:  # whatever else it is, it is a miss
            wrong = f"{type(error).__name__}: {error}"
        found.judge(what, path.name, wrong)
        for place, data in undo.items():
            place.write_bytes(data)
    good = Checkpoints(run / "checkpoints", facts).newest()
    assert good is not None
    assert good.step == newest, "all is as it was"
    return found


def flip_model(run: Path, count: int, source: random.Random) -> Count:
    """Damage the files of a model again and again, and load it."""
    found = Count()
    files = sorted(p for p in (run / "model").iterdir() if p.name != "README.md")
    for number in range(count):
        path = files[number % len(files)]
        what, undo, names = damaged(path, source, [p for p in files if p != path])
        wrong = "loaded"
        try:
            load_model(run / "model")
        except ModelFileError as error:
            wrong = "" if any(str(name) in str(error) for name in names) else f"not named: {error}"
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        found.judge(what, path.name, wrong)
        for place, data in undo.items():
            place.write_bytes(data)
    load_model(run / "model")
    return found


def main() -> int:
    """Both, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--count", type=int, default=5000, help="damages to the checkpoint; a fifth as many to the model"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    broken = 0
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        run = make_run(Path(place))
        for title, act, number in (
            ("checkpoints", flip_checkpoints, arguments.count),
            ("model", flip_model, max(1, arguments.count // 5)),
        ):
            began = time.perf_counter()
            found = act(run, number, random.Random(arguments.seed))
            spent = time.perf_counter() - began
            good = number - len(found.missed)
            print(f"{title:<12} {good:,} of {number:,} detected, the file named   {1000 * spent / number:.1f} ms each")
            for what, times in sorted(found.tried.items()):
                print(f"    {times:>6}  {what}")
            for miss in found.missed[:10]:
                print(f"    missed: {miss}")
            broken += len(found.missed)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
