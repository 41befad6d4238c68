"""Broken twins: kinds with one deliberate fault, which the check must catch and name."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mapsto.collection import Collection, Packed
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.nn.dropout import Dropout
from mapsto.nn.initial import initialise
from mapsto.nn.memory import GatedMemory, Recall
from mapsto.nn.pool import MeanPool, SumPool
from mapsto.nn.position import Position
from mapsto.nn.reader import Reader
from mapsto.nn.transformer import Encoder
from mapsto.outputs.vector import VectorOutput
from mapsto.ragged import Ragged
from mapsto.testing import (
    LawError,
    check_model,
    require,
)
from mapsto.vocabulary import Bytes

DIM = 8
TEXTS = ["one", "and two", "3"]
LABEL = {"targets": {"one": {"kind": "label", "classes": ["x", "y", "z"]}}}
LABELLED = [("x",), ("y",), ("z",)]


def broken(verdicts):
    """The laws that are broken, in order, each once."""
    return list(dict.fromkeys(v.law for v in verdicts if not v.passed))


def batch(part, values):
    parsed = [part.parse(value) for value in values]
    columns = {n: Ragged.pack([row[n] for row in parsed]) for n in parsed[0]}
    return part.gather({n: c.take(np.arange(len(values))) for n, c in columns.items()})


def model(*, reader=None, encoder=None, output=None, values=LABELLED, masking=0.0):
    text = SequenceInput(DIM, vocabulary=Bytes())
    out = output or VectorOutput(DIM, **LABEL)
    made = Mapper({"x": text}, encoder or Encoder(DIM, 1, 2), reader or MeanPool(), out, masking=masking)
    initialise(made, 0)
    return made, {"x": batch(text, TEXTS), "target": batch(out, values)}


class MeanOfPlaces(Reader):
    """Padding counts in the mean."""

    def forward(self, queries, memory, *, causal=False):
        return queries.items + memory.items.masked_fill(~memory.valid[..., None], 0).mean(1, keepdim=True)


class MaxOfPlaces(Reader):
    """Padding is zeros, and zero is larger than some."""

    def forward(self, queries, memory, *, causal=False):
        return queries.items + memory.items.masked_fill(~memory.valid[..., None], 0).amax(1, keepdim=True)


class CentredPool(Reader):
    """Statistics over the batch, as batch norm in train mode."""

    def forward(self, queries, memory, *, causal=False):
        pooled = SumPool()(queries, memory)
        return pooled - pooled.mean(0, keepdim=True)


class FirstItem(Reader):
    """Takes the first item of a set, whichever comes first."""

    def forward(self, queries, memory, *, causal=False):
        return queries.items + memory.items[:, :1] if memory.valid.shape[1] else queries.items


class MeanWithoutCare(Reader):
    """0/0 for an empty group."""

    def forward(self, queries, memory, *, causal=False):
        total = memory.items.masked_fill(~memory.valid[..., None], 0).sum(1, keepdim=True)
        return queries.items + total / memory.valid.sum(1)[:, None, None]


class ByIndex(Position):
    """Positions from the index in the tensor, not from the places."""

    def add(self, items, places):
        index = torch.arange(items.shape[-2], dtype=torch.float32)[:, None]
        return items + torch.cat([index.sin(), index.cos()], 1).repeat(1, DIM // 2).to(items.dtype)


class LooksUpByIndexing(Position):
    """A learned table, indexed: threads add up its gradient in whatever order they come."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 16 * DIM).view(16, DIM))

    def add(self, items, places):
        return items + self.table[places[..., 0].long() % 16].to(items.dtype)


class Silent(Position):
    """Says it tells where items are, and does not."""


class Timeless(nn.Module):
    """Says it goes by the order of items, and sums them up."""

    ordered = True

    def forward(self, x, *, causal=False, position=None):
        items = x.unpack() if isinstance(x, Packed) else x
        total = items.items.masked_fill(~items.valid[..., None], 0).sum(1, keepdim=True)
        return x.items + (total if items is x else total[:, 0].repeat_interleave(x.lengths, 0))


class LeaksBehind(GatedMemory):
    """What stands behind the last item is written, too: padding moves what is read from the end."""

    def _scan(self, written, log_forget, valid, **rest):
        return super()._scan(written, log_forget, None, **rest)


class AlwaysDropping(Dropout):
    """Dropout that stays active in eval mode."""

    def forward(self, x):
        kept = self.training
        self.training = True
        out = super().forward(x)
        self.training = kept
        return out


class UnseededDropout(Dropout):
    def forward(self, x):
        return F.dropout(x, self.rate, self.training)


class Learner(Reader):
    """Keeps a running mean in a buffer, in place, in eval too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(DIM))

    def forward(self, queries, memory, *, causal=False):
        out = MeanPool()(queries, memory)
        self.mean.mul_(0.9).add_(0.1 * out.detach().mean((0, 1)))
        return out


class Idle(MeanPool):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(DIM))


class PacksOtherwise(Encoder):
    """Packed items are cut into windows, padded ones are not."""

    def forward(self, x, *, causal=False):
        out = super().forward(x, causal=causal)
        return out if isinstance(x, Collection) else out.replace(items=out.items * 1.001)


class RoundsToSingleInside(MeanPool):
    """Computes in float32 whatever the model's type is."""

    def forward(self, queries, memory, *, causal=False):
        return super().forward(queries, memory.replace(items=memory.items.float().to(memory.items.dtype)))


def with_dropout(cls):
    made, given = model(encoder=Encoder(DIM, 1, 2, dropout=0.3))
    made.encoder.dropout = cls(0.3)
    return made, given


MODELS = {
    "MeanOfPlaces": (lambda: model(reader=MeanOfPlaces()), "P"),
    "MaxOfPlaces": (lambda: model(reader=MaxOfPlaces()), "B"),
    "CentredPool": (lambda: model(reader=CentredPool()), "B"),
    "FirstItem": (lambda: model(reader=FirstItem()), "S"),
    "MeanWithoutCare": (lambda: model(reader=MeanWithoutCare()), "M"),
    "ByIndex": (lambda: model(encoder=Encoder(DIM, 1, 2, position=ByIndex())), "S"),
    "Timeless": (lambda: model(encoder=Encoder(DIM, 1, 2, mixer=Timeless)), "S"),
    "LeaksBehind": (lambda: model(encoder=Encoder(DIM, 1, 2, mixer=lambda: Recall(LeaksBehind, DIM))), "P"),
    "Silent": (lambda: model(encoder=Encoder(DIM, 1, 2, position=Silent())), "S"),
    "AlwaysDropping": (lambda: with_dropout(AlwaysDropping), "D"),
    "UnseededDropout": (lambda: with_dropout(UnseededDropout), "D"),
    "LooksUpByIndexing": (lambda: model(encoder=Encoder(DIM, 1, 2, position=LooksUpByIndexing())), "D"),
    "Learner": (lambda: model(reader=Learner()), "D"),
    "Idle": (lambda: model(reader=Idle()), "D"),
    "RoundsToSingleInside": (lambda: model(reader=RoundsToSingleInside()), "K"),
    "PacksOtherwise": (lambda: model(encoder=PacksOtherwise(DIM, 1, 2)), "R"),
}


def test_an_honest_model_passes_the_checks_its_twins_fail():
    made, given = with_dropout(Dropout)
    require(check_model(made, given, laws="PBSMKDR"))


@pytest.mark.parametrize("twin", MODELS)
def test_a_broken_model_is_caught_and_named(twin):
    make, law = MODELS[twin]
    verdicts = check_model(*make(), laws=law)
    assert broken(verdicts) == [law]
    with pytest.raises(LawError, match=rf"law {law}, .*: Mapper"):
        require(verdicts)


def test_checking_a_model_leaves_it_and_its_batch_as_they_are():
    made, given = with_dropout(Dropout)
    made.train()
    before = {n: t.clone() for n, t in made.state_dict().items()}
    kept = {n: {m: t.clone() for m, t in part.items()} for n, part in given.items()}
    state = torch.random.get_rng_state()
    check_model(made, given, laws="PBSMKDR")
    assert all(torch.equal(before[n], t) for n, t in made.state_dict().items())
    assert all(torch.equal(kept[n][m], t) for n, part in given.items() for m, t in part.items())
    assert made.training
    assert made.encoder.dropout.rate == 0.3
    assert all(p.grad is None and p.requires_grad for p in made.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_that_cannot_learn_is_checked_too():
    made, given = model()
    made.requires_grad_(False)
    require(check_model(made, {"x": given["x"]}, laws="PBSMKDR"))
