"""Forecasts of a series from its own past: what ``output.horizon`` without ``--from`` makes of a table."""

from typing import Any

from mapsto.data.forecast import Form, Futures, Presents
from mapsto.data.kind import describe
from mapsto.data.source import Table
from mapsto.data.table import open_table
from mapsto.errors import ConfigError
from mapsto.tasks.config import Config
from mapsto.tasks.section import DataConfig

__all__ = ["columns", "forecasting", "history", "in_windows", "reading", "to_go_on"]


def forecasting(config: Config) -> bool:
    """Whether series are forecast from their own past."""
    return config.output.horizon > 0 and not config.data.inputs


def history(config: Config) -> int:
    """The most samples of a past."""
    patch, limit = config.input.patch or 1, config.input.limit
    said = config.output.history or max(64, 4 * config.output.horizon)
    return min(said, limit * patch) if limit else said


def reading(config: Config) -> dict[str, Any]:
    """How a series is read: samples an item, and the most items, which of a past is the whole of it."""
    patch = config.input.patch or 1
    limit = -(-history(config) // patch) if forecasting(config) else config.input.limit
    return {"patch": patch, "limit": limit, "relative": bool(config.input.relative)}


def in_windows(config: Config, table: Table, part: str = "") -> Table:
    """A table cut into pasts and futures, if series are forecast from their own past; else as it is.

    Args:
        config: of the run.
        table: the data.
        part: what all of it is for; "train" leaves what there is no file for to be parted by time, and so does "".

    Raises:
        ConfigError: settings that part rows in another way than by time.
    """
    if not forecasting(config) or isinstance(table, Futures):
        return table
    data = config.data
    if data.folds or data.split not in ("", "split") or (data.split == "split" and "split" in table.columns):
        key = "data.folds" if data.folds else "data.split"
        raise ConfigError(f"{key}: forecasts of a series from its own past are parted by time.   Leave it out")
    _, val, test = (
        share if not path else 0.0 for share, path in zip(data.shares, ("", data.val, data.test), strict=True)
    )
    return Futures(
        table,
        _form(data, table),
        horizon=config.output.horizon,
        history=history(config),
        shares=(1 - val - test, val, test),
        alone="" if part == "train" else part,
    )


def to_go_on(config: Config, past: str, table: Table) -> Table:
    """The series of a table that are to be forecast, if series are forecast from their own past; else the table.

    Args:
        config: of the run.
        past: what the run calls the series.
        table: the data; a column that is alone fits under any name, and is one series if it holds numbers.
    """
    if not forecasting(config):
        return table
    data = config.data
    if len(table.columns) == 1:
        table = open_table({past: table.column(table.columns[0])}, root=table.root)
        data = data.model_copy(update={"targets": [past], "group": "", "times": ""})
    elif not data.targets:
        data = data.model_copy(update={"targets": [past]})
    return Presents(table, _form(data, table), history=history(config))


def columns(config: DataConfig, table: Table) -> DataConfig:
    """The settings that name the columns of a table in windows."""
    if not isinstance(table, Futures):
        return config
    said = {"inputs": [f"{table.past}:series"], "targets": [f"{table.future}:series"], "times": table.times}
    return config.model_copy(update=said)


def _names(data: DataConfig) -> list[str]:
    return [name.rpartition(":")[0] if name.endswith((":number", ":series")) else name for name in data.targets]


def _form(data: DataConfig, table: Table) -> Form:
    named = _names(data)
    apart = {data.group, data.times, table.split}
    if not named:
        others = [c for c in table.columns if c not in apart]
        found = [c for c, s in describe(table, others).items() if s.form in ("number", "numbers")]
        if len(found) != 1:
            there = f"of {', '.join(found)}" if found else f"({table.name} has no column of numbers)"
            raise ConfigError(f"which column is to be forecast?   Say --to with one {there}")
        named = found
    table.require(*named, form="--to {}")
    for key, name in (("group", data.group), ("times", data.times)):
        if name:
            table.require(name, form=f"data.{key}={{}}")
        if name in named:
            raise ConfigError(f'"{name}" is both what is forecast and data.{key}.   Say another --to')
    return Form(tuple(named), data.group, data.times, tuple(data.missing))
