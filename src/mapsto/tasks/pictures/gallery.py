"""All pictures of a run, with their captions, and what could not be made."""

import re

import numpy as np

from mapsto.errors import DataError, MapstoError
from mapsto.models.vae import VAE
from mapsto.nn.target import LabelsTarget, LabelTarget, NumberTarget, Target
from mapsto.tasks.dataset import Dataset, Measured, Parts, fingerprint
from mapsto.tasks.forecast import forecasts
from mapsto.tasks.honesty import MEASURED, PREDICTED
from mapsto.tasks.pictures import forecast, language, latent, writing
from mapsto.tasks.pictures.attention import attended
from mapsto.tasks.pictures.classes import confusions, label_bars
from mapsto.tasks.pictures.curves import curves, read_history
from mapsto.tasks.pictures.example import Example, costs, events, examples, heads, spread
from mapsto.tasks.pictures.honesty import trusted
from mapsto.tasks.pictures.numbers import predictions
from mapsto.tasks.pictures.picture import Gallery, Picture
from mapsto.tasks.pictures.view import ImageView, SeriesView, TokensView, VectorView, inputs
from mapsto.tasks.run import Run
from mapsto.tasks.score import Answers, answer
from mapsto.tasks.written import alone

__all__ = ["Gallery", "Picture", "gallery"]

ROWS = {TokensView: (16, 8), ImageView: (30, 15), SeriesView: (8, 8), VectorView: (6, 9)}
"""By kind of the first input: how many examples of the data, and how many of attention and of mistakes."""


def gallery(run: Run) -> Gallery:
    """Draw everything that the run's folder and data allow.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    made = Gallery()
    _curves(run, made)
    try:
        made.data = _data(run)
    except MapstoError as error:
        made.left_out.append(f"All pictures that need the data: {error}")
        return made
    test = run.feed("test")
    if not len(test.rows):
        made.left_out.append("Answers, mistakes and attention: the run has no test rows")
        _received(run, made)
        return made
    if isinstance(run.model, VAE):
        latent.seen(run, made)
        return made
    found = answer(run.model, test)
    if alone(run.model) is not None:
        _sequences(run, made, found)
        return made
    if forecasts(run.model) is not None:
        forecast.ahead(run, made, found)
        _trusted(run, made)
        return made
    for name, head in heads(run.model).items():
        _answers(run, made, found, name, head)
    _received(run, made)
    _mistakes(run, made, found)
    _attention(run, made, found)
    _trusted(run, made)
    return made


def _sequences(run: Run, made: Gallery, found: Answers) -> None:
    """The pictures of a model that writes."""
    if not run.model.names:
        language.surprised(run, made, found)
        language.sampled(run, made)
        writing.along(run, made, found, beside=_beside(run))
        language.windows(run, made)
        language.surprising(run, made, found)
    else:
        writing.along(run, made, found)
        writing.received(run, made)
        writing.mistaken(run, made, found)
        writing.looked(run, made)
    _trusted(run, made)


def _beside(run: Run) -> dict[str, float]:
    """Nats a token of the simple models that training was judged beside."""
    try:
        simple = run.result["baselines"]
        return {name: float(values["nll"]) for name, values in simple.items() if values.get("nll") is not None}
    except (MapstoError, LookupError, TypeError, ValueError, AttributeError):
        return {}


def _data(run: Run) -> Dataset:
    data = run.dataset()
    new = Parts.build(run.schema, data.measured, dim=8)
    own = Measured([part.settings() for part in inputs(run.model).values()], run.model.output.settings())
    found = Measured([part.settings() for part in new.inputs], new.output.settings())
    if fingerprint(own) != fingerprint(found):
        # what is measured anew from other rows (a vocabulary, say) would be read wrongly by this model
        raise DataError(f"{data.places[0][0]} has changed since this run was trained.   Restore it, or train anew")
    return data


def _curves(run: Run, made: Gallery) -> None:
    history = read_history(run.folder / "metrics.jsonl")
    if not history:
        made.left_out.append("Curves: the run folder has no metrics.jsonl")
        return
    caption = (
        "Negative log-likelihood, in nats a row (an item, where every item has an answer); numbers in units of their "
        "standard deviation. The training loss is the "
        "mean since the evaluation before, with dropout and with the weights as they move; the validation loss is "
        "measured without dropout and with averaged weights, so it may lie below."
    )
    each = ""
    if alone(run.model) is not None:
        each = " a token"
        _, _, rest = caption.partition(". ")
        caption = f"Negative log-likelihood, in nats a token, each row's end among them. {rest}"
        if run.config.train.smoothing:
            caption += " The training loss is that of smoothed targets (train.smoothing), which is higher."
    made.pictures.append(Picture("curves", "How training went", caption, curves(history, each=each)))


def _answers(run: Run, made: Gallery, found: Answers, name: str, head: Target) -> None:
    many = len(heads(run.model)) > 1
    suffix = f"-{re.sub(r'[^A-Za-z0-9_-]+', '-', name)}" if many else ""
    arrays, true = found.predicted[name], found.target[name]
    if isinstance(head, LabelTarget):
        drawn = confusions(arrays["log_probability"], true, head.classes, name=name)
        caption = (
            "Left: every row is a true class, every column what was said; the numbers count test rows. Right: of the "
            "answers given with some probability, the share that is right (bars: 95 % intervals). Points below the "
            "dashed line are answers more sure than right. The calibration error is the mean distance from the line."
        )
        caption = caption if len(head.classes) <= 14 else caption.replace("Left:", "Above:").replace("Right:", "Below:")
        made.pictures.append(Picture(f"confusion{suffix}", f"What is taken for what: {name}", caption, drawn))
    elif isinstance(head, LabelsTarget):
        drawn = label_bars(arrays["log_odds"], true > 0.5, head.classes, name=name)
        caption = "Each label by itself on the test rows. ROC AUC is 0.5 by chance (dashed), 1 for perfect answers."
        made.pictures.append(Picture(f"labels{suffix}", f"How well each label is found: {name}", caption, drawn))
    elif isinstance(head, NumberTarget):
        drawn = predictions(arrays["value"], arrays["sigma"], true * head.scale + head.mean, name=name)
        caption = (
            "Left: a point on the dashed line is exactly right; the shade is one predicted standard deviation. Right: "
            "what is left, divided by that standard deviation; a narrower histogram than the curve means that the "
            "model is less sure than it could be, a wider one that it is too sure (values beyond 4 are counted at 4)."
        )
        made.pictures.append(Picture(f"numbers{suffix}", f"Predicted beside true: {name}", caption, drawn))


def _received(run: Run, made: Gallery) -> None:
    assert made.data is not None
    if alone(run.model) is not None:
        (writing.received if run.model.names else language.windows)(run, made)
        return
    train = run.feed("train")
    head = next(iter(heads(run.model).values()))
    classes = len(head.classes) if isinstance(head, LabelTarget) else 0
    picked = spread(head, events(train, train.rows[:50_000]), max(_limits(run)[0], min(30, classes)))
    shown = examples(train, picked, made.data.places)
    title = "Training rows as the model receives them"
    made.sheet("received", title, _how(shown), shown)


def _mistakes(run: Run, made: Gallery, found: Answers) -> None:
    assert made.data is not None
    test = run.feed("test")
    cost = costs(found, len(test.rows))
    worst = np.argsort(-cost, kind="stable")[: _limits(run)[1]]
    shown = examples(test, worst, made.data.places, found)
    title = "The test rows that surprised the model most"
    caption = (
        "The lowest log-likelihood first: what is true, what was said with which probability, and where the row "
        "stands. Look for wrong labels in the data, rows cut short, and what they have in common."
    )
    if run.model.output.kind == "items":
        caption += " Items answered wrongly are underlined; the likelihood is the mean over a row's items."
    made.sheet("mistakes", title, caption, shown)


def _attention(run: Run, made: Gallery, found: Answers) -> None:
    assert made.data is not None
    test = run.feed("test")
    head = next(iter(heads(run.model).values()))
    picked = spread(head, events(test, test.rows), _limits(run)[1])
    seen = attended(run.model, test.batch(test.rows[picked]))
    if seen is None:
        made.left_out.append("Attention: the model has no attention layer")
        return
    shown = examples(test, picked, made.data.places, found)
    title = "Where the model looks: test rows"
    caption = (
        f"Shown is {seen.source}. A weight of 1 is the even share, what every item would get if all got the same. "
        "It says where this layer looked, not why the answer was given."
    )
    made.sheet("attention", title, caption, shown, weights=seen.weights)


def _trusted(run: Run, made: Gallery) -> None:
    found = run.trust(run.feed("test"))
    if found:
        caption = (
            "In each cell: the error of the head's answers against exact softmax attention on the same queries and keys "
            f"(to be trusted below {MEASURED:.0%}); beneath, the relative variance of a weight that theory predicts, the "
            f"median over pairs (below {PREDICTED:g})."
        )
        made.pictures.append(Picture("trust", "How far favor attention is to be trusted", caption, trusted(found)))


def _limits(run: Run) -> tuple[int, int]:
    kinds = {"sequence": TokensView, "image": ImageView, "series": SeriesView, "vector": VectorView}
    data, asked = ROWS[kinds.get(next(iter(inputs(run.model).values())).kind, TokensView)]
    return (data, asked) if len(run.model.inputs) == 1 else (6, 8)


def _how(shown: list[Example]) -> str:
    """How to read the data as the model receives them."""
    kinds = {type(v) for e in shown for v in e.views.values()}
    views = [v for e in shown for v in e.views.values()]
    parts = []
    if TokensView in kinds:
        tokens = [v for v in views if isinstance(v, TokensView)]
        full = sum(v.full for v in tokens)
        parts.append("Each box is one token; a token that the vocabulary lacks is an orange question mark.")
        if full:
            parts.append(f"{full} of these {len(tokens)} rows fill the limit (input.limit), so some may have been cut.")
    if ImageView in kinds:
        parts.append("Pixels less their mean, divided by their spread; each square of the grid is one item.")
    if SeriesView in kinds:
        parts.append("Channels against time, in the data's own units; a cross at the foot is a missing sample.")
    if VectorView in kinds:
        parts.append(
            "Numbers as bars in standard deviations from the training rows' mean (cut at 3), with the cell's own text; "
            "hatched cells have no value, orange ones did not occur in training."
        )
    return " ".join(parts)
