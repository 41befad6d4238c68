"""The model card: a README that goes with the files of a model."""

import shlex
from collections.abc import Mapping
from typing import Any

from mapsto.errors import MapstoError
from mapsto.music import Music
from mapsto.tasks.announce import whole
from mapsto.tasks.build import parameters
from mapsto.tasks.future import forecasting
from mapsto.tasks.pictures.example import heads
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.pictures.view import inputs
from mapsto.tasks.report import rows, shape, sources, targets, written_how
from mapsto.tasks.run import Run
from mapsto.tasks.verdict import Verdict, verdicts
from mapsto.tasks.watch import amount
from mapsto.tasks.written import alone, written
from mapsto.vocabulary import Symbols, Words

__all__ = ["model_card"]

USE = """## Use

```
{shell}
```

```python
{python}
```
"""


def model_card(run: Run, result: Mapping[str, Any]) -> str:
    """The README.md of a model folder, in Markdown.

    Args:
        run: the finished run.
        result: its metrics, intervals and baselines.
    """
    config, model = run.config, run.model
    data = config.data.source.removeprefix("demo:").rstrip("/").rpartition("/")[2] or "rows in memory"
    name = run.folder.name
    lines = [
        f"# {_safe(name)}",
        "",
        _about(run),
        "",
        USE.format(**_call(run)),
        "## How well",
        "",
        *_judged(run, result),
        "## Data",
        "",
        f"Trained on {_safe(data)}{_rows(run)}. {_split(run)}",
        "",
        "## Model",
        "",
        f"{'An' if model.names else 'A'} {shape(run)}; {amount(parameters(model))} parameters, trained for "
        f"{amount(config.train.steps)} steps with seed {config.seed}. All settings are in `config.yaml` of the run "
        "folder; `config.json` here holds what is needed to load the model, `model.safetensors` the weights. Neither "
        "file can run code.",
        "",
        "## Limits",
        "",
        *(f"- {limit}" for limit in _limits(run)),
        "",
    ]
    return "\n".join(lines)


def _about(run: Run) -> str:
    to = _safe("; ".join(targets(run)))
    if not run.model.names:
        return f"Continues {to}: a language model, each token from {_safe(sources(run)[0])}."
    return f"Maps {_safe('; '.join(sources(run)))} to {to}."


def _judged(run: Run, result: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    judged = verdicts(result, list(heads(run.model)))
    for verdict in judged:
        if len(judged) > 1:
            lines += [f"### {_safe(verdict.target)}", ""]
        lines += [_safe(verdict.sentence), "", *_table(verdict), ""]
    notes = ["On the test rows; in brackets the interval that holds 95 % of resampled data sets."]
    return [*lines, " ".join([*notes, *map(_safe, written_how(run, result))]), ""]


def _table(verdict: Verdict) -> list[str]:
    head, body, _ = verdict.table()
    lines = [f"| {' | '.join(map(_safe, head))} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join([_safe(first), *rest])} |" for first, *rest in body]


def _rows(run: Run) -> str:
    try:
        return f": {rows(run, run.dataset())}"
    except MapstoError:
        return ""


def _split(run: Run) -> str:
    data = run.config.data
    if forecasting(run.config):
        return (
            "Of each series the last part was tested on, the part before chose, and what came earlier was trained on."
        )
    if not run.model.names and whole(run.config):
        return "What comes first in the text was trained on, what comes last was tested on."
    if data.split:
        return f'Rows were parted by the column "{_safe(data.split)}".'
    if data.val or data.test:
        return "Files of their own were used to choose and to test."
    if data.folds:
        return f"Rows were parted into {data.folds} folds; this model was tested on number {data.fold}."
    if data.group:
        return f'Rows were parted by a hash of "{_safe(data.group)}", so that a group is on one side only.'
    return "Rows were parted by a hash of their content, so that copies are on one side."


def _limits(run: Run) -> list[str]:
    known = [
        "It knows the rows it was trained on and nothing else; on rows of another origin the numbers above do not hold."
    ]
    kinds = {head.kind for head in heads(run.model).values()}
    if "label" in kinds or "labels" in kinds:
        known.append(
            "It can only answer with the labels named above: what is none of them gets one of them all the same."
        )
        known.append("Its probabilities are as good as the reliability diagram in `report.html` shows, and no better.")
    if "number" in kinds:
        spread = "is learned for every row" if run.config.model.sigma == "datum" else "is one number for all rows"
        known.append(
            f"The standard deviation it gives {spread}, from normal noise; far from the training rows it is too small."
        )
    if "series" in kinds:
        known.append(
            "Its intervals hold 95 % of what comes only as long as things go on as they did in the rows it was trained on; "
            "they speak of each step alone, not of all steps together."
        )
    known += _writes(run)
    for name, part in inputs(run.model).items():
        settings = part.settings()
        if part.kind in ("sequence", "series") and settings.get("limit"):
            kept = settings.get("keep", "last")
            what = (
                f"half from both ends of {settings['limit']}" if kept == "ends" else f"the {kept} {settings['limit']}"
            )
            known.append(f"Of a longer {_safe(name)} it reads {what} items only.")
        if part.kind == "image" and settings["side"]:
            known.append(f"Pictures are shrunk to at most {settings['side']} pixels a side.")
    known.append("What makes a row likely in the training data, its injustices included, makes it likely here.")
    return known


def _writes(run: Run) -> list[str]:
    """What a model that writes cannot."""
    output = alone(run.model)
    if output is None:
        return []
    known = ["What it writes is likely after its training rows; whether it is true or right, it does not know."]
    if isinstance(output.vocabulary, Symbols):
        known.append(
            f"It can only write the {amount(output.vocabulary.size - 3)} {output.vocabulary.kind} that it has seen."
        )
    if isinstance(output.vocabulary, Words):
        known.append("It writes in lower case, with single spaces between words and marks.")
    if not run.model.names:
        known.append(f"It remembers at most {output.window} tokens; of a longer text it knows the end only.")
    else:
        known.append(f"It writes at most {output.longest} tokens, about as many as the longest training rows have.")
    return known


def _call(run: Run) -> dict[str, str]:
    """Commands and Python to use it with."""
    path, columns = f"runs/{run.folder.name}", run.schema.sources
    folder, name = shlex.quote(visible(path)), _code(path)
    if not columns and isinstance(written(run.model).vocabulary, Music):
        python = "from pathlib import Path\nfrom mapsto.tasks.sample import sample\n"
        draw = f'sample(Path("{name}"), seconds=30.0, out=Path("new.mid"))'
        return {"shell": f"mapsto sample {folder} --seconds 30 --out new.mid", "python": python + draw}
    if not columns:
        draw = f'sample(Path("{name}"), given="A beginning")[0]["{_code(written(run.model).name)}"]'
        python = f"from pathlib import Path\nfrom mapsto.tasks.sample import sample\nprint({draw})"
        return {"shell": f'mapsto sample {folder} --from "A beginning" --temperature 0.8', "python": python}
    kinds = [part.kind for part in inputs(run.model).values()]
    listed = ", ".join(f'"{_code(c)}": ...' for c in columns)
    shell, python = "rows.csv", f"[{{{listed}}}]"
    if len(columns) == 1 and kinds == ["image"]:
        shell, python = "picture.png", '"picture.png"'
    if len(columns) == 1 and kinds == ["sequence"]:
        shell, python = '"a text"', '["a text"]'
    commands = [f"mapsto predict {folder} {shell}"]
    if alone(run.model) is not None:
        commands.append(f"mapsto predict {folder} {shell} --beam 4 --best 3")
        if kinds == ["sequence"]:
            commands.append(f"mapsto sample {folder} --from {shell} --count 3")
    return {"shell": "\n".join(commands), "python": f'import mapsto\nmapsto.load("{name}").predict({python})'}


def _code(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("`", "'")


def _safe(text: str) -> str:
    """Text from data that Markdown takes for nothing but text."""
    for mark in "\\`*_[]<>|#&~$":
        text = text.replace(mark, f"\\{mark}")
    return visible(text)
