"""The lines that training and evaluation print: what is mapped, from which rows, how, and how well."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mapsto.data.passage import Passages
from mapsto.models.mapper import Mapper
from mapsto.nn.pixel import PixelTarget
from mapsto.nn.step import StepTarget
from mapsto.nn.target import LabelsTarget, LabelTarget, NumberTarget, Target, TokenTarget
from mapsto.tasks.autoencoder import flat
from mapsto.tasks.build import parameters
from mapsto.tasks.config import Config
from mapsto.tasks.dataset import Dataset
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.forecast import forecasts
from mapsto.tasks.future import forecasting
from mapsto.tasks.pictures.text import joined
from mapsto.tasks.verdict import HIGHER, JUDGED
from mapsto.tasks.watch import amount
from mapsto.tasks.written import alone, units, written

__all__ = ["describe_map", "result_lines", "token_counts", "whole"]


FURTHER = ("imputation_rmse",)
"""What is shown of simple models beside the first of the metrics that they have."""


def describe_map(
    dataset: Dataset,
    config: Config,
    model: Mapper,
    steps: int,
    train: StoreFeed,
    where: torch.device,
    bfloat16: bool,
    folder: Path,
) -> list[str]:
    """The lines printed before training: the data, the map, the split, the machine."""
    rows = sum(dataset.split.counts.values())
    name = config.data.source.removeprefix("demo:").rstrip("/").rpartition("/")[2] or "data"
    columns = "    ".join(
        _column(dataset, c)
        for c in dict.fromkeys(c for f in [*dataset.schema.inputs, dataset.schema.output] for c, _ in f.columns[:6])
    )
    m = config.model
    sources = " + ".join(_input(part) for part in model.sources.values())
    heads = ", ".join(_target(n, t) for n, t in model.output.targets.items())
    what = model.output.kind if model.output.kind == "items" else ""
    blocks = f"encoder {m.depth} x {m.dim}, {m.mixing}, {'each item' if what else m.pool + ' pooling'}"
    if alone(model) is not None or forecasts(model) is not None:
        decoder = f"decoder {m.decoder or m.depth} x {m.dim}"
        blocks = f"encoder {m.depth} x {m.dim}, {decoder}, {m.mixing}" if model.names else f"{decoder}, {m.mixing}"
    if m.latent:
        net = f"perceptrons {m.depth} x {m.dim}" if flat(model.output) else blocks
        blocks = f"z of {m.latent} ({m.posterior} posterior, {m.prior} prior), {net}, {config.train.bound}"
    counts, how = dataset.split.counts, _split(config)
    if not model.names:
        counts, how = token_counts(dataset), f"{units(written(model).vocabulary)} {how}"
        total = f"{amount(sum(counts.values()))} {units(written(model).vocabulary)}"
        columns = f"text of {total}" if whole(config) else f"{columns}, {total} in all"
    copies = f"; {amount(dataset.split.duplicates)} copies kept on one side" if dataset.split.duplicates else ""
    if dataset.split.crossing:
        copies = f"; {amount(dataset.split.crossing)} rows of val and test are copies of training rows"
    left = f"    {dataset.errors.count} rows left out" if dataset.errors.count else ""
    passes = steps / max(1, len(train.order(0))) * config.train.accumulate
    number = "bfloat16" if bfloat16 else "float32"
    read = "" if whole(config) and not model.names else f"{amount(rows)} rows    "
    return [
        f"{name:<10}    {read}{columns}{left}",
        f"map           {sources or 'what came before'} -> {what + ': ' if what else ''}{heads}    {blocks}",
        f"split         train {amount(counts['train'])}, val {amount(counts['val'])}, test {amount(counts['test'])} {how}"
        f"{copies}    seed {config.seed}",
        *_reasons(model, config),
        f"device        {where}, {torch.get_num_threads()} threads, {number}    {amount(parameters(model))} parameters    "
        f"{amount(steps)} steps ({passes:.1f} epochs)    {folder}",
    ]


def _reasons(model: Mapper, config: Config) -> list[str]:
    """Which likelihoods were chosen by the data, and why."""
    counted = [n for n, t in model.output.targets.items() if isinstance(t, NumberTarget) and t.counted]
    if counted and config.output.number == "auto":
        return [
            f"counts        {joined(counted, 6)}: whole numbers that a negative binomial distribution fits better than a "
            "normal one (output.number=gaussian: numbers like others)"
        ]
    pixels = [t for t in model.output.targets.values() if isinstance(t, PixelTarget)]
    if pixels and not config.output.density and not config.output.binarise:
        black = pixels[0].density == "bernoulli"
        return [
            f"pixels        {pixels[0].density}: {'all are black or white' if black else 'some are grey or coloured'}"
        ]
    return []


def whole(config: Config) -> bool:
    """Whether a language model's data are one text, cut in three where it was read."""
    return config.data.split == Passages.split and not config.data.inputs and not forecasting(config)


def token_counts(dataset: Dataset) -> dict[str, int]:
    """How many tokens a language model has of each part, the ends of rows not counted."""
    lengths = dataset.store.columns["t.ids"].lengths - 1
    return {part: int(lengths[dataset.split.rows(part)].sum()) for part in dataset.split.counts}


def _split(config: Config) -> str:
    data = config.data
    if forecasting(config):
        return "by time"
    if whole(config):
        return "by place in the text"
    if data.split:
        return f'by column "{data.split}"'
    if data.val or data.test:
        return "by file"
    if data.folds:
        return f"fold {data.fold} of {data.folds}"
    return f'by group "{data.group}"' if data.group else "by hash of the content"


def _column(dataset: Dataset, column: str) -> str:
    s = dataset.summaries.get(column)
    if s is None:
        return column
    if s.distinct <= 10 and s.counts:
        common = ", ".join(f"{k[:20]} {amount(n)}" for k, n in list(s.counts.items())[:4])
        return f"{column}: {common}" + (", ..." if s.distinct > 4 else "")
    if s.lengths is not None:
        low, middle, high = s.lengths
        return f"{column}: {amount(low)}-{amount(high)} {s.unit} (median {amount(middle)})"
    if s.range is not None:
        return f"{column}: {s.range[0]:g} to {s.range[2]:g}"
    return f"{column}: {s.distinct} different"


def _input(part: Any) -> str:
    settings = part.settings()
    if part.kind == "sequence":
        return f"sequence of {settings['vocabulary'].kind} ({amount(settings['vocabulary'].size)})"
    if part.kind == "vector":
        return f"vector of {len(settings['columns'])} columns"
    if part.kind == "image":
        return f"image ({settings['stem']} of {settings['patch']})"
    return _channels(len(settings["mean"]))


def _channels(count: int) -> str:
    return f"series of {count} channel{'s' * (count != 1)}"


def _target(name: str, target: Target) -> str:
    if isinstance(target, LabelTarget | LabelsTarget):
        return f"{name} ({'any' if target.kind == 'labels' else 'one'} of {len(target.classes)})"
    if isinstance(target, TokenTarget):
        return f"{name} (sequence of {target.vocabulary.kind}, {amount(target.vocabulary.size)})"
    if isinstance(target, PixelTarget):
        return f"{name} again ({target.density} pixels)"
    if isinstance(target, StepTarget):
        return f"{name} ({_channels(target.channels)})"
    return f"{name} ({'count' if isinstance(target, NumberTarget) and target.counted else 'number'})"


def result_lines(result: Mapping[str, Any], model: Mapper) -> list[str]:
    """The test metrics, and the simple models beside them; says so when one of them does better."""
    metrics, intervals = result["metrics"], result["intervals"]
    shown = []
    for name, value in metrics.items():
        if not isinstance(value, int | float):
            continue
        form = "{:.4g}" if abs(value) >= 10 else "{:.3f}"
        span = " ({} to {})".format(*(form.format(end) for end in intervals[name])) if name in intervals else ""
        shown.append(f"{name} {form.format(value)}{span}")
    lines = [f"{'' if i else 'test':<14}" + "   ".join(shown[i : i + 3]) for i in range(0, len(shown), 3)]
    lines += [f"{'' if i else 'warning':<14}{note}" for i, note in enumerate(result.get("notes", []))]
    for title, values in result["baselines"].items():
        target, _, plain = title.rpartition(": ")
        prefix = f"{target}." if target else ""
        short = next((name for name in JUDGED if f"{prefix}{name}" in metrics and values.get(name) is not None), "")
        if not short:
            continue
        value, own = values[short], metrics[f"{prefix}{short}"]
        better = own is not None and (value > own if short in HIGHER else value < own)
        mark = "   ! the simple model does better" if better else ""
        mark = "".join([mark, *(f"   {n} {values[n]:.4g}" for n in FURTHER if values.get(n) is not None)])
        lines.append(
            f"{'beside' if title == next(iter(result['baselines'])) else '':<14}{plain or title}: {short} {value:.4g}{mark}"
        )
    return lines
