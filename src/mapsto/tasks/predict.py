"""The verb ``predict``: texts, pictures, tables or standard input to answers."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mapsto.errors import ConfigError, DataError
from mapsto.models.vae import VAE
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.run import load

__all__ = ["predict", "write_rows"]


def predict(
    run: Path,
    values: list[str],
    *,
    out: Path | None = None,
    embed: bool = False,
    beam: int = 0,
    best: int = 1,
    surprise: bool = False,
    device: str = "auto",
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Predict, and print or write the answers.

    Args:
        run: the run folder.
        values: texts, or rows as ``{"COLUMN": value, ...}``; or one file or folder; or ``-`` for the lines of standard input.
        out: ``.jsonl``, ``.csv`` or ``.parquet``; printed if not given.
        embed: vectors instead of answers.
        beam: beams to search for a sequence with; 0: as the run's settings say.
        best: sequences for each row.
        surprise: of an autoencoder, say also how strange each row is.
        device: where to compute.
        console: where to print; None prints nothing.
    """
    if out is not None and out.suffix not in (".jsonl", ".csv", ".parquet"):
        raise ConfigError(f"--out {out}: .jsonl, .csv or .parquet are written")
    loaded = load(run, device=device)
    asked: Any = values
    if values == ["-"]:
        asked = [line.rstrip("\n") for line in sys.stdin]
        if not asked:
            raise DataError("standard input is empty")
    elif len(values) == 1:
        asked = values[0]
    asked = _typed([asked] if isinstance(asked, str) else asked, loaded.schema.sources) or asked
    rows = loaded.predict(asked, embed=embed, beam=beam, best=best, surprise=surprise)
    if out is not None:
        write_rows(out, rows)
        if console is not None:
            console.print(Text(f"{len(rows)} rows written to {out}"))
    elif console is not None and not console.stderr:
        table = isinstance(loaded.model, VAE) and loaded.schema.output.kind == "vector" and not embed
        for row in rows:
            console.print(Text(visible((named if table else line)(row), "\n")), soft_wrap=True)
    return rows


def _typed(values: list[str], columns: list[str]) -> list[dict[str, Any]]:
    """Rows that were typed as JSON, all with columns of the run; a column that is not named is missing. Else nothing."""
    rows: list[dict[str, Any]] = []
    for value in values:
        try:
            row = json.loads(value) if value.lstrip().startswith("{") else None
        except ValueError:
            return []
        if not isinstance(row, dict) or not row or not row.keys() <= set(columns):
            return []
        rows.append({column: row.get(column) for column in columns})
    return rows


def line(row: dict[str, Any]) -> str:
    """One row's answer for a person: values, and the likeliest classes."""
    parts = []
    for name, value in row.items():
        if name.endswith(".probability"):
            if isinstance(value, dict):
                top = sorted(value.items(), key=lambda kv: -kv[1])[:3]
                parts.append("  ".join(f"{k} {p:.3f}" for k, p in top))
        elif name.endswith(".best"):
            parts += [f"\n    {one['log_probability']:.3f}  {_short(one['value'])}" for one in value]
        elif name.endswith(".log_probability"):
            parts.append(f"({value:.3f})")
        elif name.endswith(".sigma"):
            parts.append("+- " + _short(value))
        else:
            parts.append(_short(value))
    return "    ".join(parts)


def named(row: dict[str, Any]) -> str:
    """A row of a table for a person: every value with its name, and in brackets what a missing one may be; without z."""
    parts = []
    said = lambda x: f"{x:.6g}" if isinstance(x, float) else _short(x)  # noqa: E731
    for name, value in row.items():
        if name.startswith("latent") or name.endswith((".low", ".high", ".probability")):
            continue
        low, high, p = (row.get(f"{name}.{end}") for end in ("low", "high", "probability"))
        sure = f" ({said(low)} to {said(high)})" if low is not None else "" if p is None else f" ({p[value]:.2f})"
        parts.append(f"{name} {said(value)}{sure}")
    return "  ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return " ".join(_short(v) for v in value)
    return str(value)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows of answers; in CSV, probabilities are a column a class and lists are JSON."""
    try:
        if path.suffix == ".jsonl":
            with path.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            return
        import pyarrow as pa
        from pyarrow import csv, parquet

        parted = {name for row in rows for name, value in row.items() if isinstance(value, dict)}
        made = [
            _flat({n: v for n, v in row.items() if v is not None or n not in parted}, text=path.suffix == ".csv")
            for row in rows
        ]
        names = dict.fromkeys(name for row in made for name in row)
        flat = pa.table({name: [row.get(name) for row in made] for name in names})
        if path.suffix == ".csv":
            csv.write_csv(flat, str(path))
        else:
            parquet.write_table(flat, str(path))
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror or error}") from None


def _flat(row: dict[str, Any], *, text: bool) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{k}": v for k, v in value.items()}
        elif isinstance(value, list) and text:
            flat[name] = json.dumps(value, ensure_ascii=False)
        else:
            flat[name] = value
    return flat
