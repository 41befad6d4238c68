"""Law O: run folders, models and config files made by an attacker run nothing, read nothing outside, take no memory.

    python benchmarks/hostile.py --count 20000            a table by class of attack
    python benchmarks/hostile.py --one 4711               what comes of one of them

Each attack changes a copy of a small run (see ``attacks.py``); then the library opens it as a user would, in a forked
process under an audit hook and a limit on memory. Every question must be refused by a MapstoError of one line, in less
than 2 s and 300 MB, or answered: exactly as before, or (where the attacker has sealed the files anew) in the same form.
With ``--seed N`` other attacks; ``--classes a,b`` only some.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import attacks
import mapsto
from attacks import Base, Class
from mapsto import disk
from mapsto.errors import MapstoError
from mapsto.tasks import report
from mapsto.tasks.build import build
from mapsto.tasks.card import model_card
from mapsto.tasks.config import Config, override, read_config
from mapsto.tasks.dataset import Measured
from mapsto.tasks.pictures.curves import read_history
from mapsto.tasks.pictures.gallery import Gallery
from mapsto.tasks.run import Run, load
from mapsto.tasks.runfolder import RunFolder
from mapsto.tasks.train import train
from mapsto.training.checkpoint import Checkpoints
from mapsto.training.plan import Progress
from markup import acts_in_card, acts_in_page, markup

CLASSES = {**attacks.CLASSES, "markup": Class(markup, 2, ("shown",))}
SECONDS, MEGABYTES = 2.0, 300
ROOM = 2 << 30  # of address space, for an attack that gets through
CHUNK = 400  # attacks a process

# What is attacked


def bases(root: Path, names: Sequence[str] = ()) -> dict[str, Base]:
    """Small runs of every kind of input, output and vocabulary."""
    draw = np.random.default_rng(0)
    words = ["slow", "lovely", "film", "plot", "dull", "bright", "a", "the"]
    texts = [" ".join(draw.choice(words, draw.integers(2, 9))) for _ in range(60)]
    made: dict[str, tuple[list[dict[str, Any]], list[str], list[str], dict[str, Any]]] = {
        "words": (
            [{"x": t, "y": "good" if "lovely" in t else "bad"} for t in texts],
            ["x"],
            ["y:label"],
            {
                "model.position": "learned",
                "input.limit": 12,
                "input.ngrams": 3,
                "input.window": 3,
                "model.normalise": True,
            },
        ),
        "subwords": (
            [{"x": t + f" naïve café {i}", "y": float(len(t))} for i, t in enumerate(texts)],
            ["x"],
            ["y:number"],
            {
                "input.vocabulary": "subwords",
                "input.vocabulary_size": 300,
                "model.sigma": "datum",
                "model.pool": "class",
            },
        ),
        "table": (
            [
                {
                    "a": float(i),
                    "b": "uvw"[i % 3],
                    "c": [1.0 * i, 2.0],
                    "y": "pq"[i % 2],
                    "z": i / 7,
                    "t": ["k", "l"][: i % 3],
                }
                for i in range(60)
            ],
            ["a", "b", "c:number"],
            ["y:label", "z:number", "t:labels"],
            {"train.smoothing": 0.1},
        ),
        "series": (
            [{"x": np.sin(np.arange(4 + i % 9)).tolist(), "s": list(range(4 + i % 9)), "y": i / 7} for i in range(60)],
            ["x:series"],
            ["y:number"],
            {"data.times": "s", "model.position": "rotary", "model.pool": "attention"},
        ),
        "picture": (
            [{"x": draw.integers(0, 99, (8, 8)).astype(np.uint8) + 100 * (i % 2), "y": "ab"[i % 2]} for i in range(60)],
            ["x:image"],
            ["y:label"],
            {"input.flip": True, "input.shift": 1},
        ),
        "tags": (
            [{"x": list(t.replace(" ", "")), "y": ["vc"[c in "aeiou"] for c in t.replace(" ", "")]} for t in texts],
            ["x:sequence"],
            ["y:items"],
            {"model.norm": "post"},
        ),
        "said": (
            [{"x": t, "y": f"{t[::-1]} {i}"} for i, t in enumerate(texts)],
            ["x"],
            ["y:sequence"],
            {"model.position": "learned", "input.limit": 40, "output.limit": 12},
        ),
    }
    usual = {"model.dim": 8, "model.depth": 1, "model.heads": 2, "train.steps": 4, "train.save_every": 2, "threads": 1}
    (root / "outside").mkdir()
    (root / "outside" / "secret.json").write_text('{"kind": "bytes"}')
    found = {}
    for name in names or made:
        rows, inputs, targets, more = made[name]
        config = override(Config(), [f"{k}={json.dumps(v)}" for k, v in (usual | more).items()])
        config.data.inputs, config.data.targets = inputs, targets
        run = train(config, rows, name=name, root=root, console=Console(quiet=True))[0]
        (run.folder / ".lock").unlink()
        row = [{k: v for k, v in rows[1].items() if k not in ("y", "z", "t")}]
        loaded = load(run.folder)
        name_of_run = disk.read_json(run.folder / "environment.json")["run"]
        found[name] = Base(
            run.folder,
            row,
            answer(loaded, row),
            root / "outside",
            loaded,
            name_of_run,
            model_card(loaded, loaded.result),
        )
    return found


def answer(run: Run, row: Any) -> str:
    """All that a model says of a row, to the last bit."""
    return json.dumps(run.predict(row))


# What is asked


def ask_model(folder: Path, base: Base) -> str:
    """Load the model and predict."""
    return answer(load(folder), base.row)


def ask_resume(folder: Path, base: Base) -> str:
    """Take the run up."""
    place = RunFolder.open(folder)
    place.close()
    return "resumed"


def ask_checkpoint(folder: Path, base: Base) -> str:
    """Find the newest checkpoint."""
    found = Checkpoints(folder / "checkpoints", {"run": base.id}).newest()
    if found is not None:
        Progress.of(found.state, found.step)
    return "found"


def ask_config(folder: Path, base: Base) -> str:
    """Read the settings, and make the model they ask for."""
    config = read_config(folder / "config.yaml")
    if config.model.dim and config.model.heads:
        run = base.run
        measured = Measured([part.settings() for part in run.model.sources.values()], run.model.output.settings())
        build(run.schema, measured, config.model, seed=0)
    return "read"


def ask_report(folder: Path, base: Base) -> str:
    """Write the report's words."""
    run = base.run
    read_history(folder / "metrics.jsonl")
    report.write(Run(folder, run.model, run.schema, run.config), folder / "report.html", drawn=Gallery([], [], None))
    return "written"


def ask_shown(folder: Path, base: Base) -> str:
    """Predict, and write the card and the report; none of the names in them may act."""
    run = load(folder)
    run.predict([dict(zip(run.schema.sources, base.row[0].values(), strict=True))])
    targets = zip(base.run.model.output.targets, run.model.output.targets, strict=True)
    result = run.result
    for old, new in targets:
        for part in (result["metrics"], result["intervals"]):
            for key in [k for k in part if k.startswith(f"{old}.")]:
                part[new + key.removeprefix(old)] = part.pop(key)
        for key in [k for k in result["baselines"] if k.startswith(f"{old}: ")]:
            result["baselines"][new + key.removeprefix(old)] = result["baselines"].pop(key)
    report.write(run, folder / "report.html", result, drawn=Gallery([], ["a <b>reason</b> \x1b[0m"], None))
    wrong = acts_in_page((folder / "report.html").read_text()) or acts_in_card(model_card(run, result), base.card)
    assert not wrong, wrong
    return "shown"


ASKED: dict[str, Callable[[Path, Base], str]] = {
    "model": ask_model,
    "resume": ask_resume,
    "checkpoint": ask_checkpoint,
    "config": ask_config,
    "report": ask_report,
    "shown": ask_shown,
}

# Who listens

NEVER = (
    *("exec", "compile", "marshal.loads", "pickle.find_class", "code.__new__", "os.system", "os.exec", "os.fork"),
    *(
        "os.posix_spawn",
        "os.spawn",
        "subprocess.Popen",
        "ctypes.dlopen",
        "ctypes.dlsym",
        "socket.__new__",
        "urllib.Request",
    ),
)
PATHS = (
    *("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"),
    *("os.link", "os.symlink", "os.chdir", "shutil.rmtree"),
)
SYSTEM = ("/proc/meminfo",)
LIBRARIES = tuple(
    {os.path.dirname(os.__file__), os.path.dirname(os.path.dirname(torch.__file__)), os.path.dirname(mapsto.__file__)}
)
HINTS = ("os.listdir", "os.scandir")  # the names beside a run are told to who has mistyped one
KNOWN = ("encodings.",)  # modules that a codec's first use imports


class Listener:
    """An audit hook; it stops and remembers what opening a file must never do."""

    def __init__(self) -> None:
        self.inside = ""
        self.heard: list[str] = []
        self.added = False

    def add(self) -> None:
        """From now on, in this process and those it forks."""
        if not self.added:
            sys.addaudithook(self.hear)
            self.added = True

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called by Python at every event."""
        if not self.inside:
            return
        if event in NEVER:
            wrong = f"{event} {arguments!r:.100}"
        elif event == "import":
            wrong = "" if str(arguments[0]).startswith(KNOWN) else f"import {arguments[0]}"
        elif event in PATHS:
            wrong = self.place(event, arguments[0])
        else:
            return
        if wrong:
            self.heard.append(wrong)
            raise PermissionError(wrong)

    def place(self, event: str, path: Any) -> str:
        """Nothing, or what is wrong about a path."""
        if path is None or isinstance(path, int):
            return ""
        real = os.path.realpath(os.fsdecode(path))
        if real == self.inside or real.startswith((self.inside + "/", *LIBRARIES)) or real in SYSTEM:
            return ""
        if event in HINTS and real == os.path.dirname(self.inside):
            return ""
        return f"{event} {real}"


LISTENER = Listener()


def limited() -> None:
    """Little more memory for this process than it has now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))


def judge(kind: str, folder: Path, base: Base, question: str) -> tuple[str, str]:
    """Ask one thing of an attacked folder: (what came of it, what is wrong about that)."""
    LISTENER.heard.clear()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    clock, spent = time.perf_counter(), time.process_time()
    outcome, wrong = "", ""
    try:
        LISTENER.inside = os.path.realpath(folder)
        said = ASKED[question](folder, base)
        LISTENER.inside = ""
        outcome = "same"
        if question == "model" and said != base.answer:
            outcome = "another"
            if not CLASSES[kind].another:
                wrong = f"other predictions: {said[:100]}"
            elif not alike(json.loads(said), json.loads(base.answer)):
                wrong = f"predictions of another form: {said[:100]}"
    except MapstoError as error:
        LISTENER.inside = ""
        outcome, text = "refused", str(error)
        if "\n" in text or len(text) > 10_000 or error.code not in (2, 3, 4, 5):  # the command line escapes the rest
            wrong = f"not one line: {text[:200]!r}"
    except BaseException as error:  # whatever it is, it is no answer to a user
        LISTENER.inside = ""
        outcome = "broken"
        last = traceback.extract_tb(error.__traceback__)[-1]
        wrong = f"{type(error).__name__}: {str(error)[:160]!r} ({Path(last.filename).name}:{last.lineno})"
    spent, clock = time.process_time() - spent, time.perf_counter() - clock
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    wrongs = [wrong] if wrong else []
    wrongs += [f"EVENT {event}" for event in LISTENER.heard[:3]]
    if spent > SECONDS or clock > 5 * SECONDS:
        wrongs.append(f"{spent:.1f} s of work, {clock:.1f} s in all")
    if grown > MEGABYTES:
        wrongs.append(f"{grown:.0f} MB more")
    return outcome, "; ".join(wrongs)


def alike(found: Any, known: Any) -> bool:
    """Whether predictions have the form of others: rows, and a value for each target."""
    return len(found) == len(known) and all(isinstance(row, dict) and row for row in found)


@dataclass
class Tally:
    """What came of the attacks of a class."""

    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    milliseconds: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def attack(number: int, seed: int, kinds: Sequence[str], known: dict[str, Base], place: Path) -> dict[str, Any]:
    """One attack, chosen by its number; what came of it."""
    source = random.Random(f"{seed}-{number}")
    kind = source.choices(kinds, [CLASSES[k].weight for k in kinds])[0]
    name = source.choice(sorted(known))
    base = known[name]
    folder = place / "run"
    shutil.copytree(base.folder, folder, copy_function=os.link)
    title = CLASSES[kind].act(folder, base, source)
    began = time.perf_counter()
    outcomes, wrongs = [], []
    for question in CLASSES[kind].asked:
        outcome, wrong = judge(kind, folder, base, question)
        outcomes.append(outcome)
        if wrong:
            wrongs.append(f"{question}: {wrong}")
    spent = 1000 * (time.perf_counter() - began) / len(outcomes)
    shutil.rmtree(folder)
    return {
        "number": number,
        "kind": kind,
        "title": f"{name}: {title}",
        "outcomes": outcomes,
        "wrongs": wrongs,
        "ms": spent,
    }


def run(
    count: int,
    seed: int,
    known: dict[str, Base],
    root: Path,
    *,
    kinds: Sequence[str] = tuple(CLASSES),
    twin: Callable[[], None] | None = None,
    first: int = 0,
) -> dict[str, Tally]:
    """Many attacks, some hundred in a process of their own; a process that dies is the fault of its last attack."""
    LISTENER.add()
    tallies: dict[str, Tally] = defaultdict(Tally)
    number = first
    while number < first + count:
        place = Path(tempfile.mkdtemp(dir=root))
        log = place / "log"
        sys.stdout.flush()
        child = os.fork()
        if not child:
            code = 70
            try:
                torch.set_num_threads(1)
                warnings.simplefilter("ignore")
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries in C++ print what they think
                limited()
                if twin is not None:
                    twin()
                with log.open("w", buffering=1) as file:
                    for at in range(number, min(number + CHUNK, first + count)):
                        file.write(json.dumps({"begun": at}) + "\n")
                        signal.alarm(60)
                        file.write(json.dumps(attack(at, seed, kinds, known, place)) + "\n")
                code = 0
            except BaseException:
                (place / "error").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        for line in lines:
            if "kind" in line:
                tally = tallies[line["kind"]]
                tally.tried += 1
                tally.outcomes.update(line["outcomes"])
                tally.milliseconds.append(line["ms"])
                tally.broken += [f"{line['number']} {line['title']}: {wrong}" for wrong in line["wrongs"]]
        if status:
            number = lines[-1].get("begun", number) if lines else number
            why = (place / "error").read_text().splitlines()[-1] if (place / "error").exists() else ""
            tallies["the process"].broken.append(f"{number}: it ended with {status} {why}")
            if not lines:
                raise RuntimeError(f"no attack was begun: {why}")
        number = number + 1 if status else number + CHUNK
        shutil.rmtree(place, ignore_errors=True)
    return tallies


def table(tallies: dict[str, Tally]) -> int:
    """Print what came of it; gives how many attacks got through."""
    print(f"{'class':<20}{'attacks':>8}{'refused':>9}{'same':>7}{'another':>9}{'broken':>8}{'ms':>7}{'most ms':>9}")
    total, broken = 0, 0
    for kind, tally in tallies.items():
        times = tally.milliseconds or [0.0]
        o = tally.outcomes
        print(
            f"{kind:<20}{tally.tried:>8}{o['refused']:>9}{o['same']:>7}{o['another']:>9}{len(tally.broken):>8}"
            f"{sum(times) / len(times):>7.1f}{max(times):>9.0f}"
        )
        total, broken = total + tally.tried, broken + len(tally.broken)
    print(f"{'all':<20}{total:>8}{broken:>41} broken")
    for tally in tallies.values():
        for line in tally.broken[:12]:
            print(f"    {line}")
    return broken


def main() -> int:
    """Attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", type=int, help="the number of one attack")
    parser.add_argument("--classes", default=",".join(CLASSES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        known = bases(root)
        kinds = arguments.classes.split(",")
        if arguments.one is not None:
            LISTENER.add()
            print(
                json.dumps(
                    attack(arguments.one, arguments.seed, kinds, known, Path(tempfile.mkdtemp(dir=root))), indent=1
                )
            )
            return 0
        return int(table(run(arguments.count, arguments.seed, known, root, kinds=kinds)) > 0)


if __name__ == "__main__":
    sys.exit(main())
