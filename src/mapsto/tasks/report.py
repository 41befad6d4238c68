"""One self-contained HTML page about a run. It loads nothing and runs nothing, and all text from data is escaped."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mapsto import disk
from mapsto.errors import ConfigError, MapstoError, ModelFileError
from mapsto.nn.pixel import PixelTarget
from mapsto.nn.step import StepTarget
from mapsto.tasks.announce import token_counts
from mapsto.tasks.autoencoder import flat
from mapsto.tasks.build import parameters
from mapsto.tasks.page import page, section, table
from mapsto.tasks.pictures.example import heads
from mapsto.tasks.pictures.gallery import gallery
from mapsto.tasks.pictures.picture import Gallery, Picture
from mapsto.tasks.pictures.text import escape, joined
from mapsto.tasks.pictures.view import inputs
from mapsto.tasks.run import Run
from mapsto.tasks.verdict import Verdict, verdicts, word
from mapsto.tasks.watch import amount
from mapsto.tasks.written import alone, searched, units, written

__all__ = ["heading", "shape", "sources", "targets", "write", "written_how"]

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
    text = page(f"{run.folder.name}: {heading(run)}", parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.replace(path, text.encode("utf-8", "replace"))  # a link that stands there is not followed
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None


def heading(run: Run) -> str:
    """What is mapped to what, in one phrase."""
    to = ", ".join(targets(run))
    return f"{', '.join(sources(run))} to {to}" if run.model.names else f"{to}, continued"


def shape(run: Run) -> str:
    """What the model is made of."""
    config, output = run.config.model, run.model.output
    if config.latent:
        inside = f"perceptrons of {_layers(config.depth)}" if flat(output) else "transformers"
        return f"variational autoencoder of {config.latent} latent dimensions, {inside}, width {config.dim}"
    decoder = f"decoder of {_layers(config.decoder or config.depth)}"
    mixing = f"width {config.dim}, {config.mixing}"
    if not run.model.names:
        return f"{decoder}, {mixing}"
    encoder = f"encoder of {_layers(config.depth)}"
    if output.kind in ("sequence", "parallel", "series"):
        return f"{encoder}, {decoder}, {mixing}"
    return f"{encoder}, {mixing}; {'each item answers' if output.kind == 'items' else f'{config.pool} pooling'}"


def _layers(count: int) -> str:
    return f"{count} layer{'s' * (count != 1)}"


def sources(run: Run) -> list[str]:
    """What is mapped from, a phrase an input; of a language model, what it goes on from."""
    made = []
    if not run.model.names:
        return [f"what came before, of the same text (at most {amount(written(run.model).window)} tokens)"]
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
        elif isinstance(head, PixelTarget):
            made.append(f"{name} again ({head.density} pixels)")
        elif isinstance(head, StepTarget):
            count, horizon = head.channels, getattr(run.model.output, "horizon", 0)
            made.append(f"{name} ({horizon} steps of a series of {count} channel{'s' * (count > 1)})")
        else:
            count = len(settings["mean"])
            made.append(f"{name} ({'a number' if count == 1 else f'{count} numbers'}{each})")
    return made


def rows(run: Run, data: Any) -> str:
    """How many rows are for what; of a text that is read whole, how many tokens."""
    counts, what = data.split.counts, ""
    if not run.model.names:
        counts, what = token_counts(data), f" {units(written(run.model).vocabulary)}"
    uses = {"train": "train", "val": "choose", "test": "test"}
    text = ", ".join(f"{amount(counts[side])}{what} to {use}" for side, use in uses.items())
    copies = data.split.duplicates
    return text + (f"; {amount(copies)} rows are copies of others" if copies else "")


def _map(run: Run, pictures: Gallery) -> str:
    facts = {
        "From": "; ".join(sources(run)),
        "To": "; ".join(targets(run)),
        "Data": run.config.data.source.removeprefix("demo:") or "rows in memory",
    }
    if pictures.data is not None:
        facts["Rows" if run.model.names else "Text"] = rows(run, pictures.data)
    facts["Model"] = f"{shape(run)}; {amount(parameters(run.model))} parameters"
    return table([], [[key, value] for key, value in facts.items()], kind="facts")


class Result(BaseModel):
    """What a result.json must hold to be shown."""

    model_config = ConfigDict(strict=True)

    metrics: dict[str, float | dict[str, float] | None]
    intervals: dict[str, tuple[float, float]]
    baselines: dict[str, dict[str, float | None]]
    signatures: dict[str, str] = {}
    notes: list[str] = []
    usual: list[float] = []
    deviations: list[float] = []
    missing: dict[str, str] = {}


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
    notes = " ".join(escape(note) for note in written_how(run, result))
    parts += [f'<p class="warning">{escape(note)}</p>' for note in result.get("notes", [])]
    return "".join(parts) + (f'<p class="note">{notes}</p>' if notes else "")


def _table(verdict: Verdict) -> str:
    head, body, rows = verdict.table()
    return table(head, body, kind="numbers" if rows else "numbers columns")


def written_how(run: Run, result: Mapping[str, Any]) -> list[str]:
    """Sentences on how the metrics of a model that writes are to be read; none for other models."""
    output = alone(run.model)
    if output is None:
        return []
    texts = isinstance(output.vocabulary.decode([]), str)
    told = f"NLL, perplexity{', token accuracy and bits a character' if texts else ' and token accuracy'} are of each token "
    told += "given the true ones before it, the end of a row among them"
    if not run.model.names:
        notes = [f"{told}."]
    else:
        how = searched(run.config.output)
        written_alone = "exact match, error rates, BLEU and chrF" if texts else "exact match and the error rate"
        notes = [f"{told}; {written_alone} are of what the model writes by itself ({how})."]
    words = units(output.vocabulary)
    if not texts:
        symbols = "Error rates are insertions, deletions and substitutions over true symbols."
    else:
        symbols = "The symbol error rate of texts is that of characters."
    notes += [symbols] if run.model.names else []
    notes += [f"Perplexities are of {words}: compare them only with models of the same {words}."]
    notes += [f"{word(name)}: {text}" for name, text in result.get("signatures", {}).items()]
    return notes + [f"{text.partition('.   ')[0]}." for text in result.get("missing", {}).values()]


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
