"""Mutants of whole maps: columns as numbers, labels, texts and series, through the commands' own path.

A model of its own says what each cell is. Some mutants only convert their rows; others go through all of ``prepare`` or
``check``: split, measures, store.
"""

import io
import json
import random
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from mapsto.data.kind import describe
from mapsto.data.table import open_table
from mapsto.tasks.check import check_data
from mapsto.tasks.config import Config
from mapsto.tasks.dataset import prepare
from mapsto.tasks.schema import Errors, resolve
from mapsto.tasks.section import DataConfig, InputConfig
from mutant import Mutant, Want

__all__ = ["draw_map"]

LARGEST = float(np.finfo(np.float32).max)
# fmt: off
NUMBERS = [
    "1", "-2.5", "+.5", "7.", "1e3", " 4 ", "007", "1E-400", "-0", "3.4e38", "1e39", "1e400", "-1e400", "nan", "NaN",
    "inf", "-Infinity", "1_000", "1,5", "1,000", "0x10", "0b1", "--1", "1e", "e5", ".", "１２", "٣", "²", "NA", "null",
    "None", "true", "1 2", "1\0", "\x1b[1m", "9" * 400, "0." + "0" * 400 + "1", "1e5000", "-", "+", "1.2.3", "½",
    "\u00a01",
]
# fmt: on
# fmt: off
LABELS = [
    "yes", "no", "007", "NA", "nan", "1e400", "2024-05-01", "yes ", "é", "１", "\x1b[31m", "true", "a|b", "x" * 300,
]
# fmt: on
# fmt: off
LISTS = [
    "1 2 3", "[1, 2, 3]", "1;2;3", "[1, null, 3]", "[NaN]", "[1e400, 1]", "[1e39]", "[1, [2]]", "[[1, 2], [3]]",
    "[[1],[2]]", "[1, 2", "1,,2", "1 x 3", "[true]", '["1"]', "[]", "５", "[null, null, 1]", "[[1], null]", "[1_0]",
    "[" * 2000, "{}",
]
# fmt: on


def number(cell: Any) -> float:
    """A number of a cell, or ValueError."""
    if isinstance(cell, bool) or cell is None:
        raise ValueError
    if isinstance(cell, str):
        text = cell.strip(" \t\n\r\x0b\x0c")
        mantissa, _, exponent = text.lower().partition("e")
        digits = mantissa[1:] if mantissa[:1] in ("+", "-") else mantissa
        power = exponent[1:] if exponent[:1] in ("+", "-") else exponent
        if digits.count(".") > 1 or not digits.replace(".", "") or set(digits) - set(string.digits + "."):
            raise ValueError
        if "e" in text.lower() and (not power or set(power) - set(string.digits)):
            raise ValueError
        cell = float(text)
    if not isinstance(cell, int | float) or not abs(cell) <= LARGEST:
        raise ValueError
    return float(cell)


def series(cell: Any) -> np.ndarray:
    """A list of numbers with holes, or ValueError."""
    if isinstance(cell, str):
        if cell.strip().startswith("["):
            try:
                cell = json.loads(cell, parse_constant=lambda name: name)
            except RecursionError:
                raise ValueError from None
        else:
            cell = re.split(r"\s*[,;]\s*|\s+", cell.strip(), flags=re.ASCII) if cell.strip() else []
    if not isinstance(cell, list):
        raise ValueError
    lists = [x for x in cell if isinstance(x, list)]
    if not lists:
        return np.array([np.nan if x is None else number(x) for x in cell], np.float64)
    width = len(lists[0])
    rows = [[None] * width if x is None else x for x in cell]
    if any(not isinstance(x, list) or len(x) != width for x in rows):
        raise ValueError
    return np.array([[np.nan if x is None else number(x) for x in row] for row in rows], np.float64).reshape(
        len(rows), width
    )


def label(cell: Any) -> str:
    """A label's name, or ValueError."""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if cell is None or cell == "" or isinstance(cell, list | dict):
        raise ValueError
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell)


def text(cell: Any) -> Any:
    """A text, or a list of symbols, or ValueError."""
    if isinstance(cell, str):
        return cell
    if not isinstance(cell, list):
        raise ValueError
    return [label(x) for x in cell]


def numeric(cell: Any) -> Any:
    """A number, or several."""
    if not isinstance(cell, list):
        return number(cell)
    if not cell or any(isinstance(x, list) for x in cell):
        raise ValueError
    return [number(x) for x in cell]


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda cell: None if cell is None else read(cell)


MODELS: dict[str, Callable[[Any], Any]] = {
    "n": optional(numeric),
    "cat": optional(label),
    "text": text,
    "s": series,
    "y": label,
    "v": numeric,
}
KINDS = {"n": "number", "cat": "label", "text": "sequence", "s": "series", "y": "label", "v": "number"}


def cells(draw: random.Random, column: str, i: int) -> Any:
    match column:
        case "n" | "v":
            return draw.choice([str(draw.randrange(100)), f"{draw.gauss(0, 3):.3f}"])
        case "cat":
            return draw.choice("pqr")
        case "text":
            return f"row {i} {draw.choice(['fine', 'dull', 'é'])}"
        case "s":
            return " ".join(str(draw.randrange(9)) for _ in range(4))
    return ("yes", "no")[i % 2]


def write(rows: list[dict[str, Any]], form: str) -> bytes:
    if form == "jsonl":
        return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    names = list(rows[0])

    def cell(value: Any) -> str:
        return "" if value is None else '"' + str(value).replace('"', '""') + '"'

    return "".join(",".join(line) + "\n" for line in [names, *([cell(row[n]) for n in names] for row in rows)]).encode()


def config(columns: list[str], target: str, **data: Any) -> Config:
    inputs = [f"{c}:{KINDS[c]}" for c in columns]
    section = DataConfig(inputs=inputs, targets=[f"{target}:{KINDS[target]}"], **data)
    return Config(data=section, input=InputConfig(vocabulary="bytes"), threads=1)


def converted(mutant: Mutant, folder: Path, settings: Config) -> dict[str, list[Any]]:
    """Every row's values, as they go to inputs and outputs."""
    table = open_table(folder / mutant.source)
    schema, _ = resolve(settings.data, table, describe)
    errors = Errors()
    rows = list(schema.rows(table, errors))
    errors.settle()
    found: dict[str, list[Any]] = {}
    for i, field in enumerate(schema.inputs):
        for j, (column, _) in enumerate(field.columns):
            found[column] = [row.inputs[i][j] if field.kind == "vector" else row.inputs[i] for row in rows]
    found[schema.output.name] = [row.target[0] for row in rows]
    return found


def stored(mutant: Mutant, folder: Path, settings: Config, check: bool) -> dict[str, list[Any]]:
    """The store's numbers, turned back into values by its measures."""
    data = settings.data.model_copy(update={"source": str(folder / mutant.source)})
    if data.test:
        data.test = str(folder / data.test)
    settings = settings.model_copy(update={"data": data})
    if check:
        check_data(settings, Console(file=io.StringIO()))
    dataset = prepare(settings)
    found: dict[str, list[Any]] = {}
    for i, (field, measured) in enumerate(zip(dataset.schema.inputs, dataset.measured.inputs, strict=True)):
        columns = {n.partition(".")[2]: c for n, c in dataset.store.columns.items() if n.startswith(f"{i}.")}
        rows = range(len(dataset.store))
        if field.kind == "sequence":
            found[field.name] = [bytes(v - 3 for v in columns["ids"][r].tolist() if v >= 3).decode() for r in rows]
        elif field.kind == "series":
            mean, scale = np.array(measured["mean"]), np.array(measured["scale"])
            found[field.name] = [(columns["values"][r][:, 0].astype(np.float64) * scale + mean)[:, 0] for r in rows]
        else:
            numbers, labels = iter(range(9)), iter(range(9))
            for (column, kind), m in zip(field.columns, measured["columns"], strict=True):
                if kind == "number":
                    x = columns["numbers"].values.reshape(len(rows), -1)[:, next(numbers)]
                    back = x.astype(np.float64) * m["scale"][0] + m["mean"][0]
                    found[column] = [None if np.isnan(v) else float(v) for v in back]
                else:
                    ids = columns["labels"].values.reshape(len(rows), -1)[:, next(labels)]
                    found[column] = [
                        None if v == 0 else "unknown" if v == 1 else m["classes"][v - 2] for v in ids.tolist()
                    ]
    target = dataset.measured.output["targets"][dataset.schema.output.name]
    values = dataset.store.columns[f"t.{dataset.schema.output.name}"].values
    if target["kind"] == "label":
        found[dataset.schema.output.name] = [target["classes"][v] for v in values.ravel().tolist()]
    else:
        back = values.reshape(-1).astype(np.float64) * target["scale"][0] + target["mean"][0]
        found[dataset.schema.output.name] = back.tolist()
    return found


def draw_map(draw: random.Random) -> Mutant:
    whole = draw.random() < 0.1
    columns = draw.sample(["n", "cat", "text", "s"], draw.choice([1, 2, 3]))
    target = draw.choice(["y", "y", "v"])
    form = draw.choice(["csv", "jsonl"])
    count = draw.choice([24, 40]) if whole else draw.choice([2, 6, 20])
    if draw.random() < 0.0005:
        return late(draw, columns, form)
    rows = [{c: cells(draw, c, i) for c in [*columns, target]} for i in range(count)]
    how = []
    for _ in range(draw.choice([0, 1, 1, 2])):
        column, row = draw.choice([*columns, target]), draw.choice(rows)
        pools: dict[str, list[Any]] = {
            "n": [*NUMBERS],
            "v": [*NUMBERS],
            "s": [*LISTS],
            "cat": [*LABELS],
            "y": [*LABELS],
        }
        pool = pools.get(column, [*LABELS, *NUMBERS])
        if form == "jsonl":
            pool += [
                None,
                True,
                5,
                2.5,
                1e39,
                10**400,
                [],
                [1, 2],
                [1, None, 3],
                [[1, 2], [3]],
                ["a", None],
                ["a", ""],
                {"a": 1},
            ]
            pool += [[1e39], [1, "x"], [True], [[1], None], [1, [2], None], -1e308, 2**60, ""]
        row[column] = draw.choice([*pool, None, ""])
        how.append(f"{KINDS[column]} {str(row[column])[:12]!r}")
    if draw.random() < 0.1:
        rows, change = few(draw, rows, target)
        how.append(change)
    name = f"t.{form}"
    files = {name: write(rows, form) if rows else b"n,y\n"}
    data: dict[str, Any] = {}
    want, bad = model(rows, columns, target, form, whole)
    if whole and bad is None and want is not None and draw.random() < 0.3:
        unseen = draw.choice(["maybe", "Yes", "\x1b[31m", "007"]) if target == "y" else "1,5"
        test = [*rows[:4], {**rows[0], target: unseen}]
        files[f"test.{form}"], data["test"] = write(test, form), f"test.{form}"
        how.append("unseen in training")
        places = frozenset(["row 5"])
        known = unseen in {r[target] for r in rows}
        more = {c: [*v, *v[:4], unseen if c == target else v[0]] for c, v in want.items()}
        whole_want = Want(more) if known else Want(None, places)
        named = name if known else f"test.{form}"
        settings = config(columns, target, **data)
        read = lambda m, p: close(stored(m, p, settings, False), m.want.values)  # noqa: E731
        return Mutant(" + ".join(how), files, name, whole_want, named, read)
    settings = config(columns, target)
    if whole:
        check = draw.random() < 0.2
        degenerate = want is not None and len({tuple(map(str, r.values())) for r in rows}) < 12
        return Mutant(
            f"{'check' if check else 'prepare'}: {' + '.join(how) or 'none'}",
            files,
            name,
            Want(want, frozenset(bad or []), optional=degenerate, near=1e-2),
            name,
            lambda m, p: close(stored(m, p, settings, check), m.want.values),
        )
    mutation = " + ".join(how) or "none"
    return Mutant(mutation, files, name, Want(want, frozenset(bad or [])), name, lambda m, p: converted(m, p, settings))


def close(found: dict[str, list[Any]], right: Any) -> dict[str, list[Any]]:
    """Numbers that float32 cannot tell from the right ones are these: stores hold standardised float32."""
    if right is None:
        return found

    def near(a: Any, b: Any, spread: float, seen: set[str]) -> Any:
        if isinstance(a, float) and isinstance(b, float):
            return b if abs(a - b) <= 1e-5 * spread + 1e-30 else a
        if isinstance(a, str) and a == "unknown" and b not in seen:  # never in the training rows
            return b
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.size == b.size:  # (T,) is (T, 1)
            x, y = a.ravel(), b.ravel()
            return b if ((np.abs(x - y) <= 1e-5 * spread) | (np.isnan(x) & np.isnan(y))).all() else a
        return a

    result = {}
    for name, values in found.items():
        if name not in right or len(right[name]) != len(values):
            return found
        seen = set(map(str, values))
        finite = [
            np.abs(np.nan_to_num(np.atleast_1d(v))).max(initial=0)
            for v in right[name]
            if isinstance(v, float | np.ndarray)
        ]
        result[name] = [near(a, b, max(finite, default=0), seen) for a, b in zip(values, right[name], strict=True)]
    return result


def few(draw: random.Random, rows: list[dict[str, Any]], target: str) -> tuple[list[dict[str, Any]], str]:
    match draw.randrange(4):
        case 0:
            return [], "a header only"
        case 1:
            return rows[:1], "one row"
        case 2:
            return [{**row, target: rows[0][target]} for row in rows], "one class"
    return [dict(rows[0]) for _ in rows], "all duplicates"


def model(
    rows: list[dict[str, Any]], columns: list[str], target: str, form: str, whole: bool
) -> tuple[Any, set[str] | None]:
    """The right values by column; or None, with the rows that have none (or nothing: a fault of the file)."""
    if form == "csv":  # every cell is a text there; what is no text is written as Python writes it
        rows = [{c: None if v is None else str(v) for c, v in row.items()} for row in rows]
    bad: list[str] = []
    forms: dict[str, Any] = {}
    for i, row in enumerate(rows, 1):
        try:
            values = {c: MODELS[c](row[c]) for c in [*columns, target]}
            for column, value in values.items():
                if value is None and column in ("text", "s", "y", "v"):
                    raise ValueError
                if whole and column in ("s", "text") and not len(value):
                    raise ValueError
                form = {
                    "text": lambda v: type(v),
                    "s": lambda v: (v.shape[1:] or (1,)) if v.size else None,
                    "n": lambda v: None if v is None else np.shape(v),
                    "v": np.shape,
                }.get(column, lambda _: None)(value)
                if form is not None and forms.setdefault(column, form) != form:
                    raise ValueError
        except (ValueError, RecursionError):
            bad.append(f"row {i}")
    if bad:
        return None, set() if hopeless(rows, columns, target) else set(bad if whole else bad[:1])
    if not rows or hopeless(rows, columns, target):
        return None, set()
    order = [c for c in columns if c in ("text", "s")] + [c for c in columns if c not in ("text", "s")]
    return {c: [MODELS[c](row[c]) for row in rows] for c in [*order, target]}, None


def hopeless(rows: list[dict[str, Any]], columns: list[str], target: str) -> bool:
    """Faults of the whole file: a column without values, a target that never changes."""
    for column in columns:
        if all(row[column] is None for row in rows):
            return True
    there = [row[target] for row in rows if row[target] is not None]
    if target == "v":
        try:
            return len({number(v) for v in there}) < 2
        except ValueError:
            return len(set(map(str, there))) < 2
    return len({repr(v) for v in there}) < 2


def late(draw: random.Random, columns: list[str], form: str) -> Mutant:
    """A column that changes its kind at row 90,000."""
    rows = [{"n": str(i % 977), "y": ("yes", "no")[i % 2]} for i in range(90_050)]
    rows[89_999]["n"] = draw.choice(["x", "1,5", "1_000", "nan"])
    files = {f"t.{form}": write(rows, form)}
    want = Want(None, frozenset(["row 90000"]))
    settings = config(["n"], "y")
    read = draw.choice([lambda m, p: converted(m, p, settings), lambda m, p: stored(m, p, settings, False)])
    return Mutant("a kind that changes at row 90,000", files, f"t.{form}", want, f"t.{form}", read)
