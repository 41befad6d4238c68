"""Rows picked to be looked at: where they come from, what is true, what the model says."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mapsto.models.mapper import Mapper
from mapsto.nn.target import LabelsTarget, LabelTarget, NumberTarget, Target, TokenTarget
from mapsto.ragged import evenly
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.pictures.text import joined, number
from mapsto.tasks.pictures.view import TokensView, View, inputs, views
from mapsto.tasks.score import Answers
from mapsto.tasks.written import alone

__all__ = ["Example", "Line", "costs", "events", "examples", "heads", "spread"]


@dataclass(frozen=True)
class Line:
    """A sequence that belongs to a row: the true target, or what the model writes.

    Attributes:
        name: what it is.
        view: its tokens.
        wrong: (tokens,) which of them are mistaken.
    """

    name: str
    view: TokensView
    wrong: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Example:
    """One row.

    Attributes:
        where: the file and the number of the row in it.
        views: by input.
        truth: what is true, or what else is to be said of it.
        said: what the model says, with how sure it is; empty if it was not asked.
        right: whether they are the same; None for numbers.
        wrong: (items,) which items were answered wrongly, where every item has an answer.
        lines: sequences that are true or written.
    """

    where: str
    views: dict[str, View]
    truth: str = ""
    said: str = ""
    right: bool | None = None
    wrong: NDArray[np.bool_] | None = None
    lines: tuple[Line, ...] = ()


def heads(model: Mapper) -> dict[str, Target]:
    """The targets of a model by name."""
    found: dict[str, Target] = getattr(model.output, "targets")  # noqa: B009 - of every output there is
    return found


def spread(head: Target, events: Sequence[NDArray], limit: int) -> NDArray[np.int64]:
    """Some rows that show the whole range: as many of each label as of any other; numbers from low to high.

    Of sequences, from short to long.

    Args:
        head: of the target.
        events: of each row, all its true events (one, or one an item).
        limit: about how many rows; with more labels than that, one of each of the first.

    Returns:
        Positions in ``events``, label by label, spread evenly over each label's rows.
    """
    if not len(events):
        return np.zeros(0, np.int64)
    if isinstance(head, NumberTarget | TokenTarget):
        size = len if isinstance(head, TokenTarget) else np.mean
        order = np.argsort([float(size(e)) for e in events], kind="stable")
        return _evenly(order, limit)
    first = np.array([_first_label(head, e) for e in events])
    labels = np.unique(first)
    each = max(1, limit // len(labels))
    return np.concatenate([_evenly(np.flatnonzero(first == label), each) for label in labels[:limit]])


def _evenly(order: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return order[evenly(len(order), count)]


def _first_label(head: Target, events: NDArray) -> int:
    if isinstance(head, LabelsTarget):
        there = np.flatnonzero(np.atleast_2d(events).any(0))
        return int(there[0]) if len(there) else -1
    return int(np.ravel(events)[0]) if np.size(events) == 1 else 0


def costs(found: Answers, rows: int) -> NDArray[np.float64]:
    """−log p of what is true, for each row: over all targets, and the mean over items where they answer one by one."""
    total = np.zeros(rows)
    count = np.maximum(np.bincount(found.row, minlength=rows), 1)
    for nll in found.nll.values():
        total += np.bincount(found.row, nll, minlength=rows)
    return total / count


def examples(
    feed: StoreFeed, positions: NDArray[np.int64], places: Sequence[tuple[str, int]], found: Answers | None = None
) -> list[Example]:
    """Look at some rows of a feed.

    Args:
        feed: the rows.
        positions: which of them.
        places: (table's name, row number) of each row of the store.
        found: the model's answers to all rows of the feed.
    """
    rows = feed.rows[positions]
    model = feed.model
    shown = {name: views(part, feed.take(name, rows)) for name, part in inputs(model).items()}
    made = []
    for i, (position, row) in enumerate(zip(positions.tolist(), rows.tolist(), strict=True)):
        name, line = places[row]
        here = {n: v[i] for n, v in shown.items()}
        if found is None:
            made.append(Example(f"{name} row {line}", here, _truths(feed, row)))
            continue
        at = np.flatnonzero(found.row == position)
        said, right = _said(model, found, at)
        wrong = _wrong(model, found, at) if model.output.kind == "items" else None
        truth = _truths(feed, row) + _missed(model, found, at)
        made.append(Example(f"{name} row {line}", here, truth, said, right, wrong))
    return made


def events(feed: StoreFeed, rows: NDArray[np.int64]) -> list[NDArray]:
    """The true events of the first target, by row."""
    columns = feed.take("target", rows)
    names = {"items": "values", "sequence": "ids", "parallel": "ids"}
    column = columns[names.get(feed.model.output.kind, next(iter(heads(feed.model))))]
    return [np.asarray(column.column[row]) for row in rows]


def _truths(feed: StoreFeed, row: int) -> str:
    if alone(feed.model) is not None:
        return ""  # a line of its own, token by token
    columns = feed.take("target", np.array([row]))
    parts = []
    for name, head in heads(feed.model).items():
        column = columns["values" if feed.model.output.kind == "items" else name].column
        true = [_true(head, event) for event in np.asarray(column[row])]
        parts.append(_titled(feed.model, name, joined(true, 12) if len(true) > 1 else true[0]))
    return "; ".join(parts)


def _titled(model: Mapper, name: str, text: str) -> str:
    return f"{name} {text}" if len(heads(model)) > 1 else text


def _true(head: Target, event: NDArray) -> str:
    if isinstance(head, LabelTarget):
        return head.classes[int(event)]
    if isinstance(head, LabelsTarget):
        return joined([c for c, there in zip(head.classes, event > 0.5, strict=True) if there]) or "none"
    assert isinstance(head, NumberTarget)
    return ", ".join(number(v) for v in event * head.scale + head.mean)


def _said(model: Mapper, found: Answers, at: NDArray[np.int64]) -> tuple[str, bool | None]:
    """What is said of the events of one row, and whether all of it is right."""
    parts: list[str] = []
    right: list[bool] = []
    for name, head in heads(model).items():
        arrays = {k: v[at] for k, v in found.predicted[name].items()}
        true = found.target[name][at]
        if isinstance(head, NumberTarget):
            value, sigma = arrays["value"].reshape(-1), arrays["sigma"].reshape(-1)
            text = joined([f"{number(v)} ± {number(s)}" for v, s in zip(value, sigma, strict=True)], 4)
        else:
            same = _same(head, arrays["value"], true)
            right.append(bool(same.all()))
            text = _labels(head, arrays, true) if len(at) == 1 else _tags(head, arrays["value"], same)
        parts.append(_titled(model, name, text))
    return "; ".join(parts), all(right) if right else None


def _same(head: Target, said: NDArray, true: NDArray) -> NDArray[np.bool_]:
    """Which events are answered rightly."""
    return (said == (true > 0.5 if isinstance(head, LabelsTarget) else true)).reshape(len(true), -1).all(1)


def _wrong(model: Mapper, found: Answers, at: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    ((name, head),) = heads(model).items()
    if isinstance(head, NumberTarget):
        return None
    return ~_same(head, found.predicted[name]["value"][at], found.target[name][at])


def _tags(head: Target, said: NDArray, same: NDArray[np.bool_]) -> str:
    count = f"{int(same.sum())} of {len(same)} right"
    return f"{joined([_true(head, event) for event in said], 12)} ({count})"


def _missed(model: Mapper, found: Answers, at: NDArray[np.int64]) -> str:
    """The probability of the true label, where another one was said."""
    targets = list(heads(model).items())
    if len(targets) > 1 or len(at) != 1 or not isinstance(targets[0][1], LabelTarget):
        return ""
    name, true = targets[0][0], int(found.target[targets[0][0]][at[0]])
    arrays = found.predicted[name]
    if int(arrays["value"][at[0]]) == true:
        return ""
    return f" ({_share(float(np.exp(arrays['log_probability'][at[0], true])))})"


def _labels(head: Target, arrays: dict[str, NDArray], true: NDArray) -> str:
    if isinstance(head, LabelTarget):
        p = np.exp(arrays["log_probability"][0].astype(np.float64))
        said = int(arrays["value"][0])
        return f"{head.classes[said]} ({_share(p[said])})"
    assert isinstance(head, LabelsTarget)
    p = arrays["probability"][0]
    named = [(c, v) for c, v, yes in zip(head.classes, p, arrays["value"][0], strict=True) if yes]
    lacking = [(c, v) for c, v, there in zip(head.classes, p, true[0] > 0.5, strict=True) if there and v <= 0.5]
    text = joined([f"{c} ({_share(v)})" for c, v in named], 5) or "none"
    return text + (f"; lacks {joined([f'{c} ({_share(v)})' for c, v in lacking], 5)}" if lacking else "")


def _share(p: float) -> str:
    """A probability with two digits, never rounded to certainty."""
    return "<0.01" if p < 0.005 else ">0.99" if p > 0.995 else f"{p:.2f}"
