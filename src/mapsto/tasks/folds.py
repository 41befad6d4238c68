"""Cross-validation: K runs, each tested on its own fold, and their mean."""

import math
from typing import Any

from rich.console import Console
from rich.text import Text

from mapsto.tasks.config import Config
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.run import Run
from mapsto.tasks.train import train
from mapsto.training.parallel import joined

__all__ = ["train_folds"]


def train_folds(
    config: Config,
    source: Any = None,
    *,
    name: str,
    console: Console | None = None,
    tuned: dict[str, Any] | None = None,
) -> tuple[list[Run], dict[str, Any]]:
    """Train K = ``data.folds`` runs, ``NAME-fold-0`` and on.

    Returns:
        The runs, and a result whose metrics are means over the folds, with intervals of mean ± 1.96 standard errors
        over folds (which share training rows, so they are rough), and each fold's own result under ``folds``.
    """
    console = console or Console(stderr=True)
    config, runs, results = config.model_copy(deep=True), [], []
    with joined(config.train.timeout) as world:
        console = console if world.first else Console(quiet=True)
        for fold in range(config.data.folds):
            one = config.model_copy(deep=True)
            one.data.fold = fold
            console.print(f"fold {fold + 1} of {config.data.folds}", highlight=False)
            run, result = train(one, source, name=f"{name}-fold-{fold}", console=console, tuned=tuned, world=world)
            config.model.attention = run.config.model.attention  # what "auto" came to, for all folds
            runs.append(run)
            results.append(result)
    metrics: dict[str, Any] = {}
    intervals: dict[str, list[float]] = {}
    for key in results[0]["metrics"]:
        values = [r["metrics"][key] for r in results if r["metrics"].get(key) is not None]
        if values and isinstance(values[0], dict):  # a table, such as IWAE by k
            metrics[key] = {k: _mean([v.get(k) for v in values]) for k in values[0]}
            continue
        if not values:
            metrics[key] = None
            continue
        mean = sum(values) / len(values)
        metrics[key] = mean
        if len(values) > 1:
            error = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
            intervals[key] = [mean - 1.96 * error, mean + 1.96 * error]
    simple: dict[str, Any] = {}
    for title in results[0]["baselines"]:
        parts = [r["baselines"][title] for r in results if title in r["baselines"]]
        simple[title] = {k: _mean([p[k] for p in parts]) for k in parts[0]}
    summary = {
        "run": [r["run"] for r in results],
        "metrics": metrics,
        "intervals": intervals,
        "baselines": simple,
        "seconds": round(sum(r["seconds"] for r in results), 2),
        "folds": results,
    }
    shown = "   ".join(
        f"{k} {v:.3f} ({intervals[k][0]:.3f} to {intervals[k][1]:.3f})"
        for k, v in metrics.items()
        if k in intervals and v
    )
    console.print(Text(visible(f"{config.data.folds} folds       {shown}")), highlight=False, soft_wrap=True)
    return runs, summary


def _mean(values: list[Any]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
