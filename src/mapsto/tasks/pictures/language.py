"""The pictures of a language model: what surprises it in a text, beside an n-gram model, and what it writes."""

import numpy as np
from numpy.typing import NDArray

from mapsto.models.search import Sample
from mapsto.music import Music
from mapsto.ragged import evenly
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.pictures.example import Example, Line, costs
from mapsto.tasks.pictures.passage import END_MARK, Passage, page, passages
from mapsto.tasks.pictures.picture import Gallery, Picture
from mapsto.tasks.pictures.roll import roll
from mapsto.tasks.pictures.view import told
from mapsto.tasks.run import Run
from mapsto.tasks.sample import continued
from mapsto.tasks.score import Answers
from mapsto.tasks.window import WindowFeed
from mapsto.tasks.written import texts, written
from mapsto.training.backoff import tuned_order
from mapsto.vocabulary import END, UNKNOWN

__all__ = ["sampled", "surprised", "surprising", "windows"]

TOKENS = 900
WINDOWS = 4
SAMPLES = 4
WRITTEN = 400
TEMPERATURE = 0.8


def surprised(run: Run, made: Gallery, found: Answers) -> None:
    """The beginning of the test part, each token shaded by its surprise, beside the best n-gram model's."""
    output = written(run.model)
    nll, true = found.nll[output.name], found.target[output.name]
    train, val, test = (texts(run.feed(part)) for part in ("train", "val", "test"))
    simple = tuned_order(train, val, output.vocabulary.size)
    beside = -simple.log_prob(*test)
    count = min(TOKENS, len(nll))
    names, gap = _names(run, true[:count]), _gap(run)
    mine, other = (bits[:count] / np.log(2) for bits in (nll, beside))
    beaten = f"{simple.order}-gram" if simple.order > 1 else "unigram"
    shown = [
        Passage(f"this model: {mine.mean():.2f} bits a token here", names, mine, gap),
        Passage(f"{beaten} model: {other.mean():.2f} bits a token here", names, other, gap),
    ]
    title = "What surprises it: the beginning of the test part"
    caption = (
        "Each token is shaded by −log₂ p, given the true tokens before it: white was expected, orange was not. Beside it "
        f"the same text for the simple model, whose order was chosen on the validation rows. {END_MARK} is the end of a row, "
        "? a token that the vocabulary lacks."
    )
    made.pictures.append(Picture("surprise", title, caption, passages(shown, title), page(shown), True))


def windows(run: Run, made: Gallery) -> None:
    """Some windows of the training part, as the model receives them."""
    output, train = written(run.model), run.feed("train")
    shown = []
    for window in train.rows[evenly(len(train.rows), WINDOWS)]:
        ids = train.take("target", np.array([window]))["ids"].flat()[0]
        shown.append(
            Example(_where(made, train, int(window)), {}, "", lines=(Line("text", told(output.vocabulary, ids)),))
        )
    caption = (
        f"Each box is one token; a token that the vocabulary lacks is an orange question mark. A window is {output.window} "
        "tokens long at most (output.limit), and begins elsewhere in every epoch."
    )
    made.sheet("received", "Windows of the training part as the model receives them", caption, shown)


def surprising(run: Run, made: Gallery, found: Answers) -> None:
    """The test windows of least likelihood a token."""
    output, test = written(run.model), run.feed("test")
    cost = costs(found, len(test.rows))
    # the last tokens of a text are a window too, and few tokens may surprise by chance
    cost[test.lengths < min(output.window // 2, test.lengths.max(initial=0))] = -np.inf
    worst = np.argsort(-cost, kind="stable")[: min(WINDOWS, int(np.isfinite(cost).sum()))]
    shown = []
    for position in worst.tolist():
        at = np.flatnonzero(found.row == position)
        bits = found.nll[output.name][at] / np.log(2)
        where = _where(made, test, int(test.rows[position]))
        names = _names(run, found.target[output.name][at])
        shown.append(Passage(f"{where}: {bits.mean():.2f} bits a token", names, bits, _gap(run)))
    title = "The test windows that surprised the model most"
    caption = (
        "The most bits a token first. Look for another language, lists, names, and text that was read wrongly. A window "
        "begins with the one token before it in sight, so its first tokens surprise more."
    )
    made.pictures.append(Picture("mistakes", title, caption, passages(shown, title), page(shown), True))


def sampled(run: Run, made: Gallery) -> None:
    """Texts that the model writes from nothing."""
    how = Sample(temperature=TEMPERATURE, seed=run.config.seed)
    music = written(run.model).vocabulary
    if isinstance(music, Music):
        for number, line in enumerate(continued(run, "", count=2, tokens=WRITTEN, how=how), 1):
            caption = (
                f"Drawn from the model at temperature {TEMPERATURE}, from nothing, {WRITTEN} events at most. A bar is a note: "
                "its pitch against the time in seconds, a colour an instrument, darker if louder; drums beneath."
            )
            drawn = roll(music.decode(line.ids), music.grid)
            made.pictures.append(Picture(f"sample-{number}", f"What it writes: sample {number}", caption, drawn))
        return
    lines = continued(run, "", count=SAMPLES, tokens=WRITTEN, how=how)
    shown = []
    for number, line in enumerate(lines, 1):
        ids = [*line.ids, *[END] * (line.reason == "end")]
        shown.append(Passage(f"sample {number}", _names(run, np.array(ids)), None, _gap(run)))
    title = f"What it writes: {len(shown)} samples"
    caption = (
        f"Drawn from the model at temperature {TEMPERATURE}, from nothing, {WRITTEN} tokens at most; not chosen among more. "
        f"{END_MARK} is where it ended a text."
    )
    made.pictures.append(Picture("samples", title, caption, passages(shown, title), page(shown), True))


def _names(run: Run, ids: NDArray) -> list[str]:
    names = written(run.model).vocabulary.names(ids.tolist())
    marks = {END: END_MARK, UNKNOWN: "?"}
    return [marks.get(i, name) for i, name in zip(ids.tolist(), names, strict=True)]


def _gap(run: Run) -> int:
    return int(written(run.model).vocabulary.kind in ("words", "symbols", "music"))


def _where(made: Gallery, feed: StoreFeed, window: int) -> str:
    """The row of a window, and its first token if the row has several windows."""
    assert made.data is not None
    assert isinstance(feed, WindowFeed)
    row = feed.place(window)
    name, line = made.data.places[row]
    first = window // (feed.width + 1) - int(feed.columns["target"]["ids"].offsets[row])
    return f"{name} row {line}, from token {first + 1}"
