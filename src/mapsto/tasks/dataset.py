"""From a source to batches: rows converted, split, measured on the training part, and kept in a ragged store."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mapsto import kinds
from mapsto.data.folder import Folder
from mapsto.data.kind import Summary, describe
from mapsto.data.passage import Passages, is_text
from mapsto.data.source import Table
from mapsto.data.split import Split
from mapsto.data.store import Store, cache_folder, cached, open_store
from mapsto.data.table import open_table
from mapsto.errors import ConfigError, DataError
from mapsto.models.mapper import Mapper
from mapsto.ragged import Ragged
from mapsto.tasks import prepared
from mapsto.tasks.again import itself
from mapsto.tasks.cell import FILES
from mapsto.tasks.config import Config
from mapsto.tasks.demo import demo_table
from mapsto.tasks.future import columns, in_windows, reading
from mapsto.tasks.prepared import Measured
from mapsto.tasks.schema import Errors, Field, Row, Schema, resolve
from mapsto.tasks.survey import divide, survey
from mapsto.vocabulary import Vocabulary

__all__ = ["Dataset", "Measured", "convert", "prepare"]

Settings = dict[str, Any]
CHUNK = 1024


@dataclass(frozen=True)
class Dataset:
    """Rows ready to be gathered.

    Attributes:
        schema: what is mapped to what.
        measured: settings of inputs and output.
        store: every readable row.
        split: the side of each row of the store.
        groups: the group of each row, or None.
        places: (table's name, row number) of each row.
        summaries: of the columns.
        errors: the rows left out.
        sources: (name, SHA-256) of each table.
    """

    schema: Schema
    measured: Measured
    store: Store
    split: Split
    groups: NDArray | None
    places: list[tuple[str, int]]
    summaries: dict[str, Summary]
    errors: Errors
    sources: list[tuple[str, str]]

    def facts(self) -> dict[str, Any]:
        """What tells whether the data have changed, and which of them: JSON values."""
        sources = {f"{i}: {name}": digest for i, (name, digest) in enumerate(self.sources)}
        return {"rows": self.split.counts, "sources": sources, "fingerprint": self.fingerprint()}

    def fingerprint(self) -> str:
        """A hash of every row and its side, to tell whether the data have changed."""
        whole = hashlib.sha256(self.split.sides.tobytes())
        for name, column in sorted(self.store.columns.items()):
            whole.update(name.encode())
            whole.update(np.ascontiguousarray(column.offsets).tobytes())
            whole.update(np.ascontiguousarray(column.values).tobytes())
        return whole.hexdigest()


def tables(config: Config, source: Any = None) -> list[tuple[Table, str]]:
    """The tables to read, each with the part it is for (empty: to be split)."""
    data = config.data
    root = data.root or None
    if source is None and data.source.startswith("demo:"):
        source = demo_table(data.source)
    text = _text(config) if source is None else None
    if text is not None:
        return [(Passages.of(text, data.shares), "")]
    first = open_table(data.source if source is None else source, root=root, quote=data.quote)
    found = [(first, "train" if data.val or data.test else "")]
    for part, path in (("val", data.val), ("test", data.test)):
        if path:
            found.append((open_table(path, root=root, quote=data.quote), part))
    return [(in_windows(config, table, part), part) for table, part in found]


def _text(config: Config) -> Path | None:
    """The text file that a language model is to read whole: one of which no columns are named."""
    data, path = config.data, Path(config.data.source).expanduser()
    # once it was read whole, the settings say by which column it was parted
    named = data.inputs or data.targets or data.split not in ("", Passages.split) or data.val or data.test
    return path if not named and is_text(path) else None


def prepare(
    config: Config, source: Any = None, *, schema: Schema | None = None, measured: Measured | None = None
) -> Dataset:
    """Read, split, measure and store.

    Args:
        config: what the user said; ``data.source`` names the file unless ``source`` is given.
        source: rows in memory, or a table.
        schema: what is mapped to what, if it is known already.
        measured: what the training rows told, if it is known already.
    """
    parts = tables(config, source)
    sources = [(t.name, t.fingerprint()) for t, _ in parts]
    place = prepared.place(sources, [part for _, part in parts], config)
    if schema is None and measured is None and (found := prepared.recall(place)):
        config.data.split = found["split_column"]
        with suppress(DataError):  # the store is damaged or gone: it is built again below
            return Dataset(**found["dataset"], store=open_store(found["store"]), sources=sources)
    table = parts[0][0]
    known, summaries = (itself if config.model.latent else resolve)(columns(config.data, table), table, describe)
    fresh = schema is None and measured is None
    schema = schema or _said(known, config)
    _odd(schema, summaries, table, config)
    errors = Errors(config.data.skip_bad)
    seen = survey(parts, schema, config, errors)
    errors.settle()
    with _of(table):
        division = divide(config, seen, [part for _, part in parts])
    train = set(division.rows("train").tolist())
    with _of(table):
        measured = measured or measure(schema, partial(_training, parts, schema, train), config)
    model_parts = Parts.build(schema, measured, dim=8)
    settings = {"schema": schema.to_json(), "measured": fingerprint(measured), "skip": config.data.skip_bad}
    named = _names_files(schema, table)
    if named:  # what the files hold is not in the fingerprint of the table that names them
        settings["content"] = hashlib.sha256(np.array(seen.keys, np.uint64).tobytes()).hexdigest()
    folder = cache_folder("+".join(digest for _, digest in sources), settings)
    late = Errors(config.data.skip_bad)
    store = cached(folder, lambda: _parsed(parts, schema, model_parts, late))
    kept = store.columns["row"].values  # rows whose values no input or output could parse are missing here
    division = replace(division, sides=division.sides[kept])
    groups = np.array([str(seen.groups[i]) for i in kept]) if config.data.group else None
    places = [(parts[t][0].name, row) for t, row in (seen.places[i] for i in kept)]
    dataset = Dataset(schema, measured, store, division, groups, places, summaries, errors, sources)
    if fresh and not named:
        prepared.remember(place, dataset, folder, config.data.split)
    return dataset


def _said(schema: Schema, config: Config) -> Schema:
    """The schema with its output of tokens in the kind that the settings ask for."""
    if config.output.autoregressive:
        return schema
    if schema.output.kind != "sequence" or not schema.inputs:
        what = "a language model goes on from what it wrote" if not schema.inputs else "nothing is written here"
        raise ConfigError(f"output.autoregressive=false is for texts and lists of symbols: {what}.   Leave it out")
    return replace(schema, output=replace(schema.output, kind="parallel"))


@contextmanager
def _of(table: Table) -> Iterator[None]:
    """Errors about all rows say whose rows."""
    try:
        yield
    except DataError as error:
        text = str(error)
        raise DataError(text if text.startswith(table.name) else f"{table.name}: {text}") from None


def _names_files(schema: Schema, table: Table) -> bool:
    """Whether cells are paths of pictures or music, other than those of a folder, whose fingerprint covers them."""
    parts = [*schema.inputs, schema.output]
    named = [column for field in parts for column, kind in field.columns if kind in FILES]
    if not named or isinstance(table, Folder):
        return False
    chunks = table.chunks(named)
    return any(isinstance(cell, str) for chunk in chunks for column in chunk.columns.values() for cell in column)


def _odd(schema: Schema, summaries: Mapping[str, Summary], table: Table, config: Config) -> None:
    """Refuse a column of numbers with a few cells that are none, at once and with its count."""
    for field in [*schema.inputs, schema.output]:
        for column, kind in field.columns:
            summary = summaries.get(column)
            if summary is None or kind != "number" or summary.form != "number" or config.data.skip_bad:
                continue
            odd = [(row, text) for row, text in summary.odd if text not in config.data.missing]
            if odd:
                row, text = odd[0]
                raise DataError(
                    f'{table.name} row {row}: "{column}": {text} is no number.   {summary.oddities} such rows of '
                    f'{summary.rows}.   Use {column}:label, or data.missing=["{text.strip(chr(34))}"] if it means no value'
                )


def _training(parts: list[tuple[Table, str]], schema: Schema, train: set[int]) -> Iterator[Row]:
    ignored = Errors(1.0)
    index = 0
    for number, (table, _) in enumerate(parts):
        for row in schema.rows(table, ignored, index=number):
            if index in train:
                yield row
            index += 1


def measure(schema: Schema, rows: Any, config: Config) -> Measured:
    """Let every input and the output measure the training rows.

    Args:
        schema: what they read.
        rows: a function that streams the training rows anew.
        config: options for inputs and output.
    """
    options = config.input.model_dump()
    inputs: list[dict[str, Any]] = []
    for i, field in enumerate(schema.inputs):
        cls = kinds.find("inputs", field.kind)
        given = options | {
            "columns": field.columns,
            "stem": options["window"] if field.kind == "sequence" else options["stem"],
        }
        if field.kind == "series":
            given |= reading(config)
        with _named(field):
            inputs.append(cls.measure(chunked(row.inputs[i] for row in rows()), **given))
    written = config.output.model_dump()
    series = [m if f.kind == "series" else {} for f, m in zip(schema.inputs, inputs, strict=True)]
    if not schema.inputs:
        written |= {"limit": 0, "window": config.output.limit}
    if schema.again:  # a cell may be missing; and what is said again goes on from nothing
        written |= {"holes": True, "relative": False}
    if schema.output.kind == "image":
        if config.input.shift or config.input.flip:
            raise ConfigError(
                "input.shift and input.flip move what is read, and not what is to be said again.   Leave them out"
            )
        patch = config.input.patch
        written |= {"side": config.input.side, "patch": [patch, patch] if patch else []}
    with _named(schema.output):
        output = kinds.find("outputs", schema.output.kind).measure(
            chunked(row.target for row in rows()),
            columns=schema.output.columns,
            smoothing=config.train.smoothing,
            sigma=config.model.sigma,
            before=series,
            **written,
        )
    if schema.output.kind == "image" and not config.input.patch:  # one patch, which is the whole picture
        inputs[0] |= {"patch": max(output["size"]), "stem": "patches"}
    if config.input.relative is None and output.get("source", -1) >= 0:
        inputs[output["source"]]["relative"] = True
    return Measured(inputs, output)


def chunked(values: Iterable[Any]) -> Iterator[list[Any]]:
    """Lists of up to 1,024 values."""
    source = iter(values)
    while chunk := list(islice(source, CHUNK)):
        yield chunk


def fingerprint(measured: Measured) -> Any:
    """Measured settings as plain JSON, a vocabulary by its digest."""

    def plain(value: Any) -> Any:
        if isinstance(value, Vocabulary):
            return {value.kind: hashlib.sha256(value.dump()).hexdigest()}
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return value

    return [plain(m) for m in [*measured.inputs, measured.output]]


@dataclass(frozen=True)
class Parts:
    """Inputs and output as modules, with the prefixes of their columns in a store."""

    schema: Schema
    inputs: list[Any]
    output: Any

    @classmethod
    def build(cls, schema: Schema, measured: Measured, dim: int) -> "Parts":
        """Make them of one width."""
        with torch.random.fork_rng(devices=[]):
            inputs = [
                kinds.find("inputs", field.kind)(dim, **settings)
                for field, settings in zip(schema.inputs, measured.inputs, strict=True)
            ]
            return cls(schema, inputs, kinds.find("outputs", schema.output.kind)(dim, **measured.output))

    def parse(self, row: Row) -> dict[str, NDArray]:
        """One row's arrays, by prefixed name."""
        arrays: dict[str, NDArray] = {}
        for i, (field, one, value) in enumerate(zip(self.schema.inputs, self.inputs, row.inputs, strict=True)):
            arrays |= {f"{i}.{name}": array for name, array in _parse(field, one, value).items()}
        if row.target is not None:
            target = _parse(self.schema.output, self.output, row.target)
            arrays |= {f"t.{name}": array for name, array in target.items()}
        return arrays


def _parse(field: Field, part: Any, value: Any) -> dict[str, NDArray]:
    with _named(field):
        arrays: dict[str, NDArray] = part.parse(value)
    return arrays


@contextmanager
def _named(field: Field) -> Iterator[None]:
    """Errors about values say of which column."""
    try:
        yield
    except DataError as error:
        text = str(error)
        if text.startswith('"'):
            raise
        raise DataError(f'"{field.name}" {text}' if text.startswith("is ") else f'"{field.name}": {text}') from None


def _parsed(
    parts: list[tuple[Table, str]], schema: Schema, model_parts: Parts, late: Errors
) -> Iterator[dict[str, NDArray]]:
    ignored = Errors(1.0)
    for index, (table, _) in enumerate(parts):
        for row in schema.rows(table, ignored, index=index):
            try:
                arrays = model_parts.parse(row)
                yield arrays | {"row": np.array(late.rows)}
            except DataError as error:
                late.add(table, row.number, str(error))
            late.rows += 1
    late.settle()


def convert(
    table: Table, schema: Schema, model: Mapper, *, targets: bool, skip: float | None = None
) -> tuple[Store, list[int], Errors]:
    """Rows of new data for a trained model, in memory; with the numbers of the rows that could be read."""
    errors = Errors(skip)
    parts = Parts(schema, list(model.inputs), model.output)
    columns: dict[str, list[NDArray]] = {}
    numbers = []
    for row in schema.rows(table, errors, targets=targets):
        try:
            arrays = parts.parse(row)
        except DataError as error:
            errors.add(table, row.number, str(error))
            continue
        for name, array in arrays.items():
            columns.setdefault(name, []).append(array)
        numbers.append(row.number)
    errors.settle()
    if not numbers:
        raise DataError(f"{table.name} has no readable row")
    return Store.of({name: Ragged.pack(arrays) for name, arrays in columns.items()}), numbers, errors
