"""How long a user waits before anything happens: the command line's help, its settings, and the imports.

    python benchmarks/startup.py

Asked: ``mapsto --help`` within 200 ms, without importing torch; ``import mapsto`` likewise imports no torch; the models
take at most 100 ms more than ``import torch``. Beside them all that training needs (scipy, pyarrow, pydantic besides),
and a Python that does nothing, which is part of all.

Each is a process of its own; they take turns, and the table has medians and minima of wall time and of CPU time. Files
are in the cache after a first round that does not count. On a machine that others use wall time is mostly theirs: then
CPU time, all of it in one thread, is what the command takes.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from race import table

CANDIDATES: dict[str, Sequence[str]] = {
    "python -c pass": ("-c", "pass"),
    "import mapsto": ("-c", "import mapsto"),
    "mapsto --help": ("-m", "mapsto", "--help"),
    "mapsto train --help": ("-m", "mapsto", "train", "--help"),
    "mapsto config": ("-m", "mapsto", "config"),
    "import torch": ("-c", "import torch"),
    "import mapsto.models.mapper": ("-c", "import mapsto.models.mapper"),
    "import mapsto.tasks.train": ("-c", "import mapsto.tasks.train"),
}
ASKED = {"mapsto --help": "<= 200", "import mapsto.models.mapper": "torch + 100"}
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def environment() -> dict[str, str]:
    """The checkout's own package, where none is installed."""
    paths = [os.path.join(ROOT, "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def run(arguments: Sequence[str]) -> tuple[float, float]:
    """Milliseconds of wall time and of CPU time of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment())
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1e3 * wall, 1e3 * cpu


def imports_torch(arguments: Sequence[str]) -> bool:
    """Whether torch is among the modules a process imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], check=True, capture_output=True, text=True, env=environment()
    )
    return any(line.rsplit("|", 1)[-1].strip() == "torch" for line in done.stderr.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch = {name: imports_torch(arguments) for name, arguments in CANDIDATES.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CANDIDATES}
    for _ in range(args.rounds):
        for name, arguments in CANDIDATES.items():
            times[name].append(run(arguments))
    lines = []
    for name, taken in times.items():
        wall, cpu = ([both[clock] for both in taken] for clock in (0, 1))
        numbers = [statistics.median(wall), min(wall), statistics.median(cpu), min(cpu)]
        lines.append([name, *(f"{x:.0f}" for x in numbers), "yes" if torch[name] else "no", ASKED.get(name)])
    print(f"Python {sys.version.split()[0]}, {args.rounds} rounds")
    table(lines, ["ms", "wall median", "minimum", "CPU median", "minimum", "torch imported", "asked"])


if __name__ == "__main__":
    main()
