"""Texts said all at once: a probability over texts, whatever their length; and how they are written."""

import itertools

import numpy as np
import pytest
import torch

from mapsto.collection import Collection
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.models.search import Beam, Greedy, Sample, search
from mapsto.nn.initial import initialise
from mapsto.nn.position import Sinusoidal
from mapsto.nn.transformer import Decoder, Encoder
from mapsto.outputs.parallel import ParallelOutput
from mapsto.ragged import Ragged
from mapsto.testing import check_model, require
from mapsto.vocabulary import BEGIN, END, Characters, Words

LETTERS = Characters(list("ab"))
DIM = 8


class Short(ParallelOutput):
    """Asks for as many places as the target has: the number of queries tells where the end is."""

    def queries(self, memory, target=None, *, start=0):
        asked = super().queries(memory, target, start=start)
        return asked if target is None else Collection(asked.items, target["valid"], asked.places)


def model(kind=ParallelOutput, limit=3):
    source = SequenceInput(DIM, vocabulary=LETTERS)
    usual = {"hidden": 12, "dropout": 0.0}
    reader = Decoder(DIM, 2, 2, position=Sinusoidal(DIM), **usual)
    made = Mapper(
        {"x": source},
        Encoder(DIM, 1, 2, position=Sinusoidal(DIM), **usual),
        reader,
        kind(DIM, name="y", vocabulary=LETTERS, limit=limit),
    )
    initialise(made, 1)
    return made.double().eval()


def gathered(part, values):
    rows = [part.parse((v,) if isinstance(part, ParallelOutput) else v) for v in values]
    return part.gather({n: Ragged.pack([row[n] for row in rows]).take(np.arange(len(rows))) for n in rows[0]})


def asked(made, rows, text="ba"):
    """A batch of one question with every answer."""
    target = made.output.gather({"ids": Ragged.pack([np.array(r, np.int32) for r in rows]).take(np.arange(len(rows)))})
    return {"x": gathered(made.inputs[0], [text] * len(rows)), "target": target}


def every(size, longest):
    """All sequences that end, and those that are cut."""
    tokens = [i for i in range(size) if i != END]
    rows = [[*said, END] for n in range(longest + 1) for said in itertools.product(tokens, repeat=n)]
    return rows + [list(said) for said in itertools.product(tokens, repeat=longest + 1)]


def total(made):
    batch = asked(made, every(LETTERS.size, 3))
    return float(made.output.log_likelihood(made(batch), batch["target"]).exp().sum().detach())


def test_probabilities_of_all_texts_add_up_to_one_through_a_decoder_whose_queries_see_each_other():
    assert total(model()) == pytest.approx(1, abs=1e-12)


def test_that_fails_where_the_number_of_queries_tells_the_length():
    assert abs(total(model(Short)) - 1) > 1e-3


@pytest.mark.parametrize("laws", ["PBSMDR", pytest.param("G", marks=pytest.mark.slow)])
def test_every_model_that_says_all_at_once_keeps_the_laws(laws):
    made = model().float()
    batch = {"x": gathered(made.inputs[0], ["ab", "b", "bab"]), "target": gathered(made.output, ["a", "bba", "ab"])}
    require(check_model(made, batch, laws=laws))


@pytest.mark.parametrize("how", [Greedy(), Beam(3), Sample(seed=3), Sample(temperature=0)])
def test_what_is_written_is_scored_as_the_whole_is(how):
    made = model()
    given = gathered(made.inputs[0], ["ba", "a", "bb", "abab"])
    draft = made.begin({"x": given}, 4, 5)
    found = search(made.write, draft, torch.full((4, 1), BEGIN), strategy=how, limit=4)
    rows = [[*one.ids, END] if one.reason == "end" else one.ids for (one,) in found]
    target = asked(made, rows)["target"]
    log_p = made.output.log_likelihood(made({"x": given, "target": target}), target)
    assert [one.log_probability for (one,) in found] == pytest.approx(log_p.tolist())


def test_greedy_search_takes_the_likeliest_token_of_each_place():
    made = model(limit=6)
    given = {"x": gathered(made.inputs[0], ["ba", "abba"])}
    logits = made(given)["y"]
    logits[..., [0, BEGIN]] = -torch.inf
    found = search(made.write, made.begin(given, 2, 8), torch.full((2, 1), BEGIN), strategy=Greedy(), limit=7)
    for (one,), ids in zip(found, logits.argmax(-1).tolist(), strict=True):
        assert one.ids == ids[: ids.index(END) if END in ids else None]


def test_pieces_of_several_tokens_and_rows_of_several_lengths_are_followed():
    made = model(limit=5)
    given = {"x": gathered(made.inputs[0], ["ba", "abba"])}
    logits = made(given)["y"]
    tokens = torch.tensor([[BEGIN, 3, 4], [BEGIN, 3, 0]])
    valid = torch.tensor([[True, True, True], [True, True, False]])
    one, answers, draft = made.write(tokens, made.begin(given, 2, 6), valid=valid)
    assert torch.equal(one[:, 0], torch.stack([logits[0, 2], logits[1, 1]]))
    assert answers.shape == (2, 3, DIM)
    two, _, _ = made.write(tokens[:, :1], draft.select(torch.tensor([1, 0, 1])))
    assert torch.equal(two[:, 0], torch.stack([logits[1, 2], logits[0, 3], logits[1, 2]]))


def test_places_are_as_many_as_the_longest_row_has_tokens():
    chunks = [[("two words",), ("now here are five words",)], [("one",)]]
    told = ParallelOutput.measure(chunks, columns=[("y", "sequence")], vocabulary="words")
    assert isinstance(told["vocabulary"], Words)
    assert told["limit"] == 5
    assert ParallelOutput.measure(chunks, columns=[("y", "sequence")], vocabulary="words", limit=3)["limit"] == 3
    lists = [[(["a", "b"],), (["a"] * 4,)]]
    assert ParallelOutput.measure(lists, columns=[("y", "sequence")])["limit"] == 4


def test_a_longer_text_is_cut_and_has_no_end():
    one = ParallelOutput(DIM, name="y", vocabulary=LETTERS, limit=3)
    target = gathered(one, ["abab", "ab"])
    assert one.event("y", target).tolist() == [[3, 4, 3, 0], [3, 4, END, 0]]
    assert one.asked(None, target).tolist() == [[True, True, True, False]] * 2
