"""What is learned from written sequences, beside formulas."""

import math

import numpy as np
import pytest
import torch

from mapsto.errors import DataError
from mapsto.outputs.sequence import SequenceOutput
from mapsto.ragged import Ragged
from mapsto.stream import stream
from mapsto.vocabulary import BEGIN, END, UNKNOWN, Bytes, Characters, Symbols

LETTERS = Characters(list("abc"))


def output(**more):
    return SequenceOutput(8, name="y", **({"vocabulary": LETTERS} | more))


def gathered(one, *values):
    rows = [one.parse((value,))["ids"] for value in values]
    return one.gather({"ids": Ragged.pack(rows).take(np.arange(len(rows)))})


def theta(target, size=LETTERS.size):
    return {"y": torch.randn(*target["ids"].shape, size, generator=stream(0, "test"), dtype=torch.float64)}


def by_hand(row, ids, s):
    """The terms of one row, a loop over its tokens."""
    nll = smooth = 0.0
    for logits, token in zip(row.tolist(), ids, strict=False):
        top = math.log(sum(math.exp(x) for x in logits))
        nll += top - logits[token]
        smooth += top - sum(logits) / len(logits)
    return (1 - s) * nll + s * smooth


@pytest.mark.parametrize("s", [0.0, 0.2])
def test_the_loss_is_its_formula(s):
    one = output(smoothing=s)
    target = gathered(one, "ab", "c", "abcab")
    given = theta(target)
    loss = one.loss(given, target)
    rows = [[3, 4, END], [5, END], [3, 4, 5, 3, 4, END]]
    wanted = [by_hand(t, ids, s) for t, ids in zip(given["y"], rows, strict=True)]
    assert loss.per_example().tolist() == pytest.approx(wanted)
    assert loss.count.tolist() == [3, 2, 6]
    wanted = [-by_hand(t, ids, 0.0) for t, ids in zip(given["y"], rows, strict=True)]
    assert one.log_likelihood(given, target).tolist() == pytest.approx(wanted)


def test_tokens_are_asked_by_those_before_them():
    one = output()
    target = gathered(one, "abc", "b")
    asked = one.queries(None, target)
    ids = [[BEGIN, 3, 4, 5], [BEGIN, 4, None, None]]
    for row, tokens in enumerate(ids):
        for place, token in enumerate(tokens):
            item = asked.items[row, place]
            assert torch.equal(item, torch.zeros(8) if token is None else one.embedding.weight[token])
            assert asked.places[row, place, 0] == (0 if token is None else place)


def test_a_longer_text_is_cut_and_has_no_end():
    one = output(limit=3)
    assert one.parse(("abc",))["ids"].tolist() == [3, 4, 5, END]
    assert one.parse(("abca",))["ids"].tolist() == [3, 4, 5]


def test_what_cannot_be_written_is_refused():
    with pytest.raises(DataError, match="is a list, expected a text: this output writes characters"):
        output().parse((["a"],))
    with pytest.raises(DataError, match="is empty"):
        output().parse(("",))
    assert output(vocabulary=Symbols(["k"])).parse((["k", "?"],))["ids"].tolist() == [3, UNKNOWN, END]


def test_tied_the_last_layer_is_the_embedding_and_untied_it_is_not():
    tied, free = output(), output(tie=False)
    assert tied.head.head.weight is tied.embedding.weight
    assert free.head.head.weight is not free.embedding.weight
    assert len(list(free.parameters())) == len(list(tied.parameters())) + 1


def measured(values, **options):
    return SequenceOutput.measure([[(v,) for v in values]], columns=[("y", "sequence")], **options)


def test_writing_ends_where_all_but_a_thousandth_of_the_rows_have_ended():
    values = ["ab"] * 4990 + ["a" * 50] * 10
    assert measured(values)["longest"] == 51
    assert measured(["ab"] * 99_990 + ["a" * 50] * 10)["longest"] == 3
    assert measured(values, limit=20)["longest"] == 21  # 20 tokens and their end
    assert measured(values, limit=0, window=8)["longest"] == 8
    assert measured(["é"] * 10)["longest"] == 3  # bytes, whatever the tokens


def test_the_vocabulary_is_learned_from_the_training_rows():
    found = measured(["ab", "ba"])
    assert found["vocabulary"].symbols == ["a", "b"]
    assert measured([["k", "s"], ["k"]])["vocabulary"].kind == "symbols"
    assert measured(["one two three", "four five"])["vocabulary"].kind == "characters"  # few texts
    assert measured(["ab"], vocabulary="bytes")["vocabulary"].kind == "bytes"


def test_settings_make_the_same_output_again():
    one = output(limit=5, longest=9, window=4, smoothing=0.1, tie=False)
    again = SequenceOutput(8, **one.settings())
    assert again.settings() == one.settings()
    again.load_state_dict(one.state_dict())


def test_the_likeliest_token_is_predicted_at_each_place():
    one = output(vocabulary=Bytes())
    given = {"y": torch.eye(259)[torch.tensor([[7, 2], [9, 7]])]}
    assert one.predict(given)["y"]["value"].tolist() == [[7, 2], [9, 7]]
