import builtins
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapsto.errors import DataError, NonFiniteError
from mapsto.training.edit import edit_distance, edit_rate, edits
from mapsto.training.metric import bootstrap, why
from mapsto.training.transcript import Transcript, alternatives, copied, tokens

sequences = st.lists(st.integers(0, 3), max_size=12)


def table(a, b):
    """The distance by dynamic programming."""
    line = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, line[0] = line[0], i
        for j, y in enumerate(b, 1):
            diagonal, line[j] = line[j], min(line[j] + 1, line[j - 1] + 1, diagonal + (x != y))
    return line[-1]


@given(sequences, sequences)
def test_the_edit_distance_is_that_of_the_table_and_edits_are_its_parts(a, b):
    parts = edits(a, b)
    assert edit_distance(a, b) == table(a, b) == sum(parts)
    assert parts.insertions - parts.deletions == len(a) - len(b)
    assert min(parts) >= 0


@given(sequences, sequences, sequences)
def test_the_edit_distance_is_a_metric(a, b, c):
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


def test_long_sequences_of_any_symbols_have_the_distance_of_the_table():
    rng = np.random.default_rng(0)
    for n, m in ((150, 200), (64, 65), (1, 130), (0, 90)):
        a, b = rng.integers(0, 9, n), rng.integers(0, 9, m)
        names = [[f"symbol {i}" for i in x] for x in (a, b)]
        text = ["".join(chr(0x1F600 + i) for i in x) for x in (a, b)]
        truth = table(a.tolist(), b.tolist())
        assert edit_distance(a, b) == edit_distance(*names) == edit_distance(*text) == sum(edits(a, b)) == truth


def test_edits_of_one_kind_are_found_as_such():
    assert edits("abxd", "abcd") == (1, 0, 0)
    assert edits("abcxd", "abcd") == (0, 1, 0)
    assert edits("abd", "abcd") == (0, 0, 1)
    assert edits("", "ab") == (0, 0, 2)
    assert edits("ab", "") == (0, 2, 0)


def test_the_edit_rate_is_of_sums_not_of_rows():
    assert edit_rate(["a", "bcd"], ["x", "bcde"]) == pytest.approx(2 / 5)
    assert np.isnan(edit_rate(["a"], [""]))


def events(seed=0):
    rng = np.random.default_rng(seed)
    row = np.repeat(np.arange(5), [3, 1, 0, 6, 2])
    return rng.exponential(size=12), rng.random(12) < 0.6, row, np.array([7, 0, 0, 21, 4])


def test_token_metrics_are_their_formulas():
    nll, right, row, characters = events()
    order = np.random.default_rng(1).permutation(12)
    values = tokens(nll[order], right[order], row[order], 5, characters=characters)
    assert values == pytest.approx(
        {
            "nll": nll.mean(),
            "perplexity": np.prod(np.exp(nll)) ** (1 / 12),
            "token_accuracy": right.mean(),
            "bits_per_character": np.log2(np.exp(nll)).sum() / 32,
        }
    )
    assert set(tokens(nll, None, row, 5)) == {"nll", "perplexity"}


def test_a_weight_is_the_row_written_that_often():
    nll, right, row, characters = events()
    weight = np.array([[2, 0, 1, 3, 0], [1, 1, 1, 1, 1]])
    values = tokens(nll, right, row, 5, characters=characters, weight=weight)
    rows = np.repeat(np.arange(5), weight[0])
    pick = np.concatenate([np.flatnonzero(row == r) for r in rows])
    owner = np.concatenate([np.full((row == r).sum(), i) for i, r in enumerate(rows)])
    again = tokens(nll[pick], right[pick], owner, len(rows), characters=characters[rows])
    whole = tokens(nll, right, row, 5, characters=characters)
    for name, value in values.items():
        assert value == pytest.approx([again[name], whole[name]], rel=1e-12)


def test_a_token_without_probability_makes_the_perplexity_infinite_where_its_row_counts():
    weight = np.array([[1.0, 1.0], [1.0, 0.0]])
    values = tokens([1.0, np.inf], [True, False], [0, 1], 2, characters=[1, 1], weight=weight)
    np.testing.assert_allclose(values["perplexity"], [np.inf, np.e])
    np.testing.assert_allclose(values["bits_per_character"], [np.inf, 1 / np.log(2)])
    assert tokens([2000.0], [False], [0], 1)["perplexity"] == np.inf


def test_without_events_tokens_have_no_value():
    assert set(tokens([], [], np.zeros(0, int), 0, characters=[]).values()) == {None}
    assert why("bits_per_character") == "bits_per_character needs true answers that have characters"


def test_wrong_tokens_are_named():
    with pytest.raises(NonFiniteError, match="NaN in row 1"):
        tokens([0.0, np.nan], [True, True], [0, 1], 2)
    with pytest.raises(DataError, match=r"right: shape \(1,\)"):
        tokens([0.0, 1.0], [True], [0, 1], 2)
    with pytest.raises(DataError, match="row: expected whole numbers from 0 to 1"):
        tokens([0.0, 1.0], [True, True], [0, 2], 2)
    with pytest.raises(DataError, match="characters: shape"):
        tokens([0.0], [True], [0], 1, characters=[1, 2])


SAID = ["the cat sat on the mat", "a dog", "", "nothing like it at all!", "It rains, again and again."]
TRUE = ["the cat sat on a mat", "a dog", "one two three four five", "entirely otherwise", "It rained again and again."]
MORE = [["a cat sat on the mat .", "the cat"], [], ["one"], ["nothing like this"], ["It rains again."]]


def test_rates_of_texts_are_of_words_and_of_characters():
    values = Transcript(SAID, TRUE)()
    words = sum(table(s.split(), t.split()) for s, t in zip(SAID, TRUE, strict=True))
    letters = sum(table(s, t) for s, t in zip(SAID, TRUE, strict=True))
    assert values["wer"] == pytest.approx(words / sum(len(t.split()) for t in TRUE))
    assert values["per"] == pytest.approx(letters / sum(map(len, TRUE))) == edit_rate(SAID, TRUE)
    assert values["exact_match"] == 1 / 5


def test_of_several_answers_the_nearest_counts_and_the_shorter_of_two():
    said, true = [["A", "B"], ["C"]], [["A", "X", "Y"], ["D"]]
    found = Transcript(said, true, references=[[["A", "B", "Z"], ["B"]], [["D", "C"], ["D"]]])
    assert found() == {"exact_match": 0.0, "per": 2 / 2}  # B; and D, which is shorter than D C
    assert Transcript(said, true, references=[[["A", "B"]], []])() == {"exact_match": 0.5, "per": 1 / 3}
    assert Transcript([np.array([3, 4])], [[3, 4]])()["exact_match"] == 1.0


@pytest.mark.parametrize("references", [None, MORE, [m[:1] or ["a dog"] for m in MORE]])
def test_bleu_and_chrf_are_those_of_sacrebleu(references):
    sacrebleu = pytest.importorskip("sacrebleu", reason="BLEU and chrF need the extra `text`")
    found = Transcript(SAID, TRUE, references=references)
    answers = [list(dict.fromkeys([t, *m])) for t, m in zip(TRUE, references or [[]] * 5, strict=True)]
    columns = [[a[i] if i < len(a) else None for a in answers] for i in range(max(map(len, answers)))]
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    assert found()["bleu"] == pytest.approx(bleu.corpus_score(SAID, columns).score, rel=1e-12)
    assert found()["chrf"] == pytest.approx(chrf.corpus_score(SAID, columns).score, rel=1e-12)
    assert found.signatures == {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    assert found.missing == {}


texts = st.lists(st.text("ab .", max_size=14), min_size=1, max_size=4)


@given(st.data())
def test_any_texts_have_sacrebleus_scores(data):
    sacrebleu = pytest.importorskip("sacrebleu", reason="BLEU and chrF need the extra `text`")
    said = data.draw(texts)
    true = data.draw(st.lists(st.text("ab .", max_size=14), min_size=len(said), max_size=len(said)))
    values = Transcript(said, true)()
    assert values["bleu"] == pytest.approx(sacrebleu.BLEU(force=True).corpus_score(said, [true]).score, rel=1e-9)
    assert values["chrf"] == pytest.approx(sacrebleu.CHRF().corpus_score(said, [true]).score, rel=1e-9)


def test_a_weight_of_a_transcript_is_the_row_written_that_often():
    weight = np.array([[[2, 0, 1, 3, 1], [1, 1, 1, 1, 1]], [[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]]])
    values = Transcript(SAID, TRUE, references=MORE)(weight=weight)
    for place in np.ndindex(2, 2):
        rows = np.repeat(np.arange(5), weight[place])
        again = Transcript(*([x[r] for r in rows] for x in (SAID, TRUE)), references=[MORE[r] for r in rows])()
        for name, value in again.items():
            assert values[name][place] == pytest.approx(np.nan if value is None else value, nan_ok=True)
    assert all(np.isnan(v[1, 1]) for v in values.values())


def test_the_bootstrap_takes_both_kinds():
    rng = np.random.default_rng(0)
    true = [rng.integers(0, 6, 10).astype(str).tolist() for _ in range(400)]
    wrong = rng.random((400, 10)) < 0.2
    said = [[f"not {s}" if w else s for s, w in zip(t, r, strict=True)] for t, r in zip(true, wrong, strict=True)]
    interval = bootstrap(Transcript(said, true), 400)["per"]
    deviation = np.sqrt(0.2 * 0.8 / 4000)
    assert interval[1] - interval[0] == pytest.approx(2 * 1.96 * deviation, rel=0.2)
    nll, right, row, characters = events()
    assert set(bootstrap(partial(tokens, nll, right, row, 5, characters=characters), 5)) == {
        "nll",
        "perplexity",
        "token_accuracy",
        "bits_per_character",
    }


def test_without_sacrebleu_its_metrics_are_left_out_with_a_reason(monkeypatch):
    plain = builtins.__import__

    def bare(name, *rest, **named):
        if name.startswith("sacrebleu"):
            raise ImportError(name)
        return plain(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", bare)
    found = Transcript(SAID, TRUE)
    assert set(found()) == {"exact_match", "per", "wer"}
    assert found.missing["bleu"] == "bleu needs sacrebleu.   pip install 'mapsto[text]'"


def test_rows_without_symbols_have_no_rate_and_no_rows_have_no_value():
    assert Transcript([["A"]], [[]])() == {"exact_match": 0.0, "per": None}
    assert Transcript([], [])() == {"exact_match": None, "per": None}
    assert why("per") == "per needs true answers that are not all empty"


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="1, 2 and 2 rows do not fit"):
        Transcript(["a"], ["a", "b"])
    with pytest.raises(DataError, match="texts among lists"):
        Transcript(["a"], [["a"]])


def test_pronunciations_of_a_word_are_put_together():
    words, true = ["read", "red", "read", "read"], [["R", "IY"], ["R", "EH"], ["R", "EH"], ["R", "IY"]]
    rows, answers = alternatives(words, true)
    assert rows.tolist() == [0, 1]
    assert answers == [[["R", "IY"], ["R", "EH"]], [["R", "EH"]]]
    found = Transcript([["R", "EH"], ["R", "EH"]], [true[r] for r in rows], references=answers)
    assert found() == {"exact_match": 1.0, "per": 0.0}


def test_the_copy_says_the_source_where_both_are_of_one_kind():
    values = copied(["the same", "not this"], ["the same", "but that"])()
    assert (values["exact_match"], values["wer"]) == (0.5, 0.5)
    assert copied(["r e d"], [["R", "EH", "D"]]) is None
    assert copied([["R"]], [["R"]])() == {"exact_match": 1.0, "per": 0.0}
