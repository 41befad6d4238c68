"""The verb ``check``: read everything, train nothing; or hold a trained model to the laws."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.text import Text

from mapsto.data.kind import infer
from mapsto.data.passage import Passages
from mapsto.data.problem import problems
from mapsto.models.mapper import Mapper
from mapsto.models.vae import VAE
from mapsto.nn.multihead import MultiheadAttention
from mapsto.tasks.announce import token_counts
from mapsto.tasks.autoencoder import flat
from mapsto.tasks.build import build, parameters
from mapsto.tasks.config import Config
from mapsto.tasks.crossover import choose
from mapsto.tasks.dataset import prepare, tables
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.honesty import listed
from mapsto.tasks.imagined import simulated
from mapsto.tasks.latent import reworked
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.plan import feed, make_plan, settle, sized
from mapsto.tasks.run import Run, load
from mapsto.tasks.seen import doubts, lines, sequences
from mapsto.tasks.watch import amount
from mapsto.tasks.window import WindowFeed
from mapsto.tasks.written import alone, units, written
from mapsto.training.calibration import Calibration, ranks
from mapsto.vocabulary import END

__all__ = ["check_data", "check_run"]

SHOWN = 3
SIMULATED = 1000
"""Rows that are drawn from an autoencoder of perceptrons to see whether its beliefs are right; of others a fifth."""


def check_data(config: Config, console: Console, source: Any = None) -> dict[str, Any]:
    """Read all rows as training would, and tell what they are and what the model would see.

    Returns:
        ``{"rows", "columns", "split", "warnings", "sees", "model"}``.

    Raises:
        DataError: what would stop training.
    """
    table = tables(config, source)[0][0]
    dataset = prepare(config, source)
    schema, counts = dataset.schema, dataset.split.counts

    def say(text: str, style: str = "") -> None:
        console.print(Text(visible(text), style=style), soft_wrap=True)

    whole = isinstance(table, Passages)
    rows = f"one text, in {len(dataset.store)} passages" if whole else f"{amount(len(dataset.store))} rows"
    say(f"{table.name}    {rows}" + ("" if whole else f", {len(table.columns)} columns"))
    columns: dict[str, dict[str, Any]] = {}
    roles = [(c, k, "from") for f in schema.inputs for c, k in f.columns] + [
        (c, k, "to") for c, k in schema.output.columns
    ]
    for column, kind, role in roles:
        summary = dataset.summaries[column]
        guess = infer(summary, "source" if role == "from" else "target")
        columns[column] = {
            "role": role,
            "kind": kind,
            "reason": guess.reason,
            "missing": summary.missing,
            "distinct": summary.distinct,
            "lengths": summary.lengths,
            "unit": summary.unit,
            "range": summary.range,
            "counts": dict(list(summary.counts.items())[:50]) if summary.distinct <= 1000 else {},
            "examples": summary.examples,
        }
        size = ""
        if summary.lengths is not None:
            low, middle, high = summary.lengths
            size = f"    {amount(low)} to {amount(high)} {summary.unit}, median {amount(middle)}"
        elif summary.range is not None:
            size = f"    {summary.range[0]:g} to {summary.range[2]:g}, mean {summary.range[1]:g}"
        gaps = f"    {amount(summary.missing)} missing" if summary.missing else ""
        say(f"  {role:<5}{column:<18}{kind:<10}{amount(summary.distinct)} different{size}{gaps}    ({guess.reason})")
        if 1 < len(columns[column]["counts"]) <= 12:
            say("       " + ", ".join(f"{k} {amount(n)}" for k, n in columns[column]["counts"].items()))
    config, chosen = choose(sized(config, dataset), dataset, device=torch.device("cpu"))
    config = settle(config, dataset)
    model = build(schema, dataset.measured, config.model, seed=config.seed)
    if not model.names:
        counts = token_counts(dataset)
    unit = "" if model.names else f" {units(written(model).vocabulary)}"
    say(f"split    train {amount(counts['train'])}, val {amount(counts['val'])}, test {amount(counts['test'])}{unit}")
    train = feed(dataset, "train", model, config, torch.device("cpu"))
    plan = make_plan(config, train, bfloat16=False)
    order = train.order(0)
    places = sum(int(len(rows) * _lengths(train, rows).max()) for rows in order)
    real = float(train.lengths.sum() / max(1, places))
    low, middle, high = np.percentile(train.lengths, [0, 50, 100]).astype(int).tolist()
    examples = _examples(train)
    told = sequences(dataset, model)
    seen = {
        "sequences": told,
        "items": {"least": low, "median": middle, "most": high},
        "batches": len(order),
        "batch_tokens": config.train.batch_tokens,
        "real_share": round(real, 4),
        "examples": examples,
    }
    each = "items a row" if model.names else "tokens a window (output.limit)"
    say(
        f"sees     {amount(low)} to {amount(high)} {each}, median {amount(middle)}; {len(order)} batches of at most "
        f"{amount(config.train.batch_tokens)} items, {real:.0%} of them real"
    )
    for line in lines(told):
        say(f"         {line}")
    for example in zip(*examples.values(), strict=True):
        for name, names in zip(examples, example, strict=True):
            cut = names[:24]
            say(f"         {name}: {' | '.join(cut)}{' | ...' if len(names) > len(cut) else ''}")
    say(
        f"model    {amount(parameters(model))} parameters, {amount(plan.steps)} steps for {config.train.epochs:g} epochs"
    )
    if chosen:
        say(chosen)
    warnings = _warnings(dataset, table, schema) + doubts(told)
    for warning in warnings:
        say(f"warning: {warning}", "yellow")
    if not warnings:
        say("no problems found")
    return {
        "rows": len(dataset.store),
        "columns": columns,
        "split": counts,
        "warnings": warnings,
        "sees": seen,
        "model": {"parameters": parameters(model), "steps": plan.steps},
    }


def _lengths(train: StoreFeed, rows: Any) -> Any:
    if isinstance(train, WindowFeed):  # they begin elsewhere in every epoch
        return rows % (train.width + 1)
    return train.lengths[np.searchsorted(train.rows, rows)]


def _examples(train: StoreFeed) -> dict[str, list[list[str]]]:
    rows = train.rows[:SHOWN]
    parts = train.model.sources.items()
    found = {name: part.names(train.take(name, rows)) for name, part in parts if part.kind in ("sequence", "vector")}
    output = alone(train.model)
    if output is not None:
        ids, lengths = train.take("target", rows)["ids"].flat()
        cut = np.split(ids, np.cumsum(lengths)[:-1])
        found[output.name] = [output.vocabulary.names(x[x != END].tolist()) for x in cut]
    return found


def _warnings(dataset: Any, table: Any, schema: Any) -> list[str]:
    found = [w for s in dataset.summaries.values() for w in s.warnings]
    column, kind = schema.output.columns[0]
    found += problems(table, schema.sources, column, labels=kind == "label")
    if dataset.split.crossing:
        found.append(f"{amount(dataset.split.crossing)} rows of val and test have the same source as a training row")
    if dataset.errors.count:
        rows = ", ".join(str(row) for _, row, _ in dataset.errors.found[:8])
        found.append(
            f"{dataset.errors.count} rows cannot be read and are left out (rows {rows}): {dataset.errors.found[0][2]}"
        )
    if kind == "label":
        counts = dataset.summaries[column].counts
        if counts and max(counts.values()) > 0.9 * sum(counts.values()):
            top = max(counts, key=lambda k: counts[k])
            found.append(f'"{column}": {max(counts.values()) / sum(counts.values()):.0%} of the rows are {top}')
    return found


def _different(model: Mapper) -> list[MultiheadAttention]:
    """One layer of each kind, setting and size of attention that a model has."""
    found: dict[str, MultiheadAttention] = {}
    for layer in model.modules():
        if isinstance(layer, MultiheadAttention):
            found.setdefault(str((type(layer.attention), layer.attention.settings(), layer.heads, layer.dim)), layer)
    return list(found.values())


def check_run(folder: Path, console: Console) -> dict[str, Any]:
    """Hold a run's model to the laws, on its own rows.

    Returns:
        ``{"run", "laws": [{"law", "statement", "passed", "worst", "note"}]}``, and ``"attention"`` if it is favor: how
        far each head is to be trusted.
    """
    from mapsto.testing import check_attention, check_evidence, check_model

    run = load(folder, device="cpu")
    test = run.feed("test")
    what = "rows" if run.model.names else "windows"
    text = f"holding {folder} to the laws, on {min(8, len(test.rows))} of its test {what}; about a minute"
    console.print(Text(text))
    model: Any = run.model
    rows = test.rows[:8]
    if isinstance(model, VAE):
        verdicts = check_evidence(model, reworked(model, test.batch(rows), rows))
    else:
        verdicts = check_model(model, test.batch(rows))
    marks = {"W": "window", "F": "features", "H": "estimator"}
    for layer in _different(run.model):
        kind, width = layer.attention, layer.dim // layer.heads
        console.print(Text(f"and its {type(kind).__name__} of {layer.heads} heads, {width} wide"))
        letters = "PBSCTMKDR" + "".join(law for law, mark in marks.items() if hasattr(kind, mark))
        make = partial(type(kind), **kind.settings())
        verdicts += check_attention(make, heads=layer.heads, width=width, laws=letters)
    for v in verdicts:
        mark = Text("holds   ", "green") if v.passed else Text("BROKEN  ", "bold red")
        console.print(mark.append(Text(f"{v.law}  {v.statement}    worst {v.worst:.2g}  {v.note}", "")), soft_wrap=True)
    laws = [
        {"law": v.law, "statement": v.statement, "passed": v.passed, "worst": v.worst, "note": v.note} for v in verdicts
    ]
    told: dict[str, Any] = {}
    if isinstance(model, VAE) and model.bound.drawn:
        told["calibration"] = asdict(_calibrated(run, console))
    judged = run.trust(test)
    for line in listed(judged):
        console.print(Text(line), soft_wrap=True)
    return {"run": str(folder), "laws": laws, **told} | (
        {"attention": [asdict(one) for one in judged]} if judged else {}
    )


def _calibrated(run: Run, console: Console) -> Calibration:
    """Rows drawn from the model itself, whose z are known: whether the encoder believes what is true as often as it says."""
    z, feed = simulated(run, SIMULATED if flat(run.model.output) else SIMULATED // 5)
    model = run.autoencoder
    parts = (ranks(model, z[torch.from_numpy(rows)], feed.batch(rows), seed=i) for i, rows in enumerate(feed.once()))
    found = Calibration.of(torch.cat(list(parts)))
    console.print(
        Text(
            f"calibration: of {found.rows} rows drawn from the model, D {found.distance:.3f} in dimension {found.dimension}, "
            f"p {found.p:.3g}: {found.verdict}"
        ),
        soft_wrap=True,
    )
    return found
