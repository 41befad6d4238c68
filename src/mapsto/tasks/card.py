"""The model card: a README that goes with the files of a model."""

import shlex
from collections.abc import Mapping
from typing import Any

from mapsto.errors import MapstoError
from mapsto.tasks.build import parameters
from mapsto.tasks.pictures.example import heads
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.pictures.view import inputs
from mapsto.tasks.report import rows, sources, targets
from mapsto.tasks.run import Run
from mapsto.tasks.verdict import Verdict, shown, verdicts, word
from mapsto.tasks.watch import amount

__all__ = ["model_card"]

USE = """## Use

```
mapsto predict {folder} {shell}
```

```python
import mapsto
mapsto.load("{path}").predict({python})
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
        f"Maps {_safe('; '.join(sources(run)))} to {_safe('; '.join(targets(run)))}.",
        "",
        USE.format(folder=shlex.quote(visible(f"runs/{name}")), path=_code(f"runs/{name}"), **_call(run)),
        "## How well",
        "",
        *_judged(run, result),
        "## Data",
        "",
        f"Trained on {_safe(data)}{_rows(run)}. {_split(run)}",
        "",
        "## Model",
        "",
        f"An encoder of {config.model.depth} layers of width {config.model.dim} with {config.model.mixing}, "
        f"{amount(parameters(model))} parameters, trained for "
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


def _judged(run: Run, result: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    judged = verdicts(result, list(heads(run.model)))
    for verdict in judged:
        if len(judged) > 1:
            lines += [f"### {_safe(verdict.target)}", ""]
        lines += [_safe(verdict.sentence), "", *_table(verdict), ""]
    return [*lines, "On the test rows; in brackets the interval that holds 95 % of resampled data sets.", ""]


def _table(verdict: Verdict) -> list[str]:
    lines = [
        f"| | {' | '.join(word(m) for m in verdict.metrics)} |",
        f"|---|{'---|' * len(verdict.metrics)}",
    ]
    for line in verdict.lines:
        cells = []
        for metric in verdict.metrics:
            interval = line.intervals.get(metric)
            cells.append(
                shown(line.values.get(metric))
                + (f" ({shown(interval[0])} to {shown(interval[1])})" if interval else "")
            )
        lines.append(f"| {_safe(line.name)} | {' | '.join(cells)} |")
    return lines


def _rows(run: Run) -> str:
    try:
        return f": {rows(run.dataset())}"
    except MapstoError:
        return ""


def _split(run: Run) -> str:
    data = run.config.data
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
        spread = "is one number for all rows" if run.config.model.sigma == "shared" else "is learned for every row"
        known.append(
            f"The standard deviation it gives {spread}, from normal noise; far from the training rows it is too small."
        )
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


def _call(run: Run) -> dict[str, str]:
    """An input to type, in the shell and in Python."""
    columns = run.schema.sources
    kinds = [part.kind for part in inputs(run.model).values()]
    if len(columns) == 1 and kinds == ["image"]:
        return {"shell": "picture.png", "python": '"picture.png"'}
    if len(columns) == 1 and kinds == ["sequence"]:
        return {"shell": '"a text"', "python": '["a text"]'}
    listed = ", ".join(f'"{_code(c)}": ...' for c in columns)
    return {"shell": "rows.csv", "python": f"[{{{listed}}}]"}


def _code(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("`", "'")


def _safe(text: str) -> str:
    """Text from data that Markdown takes for nothing but text."""
    for mark in "\\`*_[]<>|#&~$":
        text = text.replace(mark, f"\\{mark}")
    return visible(text)
