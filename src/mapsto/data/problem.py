"""What is odd about the rows as a whole: the same source with different labels, rare classes, missing cells."""

from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mapsto.data.content import content
from mapsto.data.fault import plain
from mapsto.data.source import Table
from mapsto.data.value import missing, show

__all__ = ["problems"]

RARE = 5
DIFFERENT = 10_000  # labels; a target of more different values is no label


def problems(table: Table, source: Sequence[str], target: str | None = None, *, labels: bool = True) -> list[str]:
    """Warnings about a table, each one line that names rows; reads it once, streamed (16 bytes a row are kept).

    Args:
        table: the rows.
        source: the columns a prediction is made from.
        target: the column to predict, if any.
        labels: whether the target holds labels, so that rare ones are counted.
    """
    names = list(dict.fromkeys([*source, *([target] if target is not None else [])]))
    gaps: dict[str, list[int]] = {name: [] for name in names}
    gap_counts: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    keys, answers = array("Q"), array("Q")
    for chunk in table.chunks(names):
        for name in names:
            for row, cell in enumerate(chunk.columns[name], chunk.first):
                if missing(cell):
                    gap_counts[name] += 1
                    if len(gaps[name]) < 5:
                        gaps[name].append(row)
        for cells in zip(*(chunk.columns[name] for name in source), strict=True):
            keys.append(content(cells))
        if target is not None:
            for cell in chunk.columns[target]:
                answers.append(content((cell,)))
                if labels and not missing(cell) and len(counts) <= DIFFERENT:
                    counts[show(cell)] += 1
    found = []
    for name, count in gap_counts.items():
        found.append(f'"{name}" is missing in {count} of {len(keys)} rows ({listing(gaps[name], count)}).')
    if len(keys):
        found += copies(np.frombuffer(keys, np.uint64), np.frombuffer(answers, np.uint64), target)
    if labels and 0 < len(counts) <= DIFFERENT:
        rare = [
            f"{name} ({count})" for name, count in sorted(counts.items(), key=lambda c: (c[1], c[0])) if count < RARE
        ]
        if rare:
            more = f" and {len(rare) - 8} more" if len(rare) > 8 else ""
            found.append(f'"{target}": {len(rare)} labels have fewer than {RARE} rows: {", ".join(rare[:8])}{more}.')
    return [plain(line) for line in found]


def copies(keys: NDArray[np.uint64], answers: NDArray[np.uint64], target: str | None) -> list[str]:
    order = np.lexsort((np.arange(len(keys)), keys))
    start = np.flatnonzero(np.concatenate([[True], keys[order][1:] != keys[order][:-1]]))
    sizes = np.diff(np.append(start, len(keys)))
    found = []
    extra = len(keys) - len(start)
    if extra:
        found.append(f"{extra} rows are copies of the source of another row; copies stay on one side of the split.")
    if target is None:
        return found
    low, high = np.minimum.reduceat(answers[order], start), np.maximum.reduceat(answers[order], start)
    clash = np.flatnonzero(low != high)
    if len(clash):
        i = clash[np.argmin(order[start[clash]])]
        rows = (order[start[i] : start[i] + sizes[i]] + 1).tolist()
        found.append(
            f'{int(sizes[clash].sum())} rows share their source with a row of another "{target}" '
            f"(such as {listing(rows[:5], len(rows))}): no prediction can be right for all of them."
        )
    return found


def listing(rows: Sequence[int], count: int) -> str:
    shown = ", ".join(map(str, rows))
    return f"row{'s' if count > 1 else ''} {shown}{', ...' if count > len(rows) else ''}"
