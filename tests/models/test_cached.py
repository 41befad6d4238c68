"""Searching with what was remembered finds what searching with the whole text read anew at each step finds."""

import pytest
import torch
from torch import nn

from mapsto.errors import ConfigError
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.models.search import Beam, Contrastive, Greedy, Sample, search
from mapsto.nn.distance import T5, ALiBi, Relative
from mapsto.nn.initial import initialise
from mapsto.nn.pool import MeanPool
from mapsto.nn.position import Learned, NoPosition, Rotary, Sinusoidal
from mapsto.nn.transformer import Decoder, Encoder, Prior
from mapsto.outputs.sequence import SequenceOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.stream import stream
from mapsto.vocabulary import BEGIN, END, Characters

DIM, LIMIT = 16, 9
LETTERS = Characters(list("abcdefgh"))
POSITIONS = {
    "none": NoPosition,
    "sinusoidal": lambda: Sinusoidal(DIM, amplitude=0.3),
    "learned": lambda: Learned(DIM, 15),
    "rotary": Rotary,
    "alibi": lambda: ALiBi(2),
    "t5": lambda: T5(2, buckets=8, longest=9),
    "relative": lambda: Relative(2, DIM // 2, longest=4),
}
STRATEGIES = {
    "greedy": Greedy(),
    "beam": Beam(4, 0.7),
    "sample": Sample(seed=3, temperature=1.3),
    "contrastive": Contrastive(k=4, alpha=0.4),
}
LENGTHS = torch.tensor([1, 6, 3, 4])


class Prefixes:
    """All that each row has written, and the row of the source it is of."""

    def __init__(self, rows, owner):
        self.rows, self.owner = rows, owner

    def select(self, rows):
        return Prefixes([self.rows[i] for i in rows.tolist()], [self.owner[i] for i in rows.tolist()])


class Anew:
    """A writer that remembers nothing: every row is read from its begin, alone."""

    def __init__(self, model, batch):
        self.model, self.memory = model, model.encoder(model.collect(batch)) if model.names else None

    def __call__(self, tokens, draft, *, valid=None):
        rows, logits, answers = [], [], []
        for r, (before, new) in enumerate(zip(draft.rows, tokens, strict=True)):
            count = tokens.shape[1] if valid is None else int(valid[r].sum())
            rows.append([*before, *new[:count].tolist()])
            memory = None if self.memory is None else self.memory[torch.tensor([draft.owner[r]])]
            found = self.model.reader(self.model.output.ask(torch.tensor([rows[-1]])), memory, causal=True)[0]
            said = self.model.output(found)["y"]
            last = found.new_full((tokens.shape[1] - count, DIM), torch.nan)
            answers.append(torch.cat([found[len(before) :], last]))
            logits.append(torch.cat([said[len(before) :], last.new_full((len(last), said.shape[1]), torch.nan)]))
        return torch.stack(logits), torch.stack(answers), Prefixes(rows, draft.owner)


def model(position, of):
    output = SequenceOutput(DIM, name="y", vocabulary=LETTERS, tie=False)
    reader = (Decoder if of else Prior)(DIM, 2, 2, position=position)
    encoder = Encoder(DIM, 1, 2, position=Sinusoidal(DIM)) if of else nn.Identity()
    made = Mapper({"x": SequenceInput(DIM, vocabulary=LETTERS)} if of else {}, encoder, reader, output)
    initialise(made, 4)
    with torch.no_grad():
        output.head.head.weight.mul_(2)
        output.head.head.bias[END] += 1.0
    return made.double().eval()


def batch():
    ids = torch.randint(3, LETTERS.size, (4, 5), generator=stream(0, "test"))
    return {"x": {"ids": ids, "valid": torch.arange(5) < torch.tensor([5, 1, 3, 2])[:, None]}}


@torch.no_grad()
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("of", [True, False], ids=["of texts", "of nothing"])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_search_that_remembers_finds_what_one_that_reads_anew_finds(position, of, strategy):
    made, given, how = model(POSITIONS[position](), of), batch() if of else {}, STRATEGIES[strategy]
    prompt = torch.randint(3, LETTERS.size, (4, 6), generator=stream(1, "test"))
    prompt[:, 0] = BEGIN
    valid = torch.arange(6) < LENGTHS[:, None]
    best = 3 if strategy == "beam" else 1
    options = {"strategy": how, "limit": LIMIT, "valid": valid, "best": best}
    found = search(made.write, made.begin(given, 4, 6 + LIMIT), prompt, **options)
    wanted = search(Anew(made, given), Prefixes([[]] * 4, list(range(4))), prompt, **options)
    for mine, theirs in zip(found, wanted, strict=True):
        assert [one.ids for one in mine] == [one.ids for one in theirs]
        assert [one.score for one in mine] == pytest.approx([one.score for one in theirs], abs=1e-9)
    assert len({tuple(row[0].ids) for row in found}) > 1


@torch.no_grad()
def test_room_for_the_prompt_and_all_but_the_last_token_is_enough():
    made, prompt = model(ALiBi(2), False), torch.full((2, 1), BEGIN)
    options = {"strategy": Greedy(), "limit": 5, "banned": [END]}
    whole = search(made.write, made.begin({}, 2, 6), prompt, **options)
    assert search(made.write, made.begin({}, 2, 5), prompt, **options) == whole


@pytest.mark.parametrize("position", ["none", "alibi", "relative"])
@pytest.mark.parametrize("ragged", [False, True])
def test_more_tokens_than_there_is_room_for_are_refused(position, ragged):
    made = model(POSITIONS[position](), False)
    valid = torch.ones(2, 4, dtype=torch.bool) if ragged else None
    _, _, draft = made.write(torch.full((2, 4), BEGIN), made.begin({}, 2, 5), valid=valid)
    with pytest.raises(ConfigError, match="capacity of at least 8"):
        made.write(torch.full((2, 4), BEGIN), draft, valid=valid)


def test_what_is_written_at_once_cannot_be_written_step_by_step():
    output = VectorOutput(DIM, targets={"y": {"kind": "label", "classes": ["a", "b"]}})
    made = Mapper({"x": SequenceInput(DIM, vocabulary=LETTERS)}, Encoder(DIM, 1, 2), MeanPool(), output)
    with pytest.raises(ConfigError, match="kind vector is not written step by step"):
        made.begin(batch(), 4, 5)


def test_a_memory_in_the_place_of_attention_is_not_written_step_by_step():
    from mapsto.nn.memory import GatedMemory, Recall

    reader = Prior(DIM, 1, 2, mixer=lambda: Recall(GatedMemory, DIM))
    made = Mapper({}, nn.Identity(), reader, SequenceOutput(DIM, name="y", vocabulary=LETTERS))
    with pytest.raises(ConfigError, match="only attention is written step by step"):
        made.begin({}, 1, 5)


@torch.no_grad()
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stop_sequence_may_begin_in_what_was_written_before(strategy):
    made, prompt = model(Rotary(), False), torch.tensor([[BEGIN, 3, 4], [BEGIN, 5, 6]])
    how, best = (Beam(4, -1.0), 4) if strategy == "beam" else (STRATEGIES[strategy], 1)  # it favours short lines

    def write(**more):
        draft = made.begin({}, 2, 3 + LIMIT)
        return search(made.write, draft, prompt, strategy=how, limit=LIMIT, banned=[END], **more)

    whole = [one.ids for (one,) in write()]
    stops = [[3, 4, whole[0][0]], [5, 6, whole[1][0]]]
    assert [one.ids for (one,) in write(stops=stops)] == whole
    found = write(stops=stops, begun=[[3, 4], [5, 6]], best=best)
    assert ([whole[0][0]], "stop") in [(one.ids, one.reason) for one in found[0]]
    assert ([whole[1][0]], "stop") in [(one.ids, one.reason) for one in found[1]]
    with pytest.raises(ConfigError, match="begun is of 1 rows, the prompt of 2"):
        write(begun=[[3]])
