"""Broken twins of models that write: each has one deliberate fault, which the check must catch and name."""

import dataclasses

import pytest
import torch

from mapsto.collection import Collection
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.nn.draft import Draft
from mapsto.nn.initial import initialise
from mapsto.nn.position import Learned, Sinusoidal
from mapsto.nn.transformer import Decoder, Encoder, Prior
from mapsto.outputs.sequence import SequenceOutput
from mapsto.testing import LawError, check_model, check_output, require
from mapsto.testing.trial import Stored
from mapsto.vocabulary import Bytes, Characters

DIM = 8
LETTERS = Characters(list("abcd"))
TEXTS = ["one", "and two", "3"]
SAID = [("ab",), ("bacadbc",), ("d",)]


def broken(verdicts):
    """The laws that are broken, in order, each once."""
    return list(dict.fromkeys(v.law for v in verdicts if not v.passed))


def model(reader=None, *, output=SequenceOutput, mapper=Mapper, of=True):
    """A model of texts (or of nothing) and three of its rows."""
    text, out = SequenceInput(DIM, vocabulary=Bytes()), output(DIM, name="said", vocabulary=LETTERS)
    cls = Decoder if of else Prior
    reader = reader or cls(DIM, 2, 2, position=Sinusoidal(DIM, amplitude=1.0), dropout=0.2)
    encoder = Encoder(DIM, 1, 2, position=Sinusoidal(DIM)) if of else torch.nn.Identity()
    made = mapper({"x": text} if of else {}, encoder, reader, out)
    initialise(made, 0)
    batch = {"target": Stored(out, SAID).gather()}
    return made, ({"x": Stored(text, TEXTS).gather()} | batch if of else batch)


def decoder(cls):
    """A decoder of a class of its own."""
    return cls(DIM, 2, 2, position=Sinusoidal(DIM, amplitude=1.0))


class LooksAhead(Decoder):
    """Sees the future."""

    def forward(self, queries, memory, *, causal=False):
        return super().forward(queries, memory, causal=False)


class CountsTokens(Decoder):
    """Knows from the start how long the answer will be."""

    def forward(self, queries, memory, *, causal=False):
        return super().forward(queries, memory, causal=causal) + 0.1 * queries.items.sum(1, keepdim=True)


class ScalesByTheLoudest(Decoder):
    """A stabiliser over all queries: quiet tokens drown when a loud one comes later."""

    def forward(self, queries, memory, *, causal=False):
        out = super().forward(queries, memory, causal=causal)
        top = queries.items.abs().amax((1, 2), keepdim=True)
        return (out * top.clamp(min=4.0)) / top.clamp(min=4.0) * (1 + 1e-3 * (top > 50))


class Deaf(Decoder):
    """Never asks the memory."""

    def forward(self, queries, memory, *, causal=False):
        return super().forward(queries, memory.replace(items=torch.zeros_like(memory.items)), causal=causal)


class Forgetful(SequenceOutput):
    """Queries do not know the tokens."""

    def ask(self, ids, first=0, valid=None):
        return super().ask(torch.zeros_like(ids), first, valid)


class AverageOfAll(Decoder):
    """Takes the mean of the memory, padding and all, which an empty one has none of."""

    def forward(self, queries, memory, *, causal=False):
        mean = memory.items.sum(1, keepdim=True) / memory.valid.sum(1)[:, None, None]
        return super().forward(queries, memory, causal=causal) + mean


class CountsThePadding(Decoder):
    """Adds what stands in the memory, padding too."""

    def forward(self, queries, memory, *, causal=False):
        return super().forward(queries, memory, causal=causal) + 1e-3 * memory.valid.shape[1]


class Companions(Decoder):
    """Centred over the batch."""

    def forward(self, queries, memory, *, causal=False):
        out = super().forward(queries, memory, causal=causal)
        return out - 0.1 * out[:, :1].mean(0, keepdim=True)


class PlacesFromZero(Mapper):
    """Each step begins at place 0 again."""

    def write(self, tokens, draft, *, valid=None):
        lost = dataclasses.replace(draft, length=torch.zeros_like(draft.length), filled=0)
        answers, found = self.reader.step(self.output.ask(tokens, lost.first, valid), draft, valid=valid)
        return self.output(answers)["said"], answers, found


class StepsAhead(Mapper):
    """What is padded counts as written: the next token stands a place too far."""

    def write(self, tokens, draft, *, valid=None):
        logits, answers, found = super().write(tokens, draft, valid=valid)
        return logits, answers, dataclasses.replace(found, length=torch.full_like(found.length, found.filled))


class Stuck(Draft):
    """Rows keep the memory of their places, whoever moves there."""

    def select(self, rows):
        return _as(Stuck, dataclasses.replace(Draft.select(self, rows), memory=self.kept(len(rows))))

    def kept(self, count):
        first = torch.arange(count) % len(self.owner)
        return tuple(state.select(first) for state in self.memory)


class OwnOnly(Draft):
    """The caches stay where they are."""

    def select(self, rows):
        found = Draft.select(self, rows)
        first = torch.arange(len(rows)) % len(self.owner)
        return _as(OwnOnly, dataclasses.replace(found, own=tuple(state.select(first) for state in self.own)))


def _as(cls, draft):
    return cls(*(getattr(draft, f.name) for f in dataclasses.fields(draft)))


def drafted(cls):
    """A mapper whose drafts are of a class."""

    class Drafted(Mapper):
        def begin(self, batch, rows, capacity):
            return _as(cls, super().begin(batch, rows, capacity))

        def write(self, tokens, draft, *, valid=None):
            logits, answers, found = super().write(tokens, draft, valid=valid)
            return logits, answers, _as(cls, found)

    return Drafted


class AsksAfterTheFirst(Mapper):
    """Sees the memory in the first step only."""

    def write(self, tokens, draft, *, valid=None):
        memory = draft.memory if not draft.filled else ()
        logits, answers, found = super().write(tokens, dataclasses.replace(draft, memory=memory), valid=valid)
        return logits, answers, dataclasses.replace(found, memory=draft.memory)


class Doubtful(Mapper):
    """Answers are those of the norm's input: what search compares lines by is another thing in steps."""

    def write(self, tokens, draft, *, valid=None):
        logits, answers, found = super().write(tokens, draft, valid=valid)
        return logits, 2 * answers, found


class CutsShort(SequenceOutput):
    """Forgets, in its settings, that embeddings are tied."""

    def settings(self):
        return {**super().settings(), "tie": not self.tie}


class ForgetsBefore(SequenceOutput):
    """Every row begins with the begin token, though it goes on from another."""

    def queries(self, memory, target=None, *, start=0):
        return super().queries(memory, {**target, "before": torch.rand(len(target["before"])).long()}, start=start)


TWINS = {
    "LooksAhead": (lambda: model(decoder(LooksAhead)), "C"),
    "CountsTokens": (lambda: model(decoder(CountsTokens)), "C"),
    "ScalesByTheLoudest": (lambda: model(decoder(ScalesByTheLoudest)), "C"),
    "Deaf": (lambda: model(decoder(Deaf)), "C"),
    "Forgetful": (lambda: model(output=Forgetful), "C"),
    "Forgetful of nothing": (lambda: model(output=Forgetful, of=False), "C"),
    "AverageOfAll": (lambda: model(decoder(AverageOfAll)), "M"),
    "CountsThePadding": (lambda: model(decoder(CountsThePadding)), "P"),
    "Companions": (lambda: model(decoder(Companions)), "B"),
    "LooksAhead, in steps": (lambda: model(decoder(LooksAhead)), "T"),
    "PlacesFromZero": (lambda: model(mapper=PlacesFromZero), "T"),
    "PlacesFromZero of nothing": (lambda: model(mapper=PlacesFromZero, of=False), "T"),
    "StepsAhead": (lambda: model(mapper=StepsAhead), "T"),
    "Stuck": (lambda: model(mapper=drafted(Stuck)), "T"),
    "OwnOnly": (lambda: model(mapper=drafted(OwnOnly), of=False), "T"),
    "AsksAfterTheFirst": (lambda: model(mapper=AsksAfterTheFirst), "T"),
    "Doubtful": (lambda: model(mapper=Doubtful), "T"),
    "CutsShort": (lambda: model(output=CutsShort), "R"),
    "ForgetsBefore": (lambda: model(output=ForgetsBefore), "D"),
}


@pytest.mark.parametrize("of", [True, False])
def test_an_honest_model_passes_the_checks_its_twins_fail(of):
    require(check_model(*model(of=of), laws="PBCTMKDR"))


@pytest.mark.parametrize("twin", TWINS)
def test_a_broken_model_that_writes_is_caught_and_named(twin):
    make, law = TWINS[twin]
    with torch.random.fork_rng(devices=[]):
        verdicts = check_model(*make(), laws=law)
    assert broken(verdicts) == [law]
    with pytest.raises(LawError, match=rf"law {law}, "):
        require(verdicts)


def test_the_draft_of_an_honest_mapper_may_be_of_any_class():
    """Else the twins above could fail for another reason."""
    require(check_model(*model(mapper=drafted(Draft)), laws="T"))


def test_an_error_breaks_every_law_and_ends_none():
    made, batch = model()
    made.encoder.position = Learned(DIM, 3)  # texts are longer
    verdicts = check_model(made, batch, laws="CTM")
    assert broken(verdicts) == ["C", "T", "M"]
    assert all("places were learned" in v.note for v in verdicts if not v.passed)


def test_models_of_one_answer_have_no_law_c_or_t():
    text = SequenceInput(DIM, vocabulary=Bytes())
    made = model()[0]
    assert check_model(made, {"x": Stored(text, TEXTS).gather(), "target": _short(made)}, laws="CT") == []


def _short(made):
    """Targets of one place each: there is no later one."""
    whole = Stored(made.output, SAID).gather()
    return {n: t[:, :1] if t.dim() > 1 else t for n, t in whole.items()}


# Outputs


class NotShifted(SequenceOutput):
    """Each token is asked by itself."""

    def queries(self, memory, target=None, *, start=0):
        known = target["ids"].masked_fill(~target["valid"], 0)
        return self.ask(known, start, target["valid"])


class ForgetsTheEnd(SequenceOutput):
    """The end costs nothing."""

    def log_likelihood(self, theta, target):
        real = target["valid"] & (target["ids"] != 2)
        return super().log_likelihood(theta, {**target, "valid": real})


class CountsPaddedTokens(SequenceOutput):
    def log_likelihood(self, theta, target):
        return self.head.log_likelihood(theta["said"], target["ids"].long()).sum(1)


class MasksTooLate(SequenceOutput):
    """The loss at padding is masked after it is computed: its gradient is 0 · NaN."""

    def loss(self, theta, target):
        found = super().loss(theta, target)
        log_p = self.head.log_likelihood(theta["said"], target["ids"].long())
        found.terms["said"] = -log_p.masked_fill(~target["valid"], 0).sum(1)
        return found


class MeansOverTheBatch(SequenceOutput):
    def loss(self, theta, target):
        found = super().loss(theta, target)
        found.terms["said"] = found.terms["said"].mean().expand(len(found.count))
        return found


class MeansOverTokens(SequenceOutput):
    """Long sequences weigh no more than short ones: no likelihood any more."""

    def log_likelihood(self, theta, target):
        return super().log_likelihood(theta, target) / target["valid"].sum(1).clamp(min=1)


class ForgetsSmoothing(SequenceOutput):
    def settings(self):
        return {**super().settings(), "smoothing": 0.0}


class PredictsUnseeded(SequenceOutput):
    def predict(self, theta):
        torch.rand(1)
        return super().predict(theta)


class Hurried(SequenceOutput):
    """A row without tokens still costs."""

    def log_likelihood(self, theta, target):
        return super().log_likelihood(theta, target) - 1.0


OUTPUTS = [
    (NotShifted, "L"),
    (ForgetsTheEnd, "L"),
    (MeansOverTokens, "L"),
    (CountsPaddedTokens, "P"),
    (MasksTooLate, "P"),
    (MeansOverTheBatch, "B"),
    (ForgetsSmoothing, "R"),
    (PredictsUnseeded, "D"),
    (Hurried, "M"),
]


@pytest.mark.parametrize(("cls", "law"), OUTPUTS, ids=[f"{c.__name__}-{law}" for c, law in OUTPUTS])
def test_a_broken_output_of_sequences_is_caught_and_named(cls, law):
    verdicts = check_output(
        lambda: cls(DIM, name="said", vocabulary=Characters(["a", "b"]), smoothing=0.1), SAID, laws=law
    )
    assert broken(verdicts) == [law]
    assert all(cls.__name__ in v.note for v in verdicts if not v.passed)


def test_a_row_that_goes_on_is_asked_from_the_token_before_it():
    output = SequenceOutput(DIM, name="said", vocabulary=LETTERS)
    target = {**Stored(output, SAID).gather(), "before": torch.tensor([3, 4, 5])}
    memory = Collection(torch.zeros(3, 0, DIM), torch.zeros(3, 0, dtype=torch.bool))
    asked = output.queries(memory, target)
    assert torch.equal(asked.items[:, 0], output.embedding.weight[torch.tensor([3, 4, 5])])
    assert torch.equal(asked.items[1, 1:], output.embedding(target["ids"][1, :-1]))
    assert asked.places[1, :, 0].tolist() == list(range(8))
