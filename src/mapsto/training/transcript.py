"""The numbers of written sequences: of their tokens, and of the decoded rows beside what is true.

As in :mod:`mapsto.training.metric` every metric is a ratio, or another function, of sums over rows, takes a weight a
row, and so goes through :func:`~mapsto.training.metric.bootstrap`. What is dear (alignments, n-gram counts) is counted
once a row, and a resample is only another weighted sum of those counts.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import zip_longest
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapsto.errors import DataError, NonFiniteError
from mapsto.training.edit import edit_distance
from mapsto.training.weight import Floats, Resampled, Values, ratio, report, weighted, weights

__all__ = ["Text", "Transcript", "alternatives", "copied", "tokens"]

Text = str | Sequence[str]  # a text, or a list of symbols


@overload
def tokens(
    nll: ArrayLike,
    right: ArrayLike | None,
    row: ArrayLike,
    rows: int,
    *,
    characters: ArrayLike | None = None,
    weight: None = None,
) -> Values: ...
@overload
def tokens(
    nll: ArrayLike,
    right: ArrayLike | None,
    row: ArrayLike,
    rows: int,
    *,
    characters: ArrayLike | None = None,
    weight: Floats,
) -> Resampled: ...
def tokens(
    nll: ArrayLike,
    right: ArrayLike | None,
    row: ArrayLike,
    rows: int,
    *,
    characters: ArrayLike | None = None,
    weight: Floats | None = None,
) -> Values | Resampled:
    """Metrics of each token given the true ones before it.

    A row's events are its tokens and its END, which is an answer like any other; padding is none, and must not be
    among them.

    - ``nll``: the mean over events of -log p, in nats.
    - ``perplexity``: exp(nll).
    - ``token_accuracy``: the share of events whose most probable token is the true one. Only with ``right``.
    - ``bits_per_character``: sum over events of -log p / (ln 2 * characters): END is paid for, but is no character,
      so models with different tokens can be compared. Only with ``characters``.

    Args:
        nll: (events,) in nats.
        right: (events,) true where the most probable token is the true one, or None.
        row: (events,) the row of each event, from 0 to N - 1.
        rows: N, how many rows there are; one without events counts for nothing.
        characters: (N,) the length of each row's true text.
        weight: (..., N), not negative; without it every row counts once.

    Raises:
        DataError: shapes that do not fit, or a row that is none.
        NonFiniteError: a NaN among the nll; names its row.

    Example:
        >>> tokens(np.log([2, 4, 2]), [True, False, True], [0, 0, 1], 2, characters=[1, 0])["bits_per_character"]
        4.0
    """
    loss, owner = np.asarray(nll, float), np.asarray(row)
    hit = np.zeros(loss.shape, bool) if right is None else np.asarray(right, bool)
    for name, array in (("right", hit), ("row", owner)):
        if array.shape != loss.shape or loss.ndim != 1:
            raise DataError(f"{name}: shape {array.shape} does not fit.   Expected {loss.shape}, one an event")
    if len(owner) and (owner.dtype.kind not in "iu" or owner.min() < 0 or owner.max() >= rows):
        raise DataError(f"row: expected whole numbers from 0 to {rows - 1}")
    if np.isnan(loss).any():
        raise NonFiniteError(f"nll: NaN in row {owner[np.isnan(loss)][0]}.   Expected numbers")
    w = weights(weight, rows)
    owner = owner.astype(np.int64)
    paid, hits, events = (np.bincount(owner, part, rows) for part in (loss, hit, None))
    mean = weighted(w, paid, events)
    with np.errstate(over="ignore"):  # the perplexity of a hopeless model is infinite
        perplexity = np.exp(mean)
    values = {"nll": mean, "perplexity": perplexity}
    if right is not None:
        values["token_accuracy"] = weighted(w, hits, events)
    if characters is not None:
        size = np.asarray(characters)
        if size.shape != (rows,):
            raise DataError(f"characters: shape {size.shape} does not fit.   Expected {(rows,)}")
        values["bits_per_character"] = weighted(w, paid / np.log(2), size)
    return report(values, weight)


class Transcript:
    """Metrics of decoded rows: said beside true; call it, with a weight a row or without.

    - ``exact_match``: the share of rows that equal a true answer.
    - ``per``: sum of edit distances / sum of true lengths, in symbols: items of a list (phonemes), characters of a
      text.
    - ``wer``: the same in words, which white space parts; of texts only.
    - ``bleu``, ``chrf``: sacrebleu's corpus scores at its defaults, from 0 to 100 (Papineni et al. 2002, Popović 2015,
      Post 2018); of texts only, and left out if sacrebleu is not installed.

    A row may have several true answers. It is right if it equals one; the edit distance is to the nearest, the
    shorter of two that are as near, whose length counts; BLEU and chrF do with several what sacrebleu does.

    Attributes:
        right: (N,) true where a row equals a true answer.
        signatures: sacrebleu's signature of ``bleu`` and of ``chrf``, to quote beside them.
        missing: why a metric is left out, by its name.

    Example:
        >>> Transcript([["K", "AE1"]], [["K", "AE1", "T"]])()
        {'exact_match': 0.0, 'per': 0.3333333333333333}
    """

    def __init__(
        self, said: Sequence[Text], true: Sequence[Text], *, references: Sequence[Sequence[Text]] | None = None
    ) -> None:
        """Count once what every weighing needs.

        Args:
            said: (N,) what a model wrote.
            true: (N,) what is right.
            references: (N,) by row, answers that are right too; the true one may be among them.

        Raises:
            DataError: not as many of one as of the other, or texts among lists of symbols.
        """
        more = references if references is not None else [()] * len(true)
        if not len(said) == len(true) == len(more):
            raise DataError(f"said, true, references: {len(said)}, {len(true)} and {len(more)} rows do not fit")
        answers = [_distinct([first, *others]) for first, others in zip(true, more, strict=True)]
        texts = {isinstance(a, str) for row in [said, *answers] for a in row}
        if len(texts) > 1:
            raise DataError("said, true, references: texts among lists of symbols.   Expected only one of them")
        self.right = np.array([_key(s) in map(_key, a) for s, a in zip(said, answers, strict=True)], bool)
        self.signatures: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self._rates = {"per": _alignments(said, answers, list)}
        self._scores: dict[str, tuple[Callable[[Floats], Floats], Floats]] = {}
        if texts == {True}:
            self._rates["wer"] = _alignments(said, answers, str.split)
            self._compare([str(s) for s in said], answers)

    def __len__(self) -> int:
        return len(self.right)

    @overload
    def __call__(self, *, weight: None = None) -> Values: ...
    @overload
    def __call__(self, *, weight: Floats) -> Resampled: ...
    def __call__(self, *, weight: Floats | None = None) -> Values | Resampled:
        """The metrics; None without rows, and a rate also if all true answers are empty.

        Args:
            weight: (..., N), not negative; without it every row counts once.
        """
        w = weights(weight, len(self))
        values = {"exact_match": weighted(w, self.right)}
        values |= {name: weighted(w, counts[:, 0], counts[:, 1]) for name, counts in self._rates.items()}
        rows = w.sum(1) > 0
        values |= {name: np.where(rows, score(w @ s), np.nan) for name, (score, s) in self._scores.items()}
        return report(values, weight)

    def _compare(self, said: list[str], answers: list[list[Any]]) -> None:
        try:
            from sacrebleu import BLEU, CHRF
        except ImportError:
            self.missing = {n: f"{n} needs sacrebleu.   pip install 'mapsto[text]'" for n in ("bleu", "chrf")}
            return
        columns = list(zip_longest(*answers))  # None where a row has fewer answers
        for name, judge, score in (("bleu", BLEU(force=True), _bleu), ("chrf", CHRF(), _chrf)):
            # the counts a row behind corpus_score; sacrebleu's own resampling goes through the same door
            counts = judge._extract_corpus_statistics(said, columns)
            self.signatures[name] = str(judge.get_signature())
            self._scores[name] = score, np.asarray(counts, float)


def alternatives(source: Sequence[Text], true: Sequence[Text]) -> tuple[NDArray[np.int64], list[list[Text]]]:
    """Rows of the same source put together: the first row of each, and the true answers of all of them.

    For dictionaries in which a word has several pronunciations, as the error rates of CMUdict are reported: ask once
    for each source, and hand the answers to :class:`Transcript` as references.

    Example:
        >>> alternatives(["read", "red", "read"], ["R IY D", "R EH D", "R EH D"])
        (array([0, 1]), [['R IY D', 'R EH D'], ['R EH D']])
    """
    found: dict[Hashable, int] = {}
    first: list[int] = []
    answers: list[list[Text]] = []
    for row, (asked, answer) in enumerate(zip(source, true, strict=True)):
        place = found.setdefault(_key(asked), len(first))
        if place == len(first):
            first.append(row)
            answers.append([])
        answers[place].append(answer)
    return np.array(first, np.int64), [_distinct(a) for a in answers]


def copied(
    source: Sequence[Text], true: Sequence[Text], *, references: Sequence[Sequence[Text]] | None = None
) -> Transcript | None:
    """The simplest writer, which says what it was asked; None if one side is texts and the other is not.

    Example:
        >>> copied(["a b"], ["a c"])()["wer"]
        0.5
    """
    if len({isinstance(text, str) for side in (source, true) for text in side}) > 1:
        return None
    return Transcript(source, true, references=references)


def _key(text: Text) -> Hashable:
    return text if isinstance(text, str) else tuple(text)


def _distinct(texts: Sequence[Text]) -> list[Text]:
    return list({_key(text): text for text in texts}.values())


def _alignments(said: Sequence[Text], answers: Sequence[Sequence[Text]], split: Callable[[Any], list[str]]) -> Floats:
    # (N, 2) the distance to the nearest answer, and its length
    nearest = np.zeros((len(said), 2))
    for i, (guess, right) in enumerate(zip(said, answers, strict=True)):
        mine = split(guess)
        nearest[i] = min((edit_distance(mine, a), len(a)) for a in map(split, right))
    return nearest


def _bleu(sums: Floats) -> Floats:
    # sums (R, 10): words said, words of the nearest lengths, 4 matches, 4 n-grams said; an order without a match
    # counts as 2^-k matches, the k-th such order (sacrebleu's "exp")
    said, true, match, total = sums[:, 0], sums[:, 1], sums[:, 2:6], sums[:, 6:10]
    missed = match == 0
    smooth = np.where(missed, 0.5 ** missed.cumsum(1), match)
    found: NDArray[np.bool_] = (match.max(1) > 0) & (total.min(1) > 0)
    precision = np.divide(smooth, total, out=np.ones_like(total), where=found[:, None])
    brevity = np.minimum(0, 1 - true / np.where(said > 0, said, 1))
    return np.where(found, 100 * np.exp(brevity + np.log(precision).mean(1)), 0.0)


def _chrf(sums: Floats) -> Floats:
    # sums (R, 18): for each of 6 orders n-grams said, true, matched; orders that one side lacks do not count; beta = 2
    said, true, match = np.moveaxis(sums.reshape(len(sums), -1, 3), 2, 0)
    both = (said > 0) & (true > 0)
    precision, recall = (
        np.divide(match, n, out=np.zeros_like(match), where=both).sum(1) / np.maximum(1, both.sum(1))
        for n in (said, true)
    )
    return 100 * np.nan_to_num(ratio(5 * precision * recall, 4 * precision + recall))
