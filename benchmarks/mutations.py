"""Mutated data files, and what each reader makes of them: the right values, or one line that names file and row.

    python benchmarks/mutations.py [--count 50000] [--seed 0] [--readers csv,jsonl,...] [--one READER:SEED]

Asked (law V): no traceback, no value that is silently different, nothing refused that is sound, and at least 99 % of the
refusals name the file and the row or line. A fault of the whole file (an empty or damaged one, two columns of a name) has
no row: there the file's name is what counts. What must come out is told by models of the formats that share no code with
the readers (``mutant_text``, ``mutant_binary``, ``mutant_picture``, ``mutant_map``). Damaged bytes of formats with a
checksum must be refused or give the values from before the damage; those of formats without one may also give what the
stock decoder gives for the same bytes.

Mutants are read in processes of their own, so that a crash of a decoder is counted and not the end; each prints its seed
if it breaks a law, and ``--one`` reads it again, here. ``MB`` is the most that a single mutant added to a process.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mutant import Mutant, Verdict, judge
from mutant_binary import draw_frame, draw_npz, draw_parquet
from mutant_map import draw_map
from mutant_picture import draw_cells, draw_folder
from mutant_text import draw_csv, draw_jsonl, draw_tsv, draw_txt
from race import table

__all__ = ["READERS", "Report", "run", "try_one"]

READERS: dict[str, Callable[[random.Random], Mutant]] = {
    "csv": draw_csv,
    "tsv": draw_tsv,
    "jsonl": draw_jsonl,
    "txt": draw_txt,
    "npz": draw_npz,
    "parquet": draw_parquet,
    "memory": draw_frame,
    "folder": draw_folder,
    "cells": draw_cells,
    "map": draw_map,
}
SHARES = {
    "csv": 9,
    "tsv": 4,
    "jsonl": 9,
    "txt": 3,
    "npz": 5,
    "parquet": 5,
    "memory": 3,
    "folder": 4,
    "cells": 4,
    "map": 4,
}
PART = 200  # mutants a process
PATIENCE = 60  # seconds a mutant may take
MOST = 600  # MB that a mutant may add


@dataclass
class Report:
    """What became of the mutants of a reader."""

    kinds: Counter[str] = field(default_factory=Counter)
    mutations: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, 0)
    largest: tuple[float, int] = (0.0, 0)
    broken: list[tuple[int, str, Verdict]] = field(default_factory=list)

    def add(self, seed: int, mutation: str, verdict: Verdict, seconds: float, megabytes: float) -> None:
        """One more."""
        self.kinds[verdict.kind] += 1
        self.mutations[f"{mutation}: {verdict.kind}"] += 1
        self.seconds += seconds
        self.slowest = max(self.slowest, (seconds, seed))
        self.largest = max(self.largest, (megabytes, seed))
        if verdict.kind not in ("right", "refused"):
            self.broken.append((seed, mutation, verdict))

    @property
    def named(self) -> float:
        """Share of the refusals that name file and row."""
        refused = self.kinds["refused"] + self.kinds["unnamed"]
        return self.kinds["refused"] / refused if refused else 1.0

    @property
    def holds(self) -> bool:
        """Whether law V holds."""
        wrong = self.kinds["different"] + self.kinds["traceback"] + self.kinds["overstrict"]
        return not wrong and self.named >= 0.99 and self.largest[0] <= MOST


def try_one(reader: str, seed: int, folder: Path) -> tuple[str, Verdict]:
    """Draw a mutant and judge it, in an empty folder."""
    mutant = READERS[reader](random.Random(seed))
    inner = folder / "d"
    inner.mkdir()
    try:
        return mutant.mutation, judge(mutant, inner)
    finally:
        shutil.rmtree(inner)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one, with a store of its own."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        before = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        try:
            yield Path(name)
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(reader: str, seeds: range, out: int) -> None:
    """Try some mutants, a line of JSON before and after each."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    with scratch() as folder, os.fdopen(out, "w") as pipe:
        for seed in seeds:
            print(json.dumps([seed]), file=pipe, flush=True)
            signal.alarm(PATIENCE)
            start, before = time.perf_counter(), peak()
            mutation, verdict = try_one(reader, seed, folder)
            took = time.perf_counter() - start
            line = [seed, mutation, verdict.kind, verdict.text[-4000:], took, peak() - before]
            print(json.dumps(line), file=pipe, flush=True)


def run(reader: str, count: int, seed: int) -> Report:
    """Try mutants ``seed`` to ``seed + count - 1``."""
    report = Report()
    at, end = seed, seed + count
    while at < end:
        source, sink = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                os.close(source)
                child(reader, range(at, min(end, at + PART)), sink)
                code = 0
            finally:
                os._exit(code)
        os.close(sink)
        begun = None
        with os.fdopen(source) as lines:
            for line in lines:
                entry = json.loads(line)
                if len(entry) == 1:
                    begun = entry[0]
                else:
                    number, mutation, kind, text, took, megabytes = entry
                    report.add(number, mutation, Verdict(kind, text), took, megabytes)
                    at, begun = number + 1, None
        _, status = os.waitpid(pid, 0)
        if begun is not None or status:
            lost = at if begun is None else begun
            report.add(lost, "crash", Verdict("traceback", f"the process ended with status {status}"), 0, 0)
            at = lost + 1
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--one", default="", metavar="READER:SEED")
    parser.add_argument("--kinds", action="store_true", help="list every mutation with what became of it")
    options = parser.parse_args()
    if options.one:
        reader, _, seed = options.one.partition(":")
        warnings.simplefilter("error")
        with scratch() as folder:
            mutation, verdict = try_one(reader, int(seed), folder)
        print(f"{options.one}  {mutation}: {verdict.kind}\n{verdict.text}")
        return verdict.kind not in ("right", "refused")
    readers = options.readers.split(",")
    whole = sum(SHARES[r] for r in readers)
    rows, reports = [], {}
    for reader in readers:
        reports[reader] = report = run(reader, max(1, round(options.count * SHARES[reader] / whole)), options.seed)
        print(f"{reader}: {sum(report.kinds.values())} in {report.seconds:.0f} s", file=sys.stderr, flush=True)
        rows.append(row(reader, report))
    rows.append(row("all", total(list(reports.values()))))
    table(rows, HEADER)
    for reader, report in reports.items():
        for seed, mutation, verdict in report.broken[:20]:
            print(f"\n{reader}:{seed}  {mutation}: {verdict.kind}\n{verdict.text[-2000:]}")
        if options.kinds:
            print(*(f"{reader:<9}{n:>7}  {what}" for what, n in sorted(report.mutations.items())), sep="\n")
    return not all(report.holds for report in reports.values())


HEADER = [
    "reader",
    "files",
    "right",
    "refused",
    "named",
    "over-strict",
    "tracebacks",
    "different",
    "ms each",
    "worst s",
    "MB",
]


def row(name: str, report: Report) -> list[object]:
    k, count = report.kinds, sum(report.kinds.values())
    return [
        name,
        str(count),
        str(k["right"]),
        str(k["refused"] + k["unnamed"]),
        f"{report.named:.2%}",
        str(k["overstrict"]),
        str(k["traceback"]),
        str(k["different"]),
        f"{1000 * report.seconds / max(1, count):.2f}",
        f"{report.slowest[0]:.2f}",
        f"{report.largest[0]:.0f}",
    ]


def total(reports: list[Report]) -> Report:
    whole = Report()
    for report in reports:
        whole.kinds += report.kinds
        whole.seconds += report.seconds
        whole.slowest = max(whole.slowest, report.slowest)
        whole.largest = max(whole.largest, report.largest)
    return whole


if __name__ == "__main__":
    sys.exit(main())
