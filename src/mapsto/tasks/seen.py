"""What a model sees of sequences: how long they are in tokens, what is cut, and what its vocabulary lacks."""

from typing import Any

import numpy as np

from mapsto.models.mapper import Mapper
from mapsto.tasks.dataset import Dataset
from mapsto.tasks.watch import amount
from mapsto.tasks.written import alone, units
from mapsto.vocabulary import END, UNKNOWN

__all__ = ["doubts", "lines", "sequences"]

Seen = dict[str, dict[str, Any]]


def sequences(dataset: Dataset, model: Mapper) -> Seen:
    """By input, and by target if that is a sequence.

    Returns:
        ``{"role", "vocabulary", "size", "tokens": {"least", "median", "most"}, "limit", "cut", "unknown"}`` each: tokens of
        the training rows, without the ends of targets; how many rows fill the limit (of a source) or were cut by it (of a
        target); and the share of the tokens of val and test that the vocabulary lacks.
    """
    found: Seen = {}
    for i, (name, part) in enumerate(model.sources.items()):
        if part.kind == "sequence":
            found[name] = _of(dataset, f"{i}.ids", part, end=0)
    output = alone(model)
    if output is not None:
        found[output.name] = _of(dataset, "t.ids", output, end=1)
    return found


def _of(dataset: Dataset, name: str, part: Any, *, end: int) -> dict[str, Any]:
    column = dataset.store.columns[name]
    rest = np.concatenate([dataset.split.rows("val"), dataset.split.rows("test")])
    new = column.take(rest).flat()[0]
    new = new[new != END]
    offsets = np.asarray(column.offsets)
    last = np.asarray(column.values)[offsets[1:] - 1]
    ended = last == END
    lengths = np.asarray(column.lengths) - (ended if end else 0)
    cut = ~ended if end else (lengths >= part.limit if part.limit else np.zeros(len(lengths), bool))
    least, median, most = np.percentile(lengths[dataset.split.rows("train")], [0, 50, 100]).astype(int).tolist()
    return {
        "role": "to" if end else "from",
        "vocabulary": units(part.vocabulary),
        "size": part.vocabulary.size,
        "tokens": {"least": least, "median": median, "most": most},
        "limit": part.limit,
        "cut": int(cut.sum()),
        "unknown": float(np.mean(new == UNKNOWN)) if len(new) else 0.0,
    }


def lines(seen: Seen) -> list[str]:
    """A line a sequence."""
    made = []
    for name, one in seen.items():
        least, median, most = (amount(one["tokens"][key]) for key in ("least", "median", "most"))
        span = (
            f"{least} to {most} {one['vocabulary']}, median {median}"
            if least != most
            else f"{most} {one['vocabulary']}"
        )
        end = ", and an end" if one["role"] == "to" else ""
        made.append(f"{name}: {span}{end}; {amount(one['size'])} ids in the vocabulary")
    return made


def doubts(seen: Seen) -> list[str]:
    """Warnings about what is cut and what is unknown."""
    found = []
    for name, one in seen.items():
        rows = f"{amount(one['cut'])} row{'s' * (one['cut'] != 1)}"
        if one["cut"] and one["role"] == "to":
            found.append(
                f'"{name}": {rows} longer than output.limit={one["limit"]} {one["vocabulary"]}: what is beyond is cut, and '
                "these rows have no end to learn"
            )
        elif one["cut"]:
            found.append(
                f'"{name}": {rows} as long as input.limit={one["limit"]} {one["vocabulary"]}, or longer and cut'
            )
        if one["unknown"] > 0:
            share = f"{one['unknown']:.1%}" if one["unknown"] >= 0.001 else "<0.1%"
            cannot = ", and the model can never write them" if one["role"] == "to" else ""
            found.append(
                f'"{name}": {share} of the {one["vocabulary"]} of val and test do not occur in the training rows{cannot}'
            )
    return found
