"""The pictures of a model that maps to sequences: how it writes, where it errs, and what it looks at meanwhile."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mapsto.models.search import Written
from mapsto.nn.target import TokenTarget
from mapsto.outputs import TokenOutput
from mapsto.ragged import evenly
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.pictures.alignment import LIMIT, Alignment, aligned, alignments
from mapsto.tasks.pictures.example import Example, Line, costs, events, examples, spread
from mapsto.tasks.pictures.picture import Gallery, Picture
from mapsto.tasks.pictures.place import places
from mapsto.tasks.pictures.view import TokensView, VectorView, told
from mapsto.tasks.run import Run
from mapsto.tasks.score import Answers
from mapsto.tasks.window import make_feed
from mapsto.tasks.written import searched, strategy, write, written
from mapsto.training.edit import unmatched
from mapsto.vocabulary import END

__all__ = ["along", "looked", "mistaken", "received"]

ROWS = 16
MISTAKES = 12
MAPS = 6
SIDES = (20, 34)
"""Tokens of a side, of rows whose maps stand side by side."""

PANELS = 10


def along(run: Run, made: Gallery, found: Answers, *, beside: dict[str, float] | None = None) -> None:
    """Nats and accuracy by place and length."""
    output = written(run.model)
    head = output.targets[output.name]
    assert isinstance(head, TokenTarget)
    nll, right = found.nll[output.name], found.predicted[output.name]["value"] == found.target[output.name]
    rows = int(found.row.max(initial=-1)) + 1
    window = output.window > 0
    drawn = places(nll, right, found.row, rows, window=window, beside=beside or {})
    caption = (
        "Of the test part, each token given the true ones before it. Tokens later in a window have more text to be "
        "predicted from; where the curve no longer falls, a longer window (output.limit) would not help. Dashed: simple "
        "models, on the mean of all tokens."
        if window
        else "Of the test rows, each token given the true ones before it, the end among them. Right: rows of about one "
        "length, larger points stand for more rows."
    )
    made.pictures.append(Picture("places", "How well the next token is known", caption, drawn))


def received(run: Run, made: Gallery) -> None:
    """Training rows, source and target, from short targets to long ones."""
    assert made.data is not None
    output, train = written(run.model), run.feed("train")
    head = output.targets[output.name]
    picked = spread(head, events(train, train.rows[:50_000]), ROWS)
    shown = [
        replace(one, lines=(Line(output.name, view),))
        for one, view in zip(examples(train, picked, made.data.places), _true(output, train, picked), strict=True)
    ]
    title = "Training rows as the model receives them"
    cut = sum(one.lines[0].view.full for one in shown)
    caption = (
        "From short targets to long ones. Each box is one token; a token that the vocabulary lacks is an orange question "
        "mark. An end token follows the last one, unless the row was cut"
        + (f", as {cut} of these {len(shown)} are (output.limit={output.limit})." if cut else " (none of these is).")
    )
    made.sheet("received", title, caption, shown)


def mistaken(run: Run, made: Gallery, found: Answers) -> None:
    """The test rows of least likelihood, what is true and what the model writes."""
    assert made.data is not None
    output, test = written(run.model), run.feed("test")
    cost = costs(found, len(test.rows))
    worst = np.argsort(-cost, kind="stable")[:MISTAKES]
    said = _write(run, test, worst)
    shown = []
    rows = zip(examples(test, worst, made.data.places), _true(output, test, worst), said, cost[worst], strict=True)
    for one, true, line, nats in rows:
        mine = told(output.vocabulary, line.ids)
        wrong, lacking = unmatched(mine.tokens, true.tokens)
        stopped = "    stopped at the limit" if line.reason == "limit" else ""
        lines = (Line("true", true, lacking), Line("said", mine, wrong))
        shown.append(replace(one, truth=f"{nats:.3g} nats a token{stopped}", lines=lines))
    how = searched(run.config.output)
    caption = (
        f"The lowest log-likelihood a token first; said is what the model writes by itself ({how}). Underlined are "
        "the tokens said that are not in the truth, and the true ones that are not said, by one of the shortest ways from "
        "one to the other. Look for wrong targets in the data, rows cut short, and what they have in common."
    )
    made.sheet("mistakes", "The test rows that surprised the model most", caption, shown)


def looked(run: Run, made: Gallery) -> None:
    """What the last cross-attention looks at for each token that the model writes."""
    assert made.data is not None
    output, test = written(run.model), run.feed("test")
    lengths = np.array([len(e) for e in events(test, test.rows)])
    longest = np.maximum(lengths, test.lengths - lengths)
    enough = next((most for most in SIDES if np.count_nonzero(longest <= most) >= 3 * MAPS), LIMIT)
    small = np.flatnonzero(longest <= max(enough, longest.min()))
    order = small[np.argsort(lengths[small], kind="stable")]
    picked = order[evenly(len(order), MAPS + 2)][-MAPS:]
    said = _write(run, test, picked)
    ids = [[*line.ids, *[END] * (line.reason == "end")] for line in said]
    rows = test.rows[picked]
    weights = aligned(run.model, test.batch(rows), ids)
    if weights is None:
        made.left_out.append("Alignments: the decoder has no cross-attention")
        return
    shown = examples(test, picked, made.data.places)
    true = events(test, rows)
    names = [[*output.vocabulary.names(line.ids), *["<end>"] * (line.reason == "end")] for line in said]
    title = "What the model looks at while it writes: test rows"
    caption = (
        "From top to bottom what the model writes by itself, from left to right what it is asked: the darker, the more "
        "of the cross-attention of the decoder's last layer, averaged over its heads, goes to that item when the token "
        "is chosen; an even shade looks at nothing in particular. Orange tokens are mistaken. It says where this layer "
        "looked, not why the token was written."
    )
    if all(isinstance(v, TokensView | VectorView) for v in shown[0].views.values()):
        maps = [
            Alignment(w, n, _items(one), one.where, unmatched(i, t)[0])
            for w, n, one, t, i in zip(weights, names, shown, true, ids, strict=True)
        ]
        made.pictures.append(Picture("alignment", title, caption, alignments(maps, title)))
        return
    panels, shares = [], []
    for one, row, tokens in zip(shown[:2], weights, names, strict=False):
        sizes = np.cumsum([v.items for v in one.views.values()])
        for l, token in enumerate(tokens[:PANELS]):
            panels.append(replace(one, truth=f"{l + 1}. {token}", where=one.where if l == 0 else ""))
            parts = np.split(row[l] * row.shape[1], sizes[:-1])
            shares.append(dict(zip(one.views, parts, strict=True)))
    caption = caption.replace(
        "From top to bottom what the model writes by itself, from left to right what it is asked:",
        f"A panel for each of the first {PANELS} tokens that the model writes of two rows:",
    ).replace(" Orange tokens are mistaken.", "")
    made.sheet("alignment", title, caption, panels, weights=shares)


def _items(one: Example) -> list[str]:
    """The names of all items the model is asked from."""
    return [n for v in one.views.values() for n in (v.tokens if isinstance(v, TokensView) else getattr(v, "names"))]  # noqa: B009


def _write(run: Run, feed: StoreFeed, positions: NDArray[np.int64]) -> list[Written]:
    rows, t = feed.rows[positions], run.config.train
    some = make_feed(feed.store, rows, run.model, tokens=t.batch_tokens, batch_rows=t.batch_rows, device=feed.device)
    return [best[0] for best in write(run.model, some, strategy(run.config.output))]


def _true(output: TokenOutput, feed: StoreFeed, positions: NDArray[np.int64]) -> list[TokensView]:
    """The targets of some rows; those without an end were cut."""
    return [told(output.vocabulary, e, full=END not in e) for e in events(feed, feed.rows[positions])]
