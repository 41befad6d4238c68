"""How a model stands beside the simple ones: a table, and one sentence that does not flatter."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["HIGHER", "JUDGED", "Line", "Verdict", "shown", "verdicts", "word"]

HIGHER = ("accuracy", "balanced_accuracy", "exact_match", "f1", "roc_auc", "r2", "token_accuracy", "bleu", "chrf")
JUDGED = ("accuracy", "rmse", "perplexity", "per", "nll")
"""What a simple model is held against: the first of these that both have."""

WIDE = 5
"""The most metrics that are columns of a table; of more, each is a row."""

WORDS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "exact_match": "exact match",
    "f1": "F1",
    "roc_auc": "ROC AUC",
    "nll": "NLL (nats)",
    "mae": "mean absolute error",
    "rmse": "root mean square error",
    "r2": "R²",
    "mase": "MASE",
    "coverage": "share within the 95 % interval",
    "token_accuracy": "token accuracy",
    "perplexity": "perplexity",
    "bits_per_character": "bits a character",
    "per": "symbol error rate",
    "wer": "word error rate",
    "bleu": "BLEU",
    "chrf": "chrF",
    "elbo": "ELBO (nats)",
    "reconstruction": "reconstruction (nats)",
    "kl": "KL (nats)",
    "bits_per_dim": "bits a number",
    "effective": "effective samples",
    "active_units": "active units",
    "active_units_kl": "active units by KL",
    "aggregate_kl": "KL of the mean belief (nats)",
    "mutual_information": "mutual information (nats)",
    "amortisation_gap": "amortisation gap (nats)",
}


@dataclass(frozen=True)
class Line:
    """One model's metrics.

    Attributes:
        name: of the model.
        values: by metric; None where it has no value.
        intervals: by metric, 95 %.
    """

    name: str
    values: Mapping[str, float | None]
    intervals: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Verdict:
    """One target's table.

    Attributes:
        target: its name.
        metrics: the columns.
        lines: this model first, then the simple ones.
        sentence: who does better.
        beaten: whether a simple model does better.
    """

    target: str
    metrics: list[str]
    lines: list[Line]
    sentence: str
    beaten: bool

    def table(self) -> tuple[list[str], list[list[str]], bool]:
        """Titles of the columns, cells, and whether a row is a model: a metric is one where there are many of them."""
        cells = [[_cell(line, metric) for metric in self.metrics] for line in self.lines]
        names, words = [line.name for line in self.lines], [word(metric) for metric in self.metrics]
        if len(self.metrics) <= WIDE:
            return ["", *words], [[name, *row] for name, row in zip(names, cells, strict=True)], True
        return ["", *names], [[title, *row] for title, *row in zip(words, *cells, strict=True)], False


def verdicts(result: Mapping[str, Any], targets: Sequence[str]) -> list[Verdict]:
    """One verdict a target, from ``{"metrics", "intervals", "baselines"}``.

    Example:
        >>> result = {"metrics": {"accuracy": 0.5}, "intervals": {}, "baselines": {"logistic": {"accuracy": 0.75}}}
        >>> verdicts(result, ["mood"])[0].sentence
        'A simple model does better: logistic has accuracy 0.750, this model 0.500.'
    """
    made = []
    for target in targets:
        prefix, title = (f"{target}.", f"{target}: ") if len(targets) > 1 else ("", "")
        values = {
            k.removeprefix(prefix): v
            for k, v in result["metrics"].items()
            if k.startswith(prefix) and not isinstance(v, dict)
        }
        intervals = {k.removeprefix(prefix): v for k, v in result["intervals"].items() if k.startswith(prefix)}
        own = Line("this model", values, intervals)
        simple = [Line(k.removeprefix(title), v, {}) for k, v in result["baselines"].items() if k.startswith(title)]
        sentence, beaten = _judge(own, simple)
        made.append(Verdict(target, [m for m, v in values.items() if v is not None], [own, *simple], sentence, beaten))
    return made


def shown(value: float | None) -> str:
    """A metric as text.

    Example:
        >>> shown(0.12345), shown(123.456), shown(None)
        ('0.123', '123.5', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def _cell(line: Line, metric: str) -> str:
    interval = line.intervals.get(metric)
    span = f" ({shown(interval[0])} to {shown(interval[1])})" if interval else ""
    return f"{shown(line.values.get(metric))}{span}"


def word(metric: str) -> str:
    """A metric's name for people."""
    return WORDS.get(metric, metric)


def _judge(own: Line, simple: Sequence[Line]) -> tuple[str, bool]:
    """One sentence for each metric that some simple model is held against, those it does better at first."""
    held: dict[str, list[tuple[str, float]]] = {}
    for line in simple:
        both = (m for m in JUDGED if own.values.get(m) is not None and line.values.get(m) is not None)
        if metric := next(both, ""):
            held.setdefault(metric, []).append((line.name, float(line.values[metric] or 0.0)))
    if not held:
        return "There is no simple model to compare with.", False
    found = [_compare(own, metric, held[metric]) for metric in JUDGED if metric in held]
    if len(found) > 1:
        prefixes = [f"By {word(metric)}, " for metric in JUDGED if metric in held]
        found = [(f"{by}{text[0].lower()}{text[1:]}", b) for by, (text, b) in zip(prefixes, found, strict=True)]
    return " ".join(text for text, _ in sorted(found, key=lambda one: not one[1])), any(beaten for _, beaten in found)


def _compare(own: Line, metric: str, others: Sequence[tuple[str, float]]) -> tuple[str, bool]:
    mine = float(own.values[metric] or 0.0)
    sign = 1 if metric in HIGHER else -1
    name, best = max(others, key=lambda pair: sign * pair[1])
    interval = own.intervals.get(metric)
    span = f" (95 % interval {shown(interval[0])} to {shown(interval[1])})" if interval else ""
    chance = (
        " The difference lies within the interval and may be chance."
        if interval and interval[0] <= best <= interval[1]
        else ""
    )
    beside = f"{name} has {word(metric)} {shown(best)}"
    if sign * best > sign * mine:
        return f"A simple model does better: {beside}, this model {shown(mine)}{span}.{chance}", True
    if best == mine:
        return f"A simple model does as well: {beside}, and so has this one{span}.", False
    return f"It does better than the simple models: {word(metric)} {shown(mine)}{span}; {beside}.{chance}", False
