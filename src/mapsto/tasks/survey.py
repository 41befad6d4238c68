"""One pass over all rows: what tells which part each is for."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mapsto.data.source import Table
from mapsto.data.split import Split, by_column, content, folds, split
from mapsto.errors import ConfigError
from mapsto.tasks.config import Config
from mapsto.tasks.schema import Errors, Schema

__all__ = ["Survey", "divide", "survey"]


@dataclass
class Survey:
    """One pass over all rows: what the split needs to know."""

    keys: list[int]
    labels: list[Any]
    groups: list[Any]
    sides: list[Any]
    places: list[tuple[int, int]]


def survey(parts: list[tuple[Table, str]], schema: Schema, config: Config, errors: Errors) -> Survey:
    """Read every row of all tables.

    Args:
        parts: the tables, and what each is for.
        schema: what is mapped to what.
        config: of the run; a split that a source brings is named in it.
        errors: takes the rows that cannot be read.
    """
    found = Survey([], [], [], [], [])
    data = config.data
    extra = [c for c in (data.split, data.group) if c]
    if not data.split and parts[0][0].split:
        data.split = parts[0][0].split
        extra.append(data.split)
    for index, (table, _) in enumerate(parts):
        cells = {c: table.column(c) for c in extra}
        for row in schema.rows(table, errors, index=index):
            found.keys.append(content(row.raw))
            # Within what is equally distributed: the values of a label, not those of texts.
            found.labels.append(row.target[0] if row.target is not None and schema.output.kind == "vector" else None)
            found.groups.append(cells[data.group][row.number - 1] if data.group else None)
            found.sides.append(cells[data.split][row.number - 1] if data.split else None)
            found.places.append((index, row.number))
    if not found.keys:
        errors.skip = 0.0
        errors.settle()
    return found


def divide(config: Config, survey: Survey, parts: list[str]) -> Split:
    """The part of each row: by column, by file, by fold, or by the hash of its content."""
    data = config.data
    keys = np.array(survey.keys, np.uint64)
    groups = survey.groups if data.group else None
    # A group holds rows of many labels: its shares are met in rows, not label by label.
    labels = survey.labels if groups is None and survey.labels and isinstance(survey.labels[0], str) else None
    if data.split or any(parts):
        named = survey.sides if data.split else [parts[table] for table, _ in survey.places]
        return by_column(named, keys=keys, labels=labels, groups=groups, seed=config.seed)
    if data.folds:
        if not 0 <= data.fold < data.folds:
            raise ConfigError(f"data.fold={data.fold}: folds are numbered 0 to {data.folds - 1}")
        fold = folds(keys, data.folds, labels=labels, groups=groups, seed=config.seed)
        rest = np.flatnonzero(fold != data.fold)
        sides = np.full(len(keys), 2, np.uint8)
        of = [None if x is None else [x[i] for i in rest] for x in (labels, groups)]
        sides[rest] = split(keys[rest], labels=of[0], groups=of[1], shares=(0.9, 0.1, 0.0), seed=config.seed).sides
        return Split(sides, len(keys) - len(np.unique(keys)))
    shares = (data.shares[0], data.shares[1], data.shares[2])
    return split(keys, labels=labels, groups=groups, shares=shares, seed=config.seed)
