"""One self-contained HTML page about a run. It loads nothing and runs nothing, and all text from data is escaped."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mapsto import disk
from mapsto.errors import ConfigError, MapstoError, ModelFileError
from mapsto.tasks.build import parameters
from mapsto.tasks.page import page, section, table
from mapsto.tasks.pictures.example import heads
from mapsto.tasks.pictures.gallery import Gallery, Picture, gallery
from mapsto.tasks.pictures.text import escape, joined
from mapsto.tasks.pictures.view import inputs
from mapsto.tasks.run import Run
from mapsto.tasks.verdict import Verdict, shown, verdicts, word
from mapsto.tasks.watch import amount

__all__ = ["sources", "targets", "write"]

LIMIT = 1 << 20  # bytes of a file to show


def write(run: Run, path: Path, result: Mapping[str, Any] | None = None, *, drawn: Gallery | None = None) -> None:
    """Write the report of a run.

    Args:
        run: the run.
        path: the HTML file.
        result: metrics, intervals and baselines as :meth:`~mapsto.tasks.run.Run.evaluate` gives them; by default those
            that training ended with.
        drawn: its pictures, if there are any already.

    Raises:
        ConfigError: the file cannot be written, or matplotlib is not installed.
    """
    pictures = gallery(run) if drawn is None else drawn
    own = _own(run)
    metrics = own if result is None else result
    other = result is not None and own is not None and result["metrics"] != own["metrics"]
    parts = [
        section("What is mapped", _map(run, pictures)),
        section("How well", _metrics(run, metrics, other)),
        section("Pictures", _pictures(pictures, other)),
        section("Settings", _settings(run)),
        section("Environment", _environment(run)),
    ]
    text = page(f"{run.folder.name}: {', '.join(sources(run))} to {', '.join(targets(run))}", parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(path, text.encode("utf-8", "replace"))  # a link that stands there is not followed
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None


def sources(run: Run) -> list[str]:
    """What is mapped from, a phrase an input."""
    made = []
    for name, part in inputs(run.model).items():
        settings: dict[str, Any] = part.settings()
        if part.kind == "sequence":
            vocabulary = settings["vocabulary"]
            made.append(f"{name} (a sequence of {vocabulary.kind}, {amount(vocabulary.size)} in the vocabulary)")
        elif part.kind == "vector":
            made.append(f"{name} (columns {joined([c['name'] for c in settings['columns']])})")
        elif part.kind == "image":
            made.append(f"{name} (pictures, {settings['channels']} channel{'s' * (settings['channels'] > 1)})")
        elif part.kind == "series":
            channels = len(settings["mean"])
            made.append(f"{name} (a series of {channels} channel{'s' * (channels > 1)})")
        else:
            made.append(f"{name} ({part.kind})")
    return made


def targets(run: Run) -> list[str]:
    """What is mapped to, a phrase a target."""
    made = []
    each = ", for every item" if run.model.output.kind == "items" else ""
    for name, head in heads(run.model).items():
        settings = head.settings()
        if "classes" in settings:
            classes = settings["classes"]
            how = "one" if head.kind == "label" else "any"
            made.append(f"{name} ({how} of {len(classes)}: {joined(classes)}{each})")
        elif "vocabulary" in settings:
            vocabulary = settings["vocabulary"]
            made.append(f"{name} (a sequence of {vocabulary.kind}, {amount(vocabulary.size)} in the vocabulary)")
        else:
            count = len(settings["mean"])
            made.append(f"{name} ({'a number' if count == 1 else f'{count} numbers'}{each})")
    return made


def rows(data: Any) -> str:
    """How many rows are for what."""
    counts = data.split.counts
    text = f"{amount(counts['train'])} to train, {amount(counts['val'])} to choose, {amount(counts['test'])} to test"
    copies = data.split.duplicates
    return text + (f"; {amount(copies)} rows are copies of others" if copies else "")


def _map(run: Run, pictures: Gallery) -> str:
    model = run.config.model
    facts = {
        "From": "; ".join(sources(run)),
        "To": "; ".join(targets(run)),
        "Data": run.config.data.source.removeprefix("demo:") or "rows in memory",
    }
    if pictures.data is not None:
        facts["Rows"] = rows(pictures.data)
    facts["Model"] = (
        f"encoder of {model.depth} layers, width {model.dim}, {model.mixing}; "
        f"{'each item answers' if run.model.output.kind == 'items' else f'{model.pool} pooling'}; "
        f"{amount(parameters(run.model))} parameters"
    )
    return table([], [[key, value] for key, value in facts.items()], kind="facts")


class Result(BaseModel):
    """What a result.json must hold to be shown."""

    model_config = ConfigDict(strict=True)

    metrics: dict[str, float | None]
    intervals: dict[str, tuple[float, float]]
    baselines: dict[str, dict[str, float | None]]


def _own(run: Run) -> Mapping[str, Any] | None:
    """What training ended with, if it came to its end."""
    try:
        return Result.model_validate_json(disk.read(run.folder / "result.json", LIMIT)).model_dump()
    except (FileNotFoundError, MapstoError, ValidationError):
        return None


def _metrics(run: Run, result: Mapping[str, Any] | None, other: bool) -> str:
    if result is None:
        return f"<p>result.json cannot be read. mapsto evaluate {escape(run.folder)} measures anew.</p>"
    about = (
        "Measured on the data that evaluate was given; the pictures below show the run's own test rows."
        if other
        else "Measured on the test rows, which training has never seen."
    )
    parts = [f"<p>{about} Intervals hold 95 % of resampled data sets; the simple models learn from the same rows.</p>"]
    judged = verdicts(result, list(heads(run.model)))
    for verdict in judged:
        if len(judged) > 1:
            parts.append(f"<h3>{escape(verdict.target)}</h3>")
        parts.append(f'<p class="{"warning" if verdict.beaten else "fine"}">{escape(verdict.sentence)}</p>')
        parts.append(_table(verdict))
    return "".join(parts)


def _table(verdict: Verdict) -> str:
    body = []
    for line in verdict.lines:
        cells = [line.name]
        for metric in verdict.metrics:
            interval = line.intervals.get(metric)
            span = f" ({shown(interval[0])} to {shown(interval[1])})" if interval else ""
            cells.append(f"{shown(line.values.get(metric))}{span}")
        body.append(cells)
    return table(["", *map(word, verdict.metrics)], body)


def _pictures(pictures: Gallery, other: bool) -> str:
    parts = [_figure(picture) for picture in pictures.pictures]
    if pictures.left_out:
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in pictures.left_out)
        parts.append(f"<h3>Left out</h3><ul>{reasons}</ul>")
    return "".join(parts)


def _figure(picture: Picture) -> str:
    content = picture.page
    if not picture.whole:
        data = base64.b64encode(picture.file).decode()
        content += f'<img alt="{escape(picture.title)}" src="data:image/png;base64,{data}">'
    return (
        f"<figure><h3>{escape(picture.title)}</h3>{content}<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _settings(run: Run) -> str:
    try:
        text = disk.read(run.folder / "config.yaml", LIMIT).decode()
    except (OSError, ValueError, ModelFileError) as error:
        return f"<p>config.yaml cannot be read: {escape(error)}</p>"
    lines = "\n".join(escape(line) for line in text.split("\n"))
    return f"<details><summary>config.yaml, every value</summary><pre>{lines}</pre></details>"


def _environment(run: Run) -> str:
    try:
        content = disk.read_json(run.folder / "environment.json", LIMIT)
    except ModelFileError as error:
        return f"<p>environment.json cannot be read: {escape(error)}</p>"
    if not isinstance(content, dict):
        return "<p>environment.json is of another version</p>"
    flat = {
        key: ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        for key, value in content.items()
    }
    body = table([], [[key, str(value)] for key, value in flat.items()], kind="facts")
    return f"<details><summary>Versions and machine</summary>{body}</details>"
