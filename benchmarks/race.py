"""Candidates timed in turns in one process: what slows the machine for a while slows them all.

``race`` gives each candidate's minimum and median, of wall and of CPU time; ``table`` prints rows under a header.
Compare ratios of medians or minima, never seconds of two runs.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

__all__ = ["Time", "race", "table"]


@dataclass(frozen=True)
class Time:
    """Seconds a call: minimum and median of wall time, and of CPU time over all threads."""

    minimum: float
    median: float
    cpu_minimum: float
    cpu_median: float
    calls: int

    def over(self, other: "Time") -> tuple[float, float]:
        """This time as a fraction of another: ratio of minima, ratio of medians."""
        return self.minimum / other.minimum, self.median / other.median

    def by(self, clock: str) -> "Time":
        """Wall time as it is, or CPU time in its place: steadier for one thread on a shared machine."""
        return self if clock == "wall" else replace(self, minimum=self.cpu_minimum, median=self.cpu_median)


def race(candidates: Mapping[str, Callable[[], object]], rounds: int = 10, budget: float = 20.0) -> dict[str, Time]:
    """Call each candidate once a round, for ``rounds`` rounds or ``budget`` seconds (three rounds at least).

    Each is called once before, to warm up. Calls shorter than a millisecond are repeated within a round.
    """
    repeats = {}
    for name, call in candidates.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, min(1000, round(1e-3 / max(1e-7, time.perf_counter() - start))))
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    cpu: dict[str, list[float]] = {name: [] for name in candidates}
    begin = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - begin > budget:
            break
        for name, call in candidates.items():
            count = repeats[name]
            start, start_cpu = time.perf_counter(), time.process_time()
            for _ in range(count):
                call()
            end, end_cpu = time.perf_counter(), time.process_time()
            wall[name].append((end - start) / count)
            cpu[name].append((end_cpu - start_cpu) / count)
    return {
        name: Time(
            min(wall[name]),
            statistics.median(wall[name]),
            min(cpu[name]),
            statistics.median(cpu[name]),
            len(wall[name]),
        )
        for name in candidates
    }


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Rows under a header, in columns as wide as they need to be; printed, and returned."""
    cells = [list(header), *([cell if isinstance(cell, str) else _number(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * w for w in widths))
    text = "\n".join(line.rstrip() for line in lines)
    print(text, flush=True)
    return text


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)
