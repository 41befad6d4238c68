"""Series cut into what was known and what came, and parted by time: what forecasts are learned from."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapsto.data.fault import fault
from mapsto.data.kind import describe, infer
from mapsto.data.source import Chunk, Table
from mapsto.data.value import missing, number, numbers, seconds, within
from mapsto.errors import DataError

__all__ = ["Form", "Futures", "Line", "Presents", "lines"]

PARTS = ("train", "val", "test")
MOST = 100_000  # windows; of longer data every second, third ... is taken
ROWS = 1024


@dataclass(frozen=True)
class Line:
    """One series.

    Attributes:
        name: of its group, or the number of its row.
        values: (T, C), NaN where there is none.
        times: (T,) in seconds, or None.
    """

    name: Any
    values: NDArray[np.float64]
    times: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Form:
    """Where the series of a table stand: in rows of lists, or a number a row, one row after the other.

    Attributes:
        columns: what is forecast; several are channels.
        group: the column that says whose number a row is; empty: all rows are one series.
        times: the column of times; rows of one number are put in their order. Empty: rows are in order.
        missing: further texts that mean "no value".
    """

    columns: tuple[str, ...]
    group: str = ""
    times: str = ""
    missing: tuple[str, ...] = ()


def lines(table: Table, form: Form) -> list[Line]:
    """All series of a table.

    Raises:
        DataError: a cell that is no number, no list of numbers or no time; names the row.
    """
    summaries = describe(table, form.columns)
    for column, summary in summaries.items():
        if summary.form not in ("number", "numbers") and not form.missing:  # else each cell is looked at below
            raise fault(f'{table.name}: "{column}" holds {infer(summary).reason}, and a forecast is of numbers.')
    listed = [c for c, s in summaries.items() if s.form == "numbers"]
    if not listed:
        return _long(table, form)
    if len(form.columns) > 1:
        raise fault(f'{table.name}: "{listed[0]}" holds lists of numbers.   Forecast one such column')
    return _wide(table, form)


def _cell(value: Any, form: Form) -> Any:
    return None if missing(value) or (isinstance(value, str) and (not value or value in form.missing)) else value


def _read(table: Table, row: int, column: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except DataError as error:
        raise fault(f"{table.place(row, column)}: {error}") from None


def _wide(table: Table, form: Form) -> list[Line]:
    (column,) = form.columns
    wanted = [c for c in (column, form.group, form.times) if c]
    found: list[Line] = []
    for chunk in table.chunks(wanted):
        for i in range(len(chunk)):
            row = chunk.first + i
            x = _read(table, row, column, lambda v: numbers(v, holes=True), _cell(chunk.columns[column][i], form))
            x = x[:, None] if x.ndim == 1 else x
            if found and x.shape[1] != found[0].values.shape[1]:
                raise fault(
                    f"{table.place(row, column)}: {x.shape[1]} channels, the first row has {found[0].values.shape[1]}"
                )
            times = None
            if form.times:
                times = _read(table, row, form.times, _seconds, chunk.columns[form.times][i])
                if len(times) != len(x) or (np.diff(times) < 0).any():
                    raise fault(
                        f"{table.place(row, form.times)}: {len(times)} times of {len(x)} numbers, or not in order"
                    )
            found.append(Line(chunk.columns[form.group][i] if form.group else row, x, times))
    return found


def _seconds(cell: Any) -> NDArray[np.float64]:
    values = cell.replace(",", " ").replace(";", " ").split() if isinstance(cell, str) else cell
    if not isinstance(values, Sequence | np.ndarray):
        raise DataError("expected a list of times")
    return np.array([seconds(v) for v in values], np.float64)


def _long(table: Table, form: Form) -> list[Line]:
    values: dict[Any, list[list[float]]] = {}
    times: dict[Any, list[float]] = {}
    wanted = [c for c in dict.fromkeys((*form.columns, form.group, form.times)) if c]
    for chunk in table.chunks(wanted):
        for i in range(len(chunk)):
            row, name = chunk.first + i, chunk.columns[form.group][i] if form.group else table.name
            if missing(name):
                raise fault(f"{table.place(row, form.group)}: is empty, and it says whose number this is.")
            cells = [_cell(chunk.columns[c][i], form) for c in form.columns]
            values.setdefault(name, []).append(
                [
                    np.nan if cell is None else _read(table, row, c, lambda v: within(number(v)), cell)
                    for c, cell in zip(form.columns, cells, strict=True)
                ]
            )
            if form.times:
                times.setdefault(name, []).append(_read(table, row, form.times, seconds, chunk.columns[form.times][i]))
    found = []
    for name, x in values.items():
        line = np.array(x, np.float64)
        if not form.times:
            found.append(Line(name, line))
            continue
        when = np.array(times[name])
        order = np.argsort(when, kind="stable")
        twice = np.flatnonzero(np.diff(when[order]) == 0)
        if len(twice):
            row = order[twice[0] + 1] + 1
            whose = f' of {form.group} "{name}"' if form.group else ""
            cure = "" if form.group else "   If the rows are of several series, say data.group=COLUMN"
            raise fault(f'{table.name}: "{form.times}": number {row}{whose} has a time that another has too.{cure}')
        found.append(Line(name, line[order], when[order]))
    return found


class Series(Table):
    """What the two tables of series share: where they stand, and the names of what is made of them.

    Args:
        table: the data.
        form: where its series stand.
        history: the most samples that are told of a past.
    """

    def __init__(self, table: Table, form: Form, history: int):
        self.table, self.form, self.history = table, form, history
        self.root = table.root
        self.past = form.columns[0] if len(form.columns) == 1 else "history"
        self.future = "future" if self.past != "future" else "next"

    @cached_property
    def lines(self) -> list[Line]:
        """All series."""
        return lines(self.table, self.form)

    @cached_property
    def times(self) -> str:
        """The column of a past's times; empty where they tell nothing: there are none, or all are equally far apart."""
        gaps = [np.diff(line.times) for line in self.lines if line.times is not None and len(line.times) > 1]
        if not gaps:
            return ""
        every = np.concatenate(gaps)
        return self.form.times if every.max() > 1.5 * np.median(every) else ""

    def fingerprint(self) -> str:
        """A hash of the data and of how they are cut."""
        return sha256(repr((self.table.fingerprint(), self.form, self.history, *self._cut())).encode()).hexdigest()

    def _cut(self) -> tuple[Any, ...]:
        return ()

    def _past(self, line: Line, end: int) -> dict[str, Any]:
        cut = slice(max(0, end - self.history), end)
        found = {self.past: _flat(line.values[cut])}
        if self.form.times and line.times is not None:
            found[self.form.times] = line.times[cut]
        if self.form.group:
            found[self.form.group] = line.name
        return found

    @property
    def _known(self) -> list[str]:
        return [self.past, *(c for c in (self.form.group, self.form.times) if c)]


class Futures(Series):
    """A row for every place where a series can be cut: up to K samples before it, and the H after it.

    Columns: the past, under the name of what is forecast; ``future``; ``split``; and those of group and times.

    Parted by time: of each series, the last part is for the test, the part before for validation, the rest for training,
    by their shares of its length and at least H each. A row is for the part that its whole future lies in; a future that
    lies in two parts is left out. So no number that is asked for in one part is asked for, or known, in an earlier one;
    what comes before a part is known in it, as it would be.

    Args:
        table: the data.
        form: where its series stand.
        horizon: H.
        history: K.
        shares: for train, val and test.
        alone: the part that all rows are for; empty: by the shares.
    """

    split = "split"

    def __init__(
        self,
        table: Table,
        form: Form,
        *,
        horizon: int,
        history: int,
        shares: Sequence[float] = (0.8, 0.1, 0.1),
        alone: str = "",
    ):
        super().__init__(table, form, history)
        self.name = f"{table.name} in windows"
        self.horizon, self.shares, self.alone = horizon, tuple(shares), alone

    @property
    def columns(self) -> list[str]:
        """Those named above."""
        return [*self._known, self.future, "split"]

    def _cut(self) -> tuple[Any, ...]:
        return self.horizon, self.shares, self.alone

    def bounds(self, length: int) -> list[tuple[str, int, int]]:
        """(part, first sample, end) of a series of some length: where the futures of each part lie."""
        if self.alone:
            return [(self.alone, 0, length)]
        found, end = [], length
        for part, share in ((2, self.shares[2]), (1, self.shares[1])):
            start = end - max(self.horizon, round(share * length)) if share > 0 else end
            found.append((PARTS[part], start, end))
            end = start
        return [(PARTS[0], 0, end), *reversed(found)]

    @cached_property
    def windows(self) -> list[tuple[int, int, str]]:
        """(line, cut, part) of each row, the first future sample being the cut.

        Raises:
            DataError: a part would have none.
        """
        least, found = min(self.horizon, self.history), []
        for i, line in enumerate(self.lines):
            known = np.logical_or.reduce(np.isfinite(line.values), axis=1)
            before = np.concatenate([[0], np.cumsum(known)])
            for part, start, end in self.bounds(len(known)):
                for cut in range(max(start, least), end - self.horizon + 1):
                    past = before[cut] - before[max(0, cut - self.history)]
                    if past and before[cut + self.horizon] > before[cut]:
                        found.append((i, cut, part))
        longest = max((len(line.values) for line in self.lines), default=0)
        wanted = [self.alone] if self.alone else [p for p, s in zip(PARTS, self.shares, strict=True) if s > 0]
        lacking = [p for p in wanted if not any(part == p for _, _, part in found)]
        if lacking:
            needed = (len(wanted) + 1) * self.horizon
            raise fault(
                f"{self.table.name}: no future of {self.horizon} steps for {' and '.join(lacking)}: the longest series has "
                f"{longest} numbers, expected {needed} or more.   Lower output.horizon"
            )
        stride = -(-len(found) // MOST)
        return [w for w in found if (w[1] - w[0]) % stride == 0] if stride > 1 else found

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """Rows, series after series."""
        for first in range(0, len(self.windows), ROWS):
            rows = []
            for i, cut, part in self.windows[first : first + ROWS]:
                line = self.lines[i]
                after = {self.future: _flat(line.values[cut : cut + self.horizon]), "split": part}
                rows.append(self._past(line, cut) | after)
            yield Chunk(first + 1, {c: [row[c] for row in rows] for c in columns})


class Presents(Series):
    """A row a series: what is known of it at its end, to be forecast from."""

    def __init__(self, table: Table, form: Form, *, history: int):
        super().__init__(table, form, history)
        self.name = table.name

    @property
    def columns(self) -> list[str]:
        """The past, group and times."""
        return self._known

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """One chunk."""
        rows = [self._past(line, len(line.values)) for line in self.lines]
        yield Chunk(1, {c: [row[c] for row in rows] for c in columns})


def _flat(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x[:, 0] if x.shape[1] == 1 else x
