"""What is mapped to what: the columns of a table as inputs and output of a model, and the conversion of a row's cells."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mapsto import kinds
from mapsto.data.fault import fault
from mapsto.data.kind import Summary, infer
from mapsto.data.source import Chunk, Table
from mapsto.data.value import missing
from mapsto.errors import ConfigError, DataError, did_you_mean
from mapsto.tasks.cell import FILES, SOURCES, content_of, convert, even, same_length, times
from mapsto.tasks.section import DataConfig

__all__ = ["USUAL", "Errors", "Field", "Row", "Schema", "constant", "fields", "resolve", "spec"]

TARGETS = ("label", "labels", "number", "items", "sequence", "series", "music")
NOTHING = "nothing"
USUAL = ("label", "target", "class", "y")


@dataclass(frozen=True)
class Field:
    """One input, or the output, of a model.

    Attributes:
        name: how it is called.
        kind: of the open set: a file of ``inputs/`` or ``outputs/``.
        columns: (column, kind of its cells) for each column it reads.
    """

    name: str
    kind: str
    columns: list[tuple[str, str]]


@dataclass(frozen=True)
class Row:
    """One row, converted.

    Attributes:
        table: its number among the tables read.
        number: of the row in its table.
        inputs: a value for each input.
        target: the output's value, or None where there is no target.
        raw: the source cells as they stand, for the hash of the content.
    """

    table: int
    number: int
    inputs: list[Any]
    target: Any
    raw: tuple[Any, ...]


@dataclass(frozen=True)
class Schema:
    """Inputs and output of a map, by column.

    Attributes:
        inputs: one or more; none for a language model.
        output: what is predicted.
        times: the column of a series' times, or empty.
        missing: texts that mean "no value".
    """

    inputs: list[Field]
    output: Field
    times: str = ""
    missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values; :meth:`from_json` reads them."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Schema":
        """The inverse of :meth:`to_json`."""

        def field(part: Mapping[str, Any]) -> Field:
            return Field(part["name"], part["kind"], [(c, k) for c, k in part["columns"]])

        return cls(
            [field(p) for p in content["inputs"]], field(content["output"]), content["times"], tuple(content["missing"])
        )

    @property
    def again(self) -> bool:
        """Whether what is read is what is said: then a cell of a table may be missing on both sides."""
        return bool(self.inputs) and self.inputs[0].columns == self.output.columns

    @property
    def sources(self) -> list[str]:
        """The columns read for the inputs."""
        names = [c for field in self.inputs for c, _ in field.columns]
        return names + ([self.times] if self.times else [])

    @property
    def targets(self) -> list[str]:
        """The columns read for the output."""
        return [c for c, _ in self.output.columns]

    def rows(self, table: Table, errors: "Errors", *, index: int = 0, targets: bool = True) -> Iterator[Row]:
        """Every row that can be read, converted; the others go to ``errors``."""
        wanted = list(dict.fromkeys(self.sources + (self.targets if targets else [])))
        seen: dict[str, tuple[str, int]] = {}
        for chunk in table.chunks(wanted):
            for i in range(len(chunk)):
                try:
                    row = self._row(table, chunk, i, index, targets)
                    self._even(row, seen)
                    yield row
                except DataError as error:
                    errors.add(table, chunk.first + i, str(error))
                errors.rows += 1

    def _even(self, row: Row, seen: dict[str, tuple[str, int]]) -> None:
        # A column's cells are all of the form of the first one: found here, where the row is known.
        for field, value in zip(self.inputs, row.inputs, strict=True):
            if field.kind == "vector":
                for (column, kind), cell in zip(field.columns, value, strict=True):
                    if kind == "number" and cell is not None:
                        even(column, cell, row.number, seen)
            elif field.columns[0][1] in ("series", "sequence"):
                even(field.name, value[0] if isinstance(value, tuple) else value, row.number, seen)
        if row.target is not None and self.output.columns[0][1] in ("sequence", "series"):
            even(self.output.name, row.target[0], row.number, seen)
        if row.target is not None and self.output.kind == "vector":
            for (column, kind), cell in zip(self.output.columns, row.target, strict=True):
                if kind == "number" and cell is not None:
                    even(column, cell, row.number, seen)

    def _row(self, table: Table, chunk: Chunk, i: int, index: int, targets: bool) -> Row:
        cells = {name: self._cell(column[i]) for name, column in chunk.columns.items()}
        inputs = [self._input(field, cells, table) for field in self.inputs]
        target = None
        if targets:
            items = self.output.kind == "items"
            holes = self.again and self.output.kind == "vector"
            target = tuple(
                None
                if holes and cells[c] is None
                else _file(cells[c], c, table)
                if k in FILES
                else convert(cells[c], f"items-{k}" if items else k, c)
                for c, k in self.output.columns
            )
            if self.output.kind == "items":
                (answer,) = target
                assert answer is not None
                same_length(self.inputs[0].name, self.inputs[0].kind, inputs[0], answer, self.output.name)
        read = self.inputs or [self.output]  # a language model has no inputs: a row is what it writes
        raw = tuple(content_of(cells[c], k, table) for f in read for c, k in f.columns if c in cells)
        return Row(index, chunk.first + i, inputs, target, raw)

    def _cell(self, value: Any) -> Any:
        if missing(value) or (isinstance(value, str) and value in self.missing):
            return None
        return value

    def _input(self, field: Field, cells: Mapping[str, Any], table: Table) -> Any:
        if field.kind == "vector":
            return tuple(None if cells[c] is None else convert(cells[c], k, c) for c, k in field.columns)
        ((column, kind),) = field.columns
        cell = cells[column]
        if kind in FILES:
            return _file(cell, column, table)
        value = convert(cell, kind, column)
        if kind == "series" and self.times:
            stamps = cells[self.times]
            if stamps is None:
                raise DataError(f'"{self.times}" is empty')
            try:
                return value, times(stamps)
            except DataError as error:
                raise DataError(f'"{self.times}": {error}') from None
        return value


def _file(cell: Any, column: str, table: Table) -> Any:
    """What a cell holds that may be the path of a file: the path, as far as it may be followed, or the bytes."""
    if cell is None:
        raise DataError(f'"{column}" is empty')
    try:
        return table.file(cell) if isinstance(cell, str) else cell
    except DataError as error:
        raise DataError(f'"{column}": {error}') from None


class Errors:
    """Rows that could not be read, counted, the first ones kept.

    Args:
        skip: the share that may be left out; None where none may be, and nobody is asked.
    """

    def __init__(self, skip: float | None = 0.0):
        self.skip = skip
        self.rows = 0
        self.found: list[tuple[str, int, str]] = []
        self.count = 0

    def add(self, table: Table, row: int, message: str) -> None:
        """One more."""
        self.count += 1
        if len(self.found) < 20:
            self.found.append((table.name, row, message))

    def settle(self) -> None:
        """Refuse, unless so many may be skipped.

        Raises:
            DataError: the first row, how many there are, and what to do.
        """
        if self.count and self.count > (self.skip or 0) * self.rows:
            name, row, message = self.found[0]
            share = self.count / max(1, self.rows)
            allow = next(s for s in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if s >= share)
            many = f"   {self.count} such rows of {self.rows}." if self.count > 1 else ""
            end = "" if message.endswith((".", "?")) else "."
            cure = "" if self.skip is None else f"   Mend the file, or drop such rows with data.skip_bad={allow:g}"
            raise fault(f"{name} row {row}: {message}{end}{many}{cure}")


def spec(text: str, table: Table, role: str) -> list[tuple[str, str]]:
    """``name``, ``name:kind`` or ``name,name:kind`` as (column, kind or empty)."""
    form = f"--{role} {{}}"
    if text in table.columns:
        return [(text, "")]
    names, colon, kind = text.rpartition(":")
    known = SOURCES if role == "from" else TARGETS
    if not colon:
        names, kind = text, ""
    elif kind not in known:
        table.require(names, form=form)
        raise ConfigError(
            f'--{role} {text}: kind "{kind}" is not one of {", ".join(known)}.{did_you_mean(kind, known)}'
        )
    columns = [names] if names in table.columns else names.split(",")
    table.require(*columns, form=form)
    return [(column, kind) for column in columns]


def resolve(config: DataConfig, table: Table, describe: Any) -> tuple[Schema, dict[str, Summary]]:
    """Decide what every column is.

    Args:
        config: the columns as the user named them; with none, the target is the column called label, target, class or
            y, and all others are sources. A table of one column of texts is for a language model, and so is any
            target with ``nothing`` as its source.
        table: the data.
        describe: summarises columns (:func:`mapsto.data.kind.describe`).

    Raises:
        ConfigError: an unknown kind, or no way to tell the target.
    """
    special = ({config.split, config.group, config.times} - {""}) | ({table.split} if table.split else set())
    if config.targets:
        targets = [c for text in config.targets for c in spec(text, table, "to")]
    else:
        usual = [c for c in table.columns if c.lower() in USUAL]
        alone = [c for c in table.columns if c not in special]
        if not usual and len(alone) == 1 and not config.inputs:
            usual = alone
        if len(usual) != 1:
            raise ConfigError(f"which column is to be predicted?   Say --to with one of {', '.join(table.columns)}")
        targets = [(usual[0], "")]
    nothing = config.inputs == [NOTHING] and NOTHING not in table.columns
    if nothing:
        sources = []
    elif config.inputs:
        sources = [c for text in config.inputs for c in spec(text, table, "from")]
    else:
        taken = special | {c for c, _ in targets}
        sources = [(c, "") for c in table.columns if c not in taken]
    written = len(targets) == 1 and targets[0][1] in ("", "sequence", "music")
    if not sources and not (written and set(table.columns) - special == {targets[0][0]}) and not nothing:
        raise ConfigError("no column is left to map from.   Say --from with one or more columns")
    for name, key in ((config.split, "split"), (config.group, "group"), (config.times, "times")):
        if name:
            table.require(name, form=f"data.{key}={{}}")
    both = {c for c, _ in sources} & {c for c, _ in targets}
    if both:
        raise ConfigError(f'"{sorted(both)[0]}" is both source and target.   Leave it out of --from')
    summaries = describe(table, [c for c, _ in sources + targets])
    inputs = fields(table, sources, summaries, config)
    output = _output(targets, summaries, inputs)
    for column, kind in output.columns if output.kind == "vector" else []:
        s = summaries[column]
        if kind == "label" and s.distinct == 1:
            raise fault(f'{table.name}: "{column}" has one class ({s.examples[0]}), two are needed.   Say another --to')
        if kind == "number" and constant(s):
            value = s.examples[0] if s.range is None else f"{s.range[0]:g}"
            raise fault(f'{table.name}: "{column}" is {value} in every row: nothing to learn.   Say another --to')
    return Schema(inputs, output, config.times, tuple(config.missing)), summaries


def constant(summary: Summary) -> bool:
    """Whether a column has one value in all rows."""
    span = summary.range
    return summary.distinct == 1 or (span is not None and span[0] == span[2] and not summary.oddities)


def fields(
    table: Table, sources: list[tuple[str, str]], summaries: Mapping[str, Summary], config: DataConfig
) -> list[Field]:
    """What is read of these columns: numbers and categories together as one table, others each by itself."""
    found: list[Field] = []
    cells: list[tuple[str, str]] = []
    for column, given in sources:
        guess = infer(summaries[column])
        kind = given or guess.kind
        if summaries[column].form == "nothing":
            raise fault(f'{table.name}: "{column}" has no value in any row.   Leave it out of --from')
        if kind in ("number", "label", "vector"):
            cells.append((column, "label" if kind == "label" else "number"))
        elif kind in kinds.names("inputs") or kind == "music":  # music is a sequence of events
            found.append(Field(column, "sequence" if kind == "music" else kind, [(column, kind)]))
        else:
            raise ConfigError(
                f'"{column}" holds {guess.reason}, and kind "{kind}" cannot be mapped from.   '
                f"Kinds: {', '.join(SOURCES)}; say --from {column}:KIND, or leave it out"
            )
    if cells:
        found.append(Field(cells[0][0] if len(cells) == 1 else "table", "vector", cells))
    return found


def _output(targets: list[tuple[str, str]], summaries: Mapping[str, Summary], inputs: list[Field]) -> Field:
    columns = []
    for column, given in targets:
        guess = infer(summaries[column], "target")
        kind = given or (guess.kind if inputs or guess.kind == "music" else "sequence")
        summary = summaries[column]
        uneven = summary.lengths is not None and summary.lengths[0] < summary.lengths[2]
        matching = len(inputs) == 1 and inputs[0].kind in ("sequence", "series") and len(targets) == 1
        longs = summary.lengths is not None and matching and summary.lengths == _lengths(summaries, inputs)
        if kind == "items" or (not given and kind in ("labels", "series") and longs):
            if not matching:
                raise ConfigError(
                    f'"{column}": an answer an item needs one sequence or series as input, and no other target'
                )
            inner = "number" if summary.form == "numbers" else "label"
            return Field(column, "items", [(column, inner)])
        if kind == "series" and (given or (matching and inputs[0].kind == "series" and uneven)):
            return _forecast(column, targets, summary, inputs)
        if kind == "series":
            kind = "number"
        if kind in ("sequence", "music"):
            if len(targets) > 1:
                raise ConfigError(f'"{column}" holds {guess.reason}: a sequence is written alone, with no other target')
            if kind == "sequence" and summary.form not in ("text", "texts", "number", "numbers"):
                raise ConfigError(f'"{column}" holds {guess.reason}, which are no texts and no lists of symbols')
            return Field(column, "sequence", [(column, kind)])
        if kind not in ("label", "labels", "number"):
            raise ConfigError(
                f'"{column}" holds {guess.reason}, and kind "{kind}" cannot be mapped to.   '
                f"Kinds: {', '.join(TARGETS)}; say --to {column}:KIND"
            )
        columns.append((column, kind))
    return Field(columns[0][0] if len(columns) == 1 else "targets", "vector", columns)


def _forecast(column: str, targets: list[tuple[str, str]], summary: Summary, inputs: list[Field]) -> Field:
    if len(targets) > 1:
        raise ConfigError(f'"{column}": a series is forecast alone, with no other target')
    if not inputs:
        raise ConfigError(
            f'"{column}": a forecast needs something to go by.   Say --from, or output.horizon=H to forecast the series '
            "from its own past"
        )
    if summary.form not in ("numbers", "number"):
        raise ConfigError(f'"{column}" holds {infer(summary, "target").reason}, and a series is a list of numbers')
    return Field(column, "series", [(column, "series")])


def _lengths(summaries: Mapping[str, Summary], inputs: list[Field]) -> tuple[int, int, int] | None:
    summary = summaries[inputs[0].columns[0][0]]
    return summary.lengths if summary.form in ("texts", "numbers") else None
