"""Metrics of a model, with intervals, beside simple models on the same rows."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as restore
from safetensors.numpy import save
from scipy import sparse

from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.models.vae import VAE
from mapsto.nn.step import StepTarget
from mapsto.nn.target import LabelsTarget, LabelTarget, NumberTarget, Target, TokenTarget
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.forecast import measured
from mapsto.tasks.latent import validated
from mapsto.training.baseline import (
    Logistic,
    LogisticLabels,
    Mean,
    MostCommon,
    MostCommonLabels,
    Ridge,
    idf,
    tfidf,
    tuned,
)
from mapsto.training.metric import bootstrap, classification, multilabel, regression
from mapsto.training.parallel import World
from mapsto.training.transcript import tokens

__all__ = ["Answers", "Scores", "answer", "baselines", "followed", "score", "validation"]

Values = dict[str, float | None]


class Answers:
    """What a model says of some rows, and what is true.

    Attributes:
        predicted: by target, arrays over events (a row has one, or one an item).
        target: by target, the events' true arrays.
        row: (events,) which row (position in the order asked for) an event belongs to.
        nll: by target, (events,) in nats.
    """

    def __init__(self) -> None:
        self.predicted: dict[str, dict[str, NDArray]] = {}
        self.target: dict[str, NDArray] = {}
        self.nll: dict[str, NDArray] = {}
        self.row: NDArray = np.zeros(0, np.int64)


@torch.no_grad()  # not inference_mode: what a sharded model gathers here is used in training again
def answer(model: Mapper, feed: StoreFeed, *, targets: bool = True, world: World | None = None) -> Answers:
    """Ask a model about every row of a feed; answers come in the feed's own order of rows.

    Whole batches are dealt to the processes of a world, and their answers put together again in the order of the
    batches: the answers, and what is computed of them, do not depend on how many processes there are.
    """
    model.eval()
    world = world or World()
    position = {int(r): i for i, r in enumerate(feed.rows)}
    found: dict[int, dict[str, NDArray]] = {}
    batches = feed.once()
    for number in world.turns(len(batches)):
        rows = batches[number % len(batches)]
        arrays = _answer(model, feed, rows, targets)
        if number < len(batches):
            found[number] = arrays | {"row": np.array([position[int(r)] for r in rows])[arrays["row"]]}
    if world.size > 1:
        found = _gathered(found, world)
    pieces = [found[number] for number in sorted(found)]
    order = np.argsort(np.concatenate([p["row"] for p in pieces]), kind="stable")
    joined = {key: np.concatenate([p[key] for p in pieces])[order] for key in pieces[0]}
    answers = Answers()
    answers.row = joined.pop("row")
    for key, array in joined.items():
        form, _, name = key.partition(" ")
        if form == "true":
            answers.target[name] = array
        elif form == "nll":
            answers.nll[name] = array.astype(np.float64)
        else:
            answers.predicted.setdefault(name, {})[form] = array
    return answers


def _answer(model: Mapper, feed: StoreFeed, rows: NDArray[np.int64], targets: bool) -> dict[str, NDArray]:
    """One batch's arrays over its events: ``row`` (place in the batch), and ``WHAT TARGET`` for each target."""
    batch = feed.batch(rows)
    answers, memory = model.answers(batch)
    theta = model.say(answers, batch)
    asked = model.output.asked(memory, batch.get("target", {}))
    valid = np.ones((len(rows), 1), bool) if asked is None else asked.cpu().numpy()
    found: dict[str, NDArray] = {"row": np.repeat(np.arange(len(rows)), valid.sum(1))}
    for name, arrays in model.output.predict(theta).items():
        # an answer to the one query of a row is no array of answers any more
        found |= {f"{key} {name}": array if asked is None else array[valid] for key, array in arrays.items()}
    for name, head in model.output.targets.items() if targets else ():
        event = model.output.event(name, batch["target"])
        log_p = head.log_likelihood(theta[name], event)
        found[f"true {name}"] = event.cpu().numpy()[valid]
        found[f"nll {name}"] = -log_p.float().cpu().numpy()[valid]
    return found


def _gathered(found: dict[int, dict[str, NDArray]], world: World) -> dict[int, dict[str, NDArray]]:
    flat = {f"{number} {key}": np.ascontiguousarray(a) for number, arrays in found.items() for key, a in arrays.items()}
    everyone: dict[int, dict[str, NDArray]] = {}
    for data in world.share(save(flat)):
        for key, array in restore(data).items():
            number, _, rest = key.partition(" ")
            everyone.setdefault(int(number), {})[rest] = array
    return everyone


def metric(head: Target, found: Answers, name: str) -> Callable[..., dict[str, Any]]:
    """The metrics that fit a target, as a function of the rows' weights."""
    predicted, true = found.predicted[name], found.target[name]
    if isinstance(head, LabelTarget):
        return partial(classification, predicted["log_probability"], true)
    if isinstance(head, LabelsTarget):
        return partial(multilabel, predicted["log_odds"], true > 0.5)
    if isinstance(head, TokenTarget):
        row, rows, characters = _rows(head, found, true)
        return partial(tokens, found.nll[name], predicted["value"] == true, row, rows, characters=characters)
    if isinstance(head, StepTarget):
        return measured(head, found, name)
    assert isinstance(head, NumberTarget)
    return partial(regression, predicted["value"], true * head.scale + head.mean, found.nll[name])


def _rows(head: TokenTarget, found: Answers, true: NDArray) -> tuple[NDArray, int, NDArray | None]:
    """The row of each token, how many rows there are, and the characters of each, if its text has any."""
    rows = int(found.row.max(initial=-1)) + 1
    if not isinstance(head.vocabulary.decode([]), str):
        return found.row, rows, None
    texts = head.vocabulary.decode_rows(true, np.bincount(found.row, minlength=rows))
    return found.row, rows, np.array([len(text) for text in texts])


class Scores:
    """Metrics with intervals: ``metrics[name]`` and ``intervals[name]``, target before name if there are several."""

    def __init__(self) -> None:
        self.metrics: Values = {}
        self.intervals: dict[str, tuple[float, float]] = {}

    def add(
        self,
        compute: Callable[..., dict[str, Any]],
        units: int,
        *,
        prefix: str = "",
        groups: NDArray | None = None,
        resamples: int = 1000,
        seed: int = 0,
    ) -> None:
        """Metrics of so many units, with intervals from resampling them, or their groups."""
        self.metrics |= {f"{prefix}{k}": v for k, v in finite(compute()).items()}
        if resamples and units:
            intervals = bootstrap(compute, units, groups=groups, resamples=resamples, seed=seed)
            self.intervals |= {f"{prefix}{k}": v for k, v in intervals.items() if np.isfinite(v).all()}


def score(
    model: Mapper, found: Answers, *, groups: NDArray | None = None, resamples: int = 1000, seed: int = 0
) -> Scores:
    """Metrics of all targets, with 95 % intervals from resampling rows, or groups.

    Args:
        model: whose output says which metrics.
        found: its answers.
        groups: the group of each row.
        resamples: 0 for no intervals.
        seed: of the resampling.
    """
    scores = Scores()
    many = len(model.output.targets) > 1
    for name, head in model.output.targets.items():
        compute = metric(head, found, name)
        # Tokens and steps are weighed by their rows; of other answers, each has a weight of its own.
        by_row = isinstance(head, TokenTarget | StepTarget)
        units = np.arange(int(found.row.max(initial=-1)) + 1) if by_row else found.row
        owners = groups[units] if groups is not None else units if model.output.kind == "items" else None
        scores.add(
            compute, len(units), prefix=f"{name}." if many else "", groups=owners, resamples=resamples, seed=seed
        )
    return scores


def finite(values: Values) -> Values:
    """Metrics that JSON can hold: what is infinite (a target that was given no probability) has no value."""
    return {name: value if value is not None and np.isfinite(value) else None for name, value in values.items()}


@torch.inference_mode()
def validation(model: Mapper, feed: StoreFeed, world: World | None = None) -> dict[str, float]:
    """The loss without smoothing, per target (a number's in standardised units), and the first metric."""
    if isinstance(model, VAE):
        return validated(model, feed, world)
    found = answer(model, feed, world=world)
    head_name, head = next(iter(model.output.targets.items()))
    total = sum(float(nll.sum()) for nll in found.nll.values())
    units = [h.unit for h in model.output.targets.values() if isinstance(h, NumberTarget)]
    count = len(found.row)
    total -= count * float(sum(units))
    if isinstance(head, StepTarget):  # an event is a step, of whose channels some may not be known
        known = np.isfinite(found.target[head_name])
        count = int(known.sum())
        total -= float((known * np.log(head.scale)).sum())
    first = followed(head)
    value = metric(head, found, head_name)()[first]
    return {"loss": total / max(1, count), first: float("nan") if value is None else value}


def followed(head: Target) -> str:
    """The metric that is shown while a target is learned."""
    if isinstance(head, NumberTarget | StepTarget):
        return "mae"
    return "token_accuracy" if isinstance(head, TokenTarget) else "accuracy"


def baselines(model: Mapper, train: StoreFeed, val: StoreFeed, test: StoreFeed) -> dict[str, Values]:
    """Simple models fitted to the same training rows, scored on the same test rows."""
    if model.output.kind == "items":
        return _per_item(model, train, test)
    features = _features(model, (train, val, test))
    result: dict[str, Values] = {}
    many = len(model.output.targets) > 1
    for name, head in model.output.targets.items():
        y_train, y_val, y_test = (_true(head, feed, name) for feed in (train, val, test))
        for title, simple in _models(head):
            if title.startswith(("logistic", "ridge")):
                fitted = tuned(simple, features[0], y_train, features[1], y_val)
            else:
                fitted = simple.fit(features[0], y_train)
            said = fitted.predict(features[2])
            if isinstance(head, LabelTarget):
                values = classification(said, y_test)
            elif isinstance(head, LabelsTarget):
                values = multilabel(said, y_test)
            else:
                values = regression(said.mean, y_test, said.nll(y_test))
            result[f"{name}: {title}" if many else title] = finite(values)
    return result


def _models(head: Target) -> Sequence[tuple[str, Any]]:
    if isinstance(head, LabelTarget):
        return ("most common", MostCommon(len(head.classes))), ("logistic", Logistic(len(head.classes)))
    if isinstance(head, LabelsTarget):
        return ("most common", MostCommonLabels()), ("logistic", LogisticLabels())
    return ("mean", Mean()), ("ridge", Ridge())


def _features(model: Mapper, feeds: Sequence[StoreFeed]) -> list[Any]:
    """The plain features of the rows of each feed; counts are weighed, and numbers beside counts scaled, as in the first."""
    columns: list[list[Any]] = []
    for name, part in model.sources.items():
        found = [part.plain(feed.take(name, feed.rows)) for feed in feeds]
        if sparse.issparse(found[0]):
            weight = idf(found[0])
            found = [tfidf(x, weight) for x in found]
        elif len(model.names) > 1:
            center, scale = found[0].mean(0), found[0].std(0)
            found = [(x - center) / np.where(scale > 0, scale, 1) for x in found]
        columns.append(found)
    if len(columns) == 1:
        return columns[0]
    rows = zip(*columns, strict=True)
    if any(sparse.issparse(found[0]) for found in columns):
        return [sparse.csr_array(sparse.hstack([sparse.csr_array(x) for x in row], format="csr")) for row in rows]
    return [np.concatenate(row, 1) for row in rows]


def _true(head: Target, feed: StoreFeed, name: str) -> NDArray:
    events = feed.take("target", feed.rows)[name].dense()[:, 0]
    if isinstance(head, NumberTarget):
        return events * head.scale + head.mean
    return events > 0.5 if isinstance(head, LabelsTarget) else events


def _per_item(model: Mapper, train: StoreFeed, test: StoreFeed) -> dict[str, Values]:
    """Most common answer; and, for sequences, the most common answer of each token."""
    ((_, head),) = model.output.targets.items()
    seen, _ = train.take("target", train.rows)["values"].flat()
    asked, _ = test.take("target", test.rows)["values"].flat()
    if isinstance(head, NumberTarget):
        true = asked * head.scale + head.mean
        said = Mean().fit(seen, seen * head.scale + head.mean).predict(asked)
        return {"mean": regression(said.mean, true, said.nll(true))}
    if not isinstance(head, LabelTarget):
        simple = MostCommonLabels().fit(seen, seen > 0.5)
        return {"most common": multilabel(simple.predict(asked), asked > 0.5)}
    classes = len(head.classes)
    common = MostCommon(classes).fit(seen, seen)
    result = {"most common": classification(common.predict(asked), asked)}
    name, part = next(iter(model.sources.items()))
    if isinstance(part, SequenceInput):
        ids, _ = train.take(name, train.rows)["ids"].flat()
        new, _ = test.take(name, test.rows)["ids"].flat()
        size = part.vocabulary.size
        counts = np.bincount(ids.astype(np.int64) * classes + seen, minlength=size * classes).reshape(size, classes)
        prior = np.exp(common.log_frequency)
        share = np.log((counts + prior) / (counts.sum(1, keepdims=True) + 1))
        result["most common of the token"] = classification(share[new], asked)
    return result
