import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapsto.errors import ConfigError, DataError, ModelFileError
from mapsto.vocabulary import BEGIN, END, UNKNOWN, Bytes, Characters, Symbols, Words, learn, restore

TEXTS = ["the cat sat on the mat", "the dog sat", "a naïve café, isn't it?", "Σ ∀x: x ≤ 3\n\ttabs  and   spaces"] * 60


@given(st.text())
@settings(deadline=None)
def test_bytes_hold_every_text(text):
    encoded = Bytes().encode(text)
    assert len(encoded) == len(text.encode("utf-8", "surrogatepass"))
    if text.isprintable():
        assert Bytes().decode(encoded) == text


@pytest.fixture(scope="module")
def subwords():
    return learn("subwords", TEXTS, size=400)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581\x00"), max_size=60))
@settings(deadline=None, max_examples=200)
def test_subwords_give_back_every_text_with_its_spaces(subwords, text):
    assert subwords.decode(subwords.encode(text)) == text


def test_characters_give_back_what_they_have_seen():
    v = learn("characters", TEXTS)
    for text in TEXTS:
        assert v.decode(v.encode(text)) == text
    assert v.encode("the~cat").tolist().count(UNKNOWN) == 1


def test_words_are_lower_case_words_and_marks():
    v = learn("words", TEXTS)
    assert v.decode(v.encode("The Cat isn't ?")) == "the cat isn't ?"
    assert v.encode("zebra").tolist() == [UNKNOWN]


def test_symbols_are_ordered_by_count_then_by_name():
    v = learn("symbols", [["b", "a", "c", "c"], ["b", "a", "c"]])
    assert v.symbols == ["c", "a", "b"]
    assert v.encode(["a", "c", "x"]).tolist() == [4, 3, UNKNOWN]
    assert v.decode([BEGIN, 4, 3, END]) == ["a", "c"]


def test_least_and_size_limit_the_vocabulary():
    assert learn("words", ["a a a b b c"], least=2).symbols == ["a", "b"]
    assert learn("words", ["a a a b b c"], size=1).symbols == ["a"]


@pytest.mark.parametrize("kind", ["bytes", "characters", "words", "symbols", "subwords"])
def test_a_vocabulary_comes_back_from_its_file(kind):
    v = learn(kind, [t.split() for t in TEXTS] if kind == "symbols" else TEXTS, size=400)
    again = restore(kind, v.dump())
    text = TEXTS[0].split() if kind == "symbols" else TEXTS[0]
    assert again.encode(text).tolist() == v.encode(text).tolist()
    assert again.size == v.size > max(v.encode(text))
    assert again.dump() == v.dump()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"kind": "words"}', b'{"kind": "words", "symbols": ["a", "a"]}', b"\xff"]
)
def test_a_damaged_vocabulary_is_refused(content):
    with pytest.raises(ModelFileError):
        restore("words", content)
    with pytest.raises(ModelFileError):
        restore("subwords", b"not a model")


def test_an_unknown_kind_is_told_the_kinds():
    with pytest.raises(ConfigError, match=r'"word" is not one of bytes.*Did you mean "words"'):
        learn("word", ["a"])


def test_too_little_text_for_subwords_says_what_to_do():
    with pytest.raises(DataError, match=r"input\.vocabulary=words"):
        learn("subwords", [""], size=400)


def test_ids_do_not_depend_on_the_hash_seed():
    code = "from mapsto.vocabulary import learn; print(learn('words', ['b a c d e f b'] * 3).dump().decode())"
    outs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outs) == 1
    assert json.loads(outs.pop())["symbols"][0] == "b"


def test_names_are_readable(subwords):
    assert Bytes().names([3 + ord("A"), 3 + 0, 1]) == ["A", "00", "<begin>"]
    assert Characters(["x"]).names(np.array([3, 0])) == ["x", "<unknown>"]
    assert "".join(subwords.names(subwords.encode("the cat"))) == "the cat"
    assert Words([]).size == 3
    assert Symbols(["a"]).size == 4
