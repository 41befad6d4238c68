"""Broken twins: kinds with one deliberate fault, which the check must catch and name."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mapsto.collection import Collection
from mapsto.inputs.image import ImageInput
from mapsto.inputs.sequence import SequenceInput
from mapsto.inputs.series import SeriesInput
from mapsto.inputs.vector import VectorInput
from mapsto.testing import (
    check_input,
)
from mapsto.vocabulary import Bytes

DIM = 8


def broken(verdicts):
    """The laws that are broken, in order, each once."""
    return list(dict.fromkeys(v.law for v in verdicts if not v.passed))


def notes(verdicts):
    return "\n".join(v.note for v in verdicts if not v.passed)


TEXTS = ["one", "and two", "3"]
GREY = {"channels": 1, "mean": [0.5], "scale": [0.3]}
SERIES = {"mean": [0.0], "scale": [1.0]}


def rows(*lengths):
    return [np.random.default_rng(n).normal(size=(n, 1)) for n in lengths]


def pictures():
    return [np.random.default_rng(h).integers(0, 256, (h, w), dtype=np.uint8) for h, w in ((8, 8), (5, 12), (9, 3))]


class LeavesGarbage(SequenceInput):
    def forward(self, batch):
        out = super().forward(batch)
        return Collection(self.embedding(batch["ids"]), out.valid, out.places)


class PlacesFromTheEnd(SequenceInput):
    """The place counts from the longest row's end: it depends on company."""

    def forward(self, batch):
        out = super().forward(batch)
        return out.replace(places=(out.places - out.valid.shape[1]).masked_fill(~out.valid[..., None], 0))


class CentresOverTheBatch(SeriesInput):
    def forward(self, batch):
        out = super().forward(batch)
        mean = out.items.sum((0, 1)) / out.valid.sum().clamp(min=1)
        return out.replace(items=(out.items - mean).masked_fill(~out.valid[..., None], 0))


class CountsPadding(SeriesInput):
    """Items are divided by the number of places, padding included."""

    def forward(self, batch):
        out = super().forward(batch)
        return out.replace(items=out.items / max(1, out.valid.shape[1]))


class ForgetsTheEdge(ImageInput):
    """The second convolution sees what the first, its bias and norm have put outside the picture."""

    def _layer(self, x, size, convolution, norm):
        x = F.gelu(norm(convolution(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return F.max_pool2d(x, 2, ceil_mode=True), (size + 1) // 2


class HasAnIdleParameter(VectorInput):
    def __init__(self, dim, **settings):
        super().__init__(dim, **settings)
        self.idle = nn.Parameter(torch.zeros(3))


class FillsInPlace(SeriesInput):
    def forward(self, batch):
        batch["values"].nan_to_num_()
        return super().forward(batch)


class ForgetsItsStem(SequenceInput):
    def settings(self):
        return {**super().settings(), "stem": 0}


class MiscountsLengths(SequenceInput):
    def lengths(self, columns):
        return super().lengths(columns) + 1


COLUMNS = [{"name": "a", "kind": "number", "mean": [0.0], "scale": [1.0]}]
INPUTS = [
    (lambda: LeavesGarbage(DIM, vocabulary=Bytes()), TEXTS, "P"),
    (lambda: PlacesFromTheEnd(DIM, vocabulary=Bytes()), TEXTS, "B"),
    (lambda: CentresOverTheBatch(DIM, **SERIES), rows(5, 9, 1), "B"),
    (lambda: CountsPadding(DIM, **SERIES), rows(5, 9, 1), "P"),
    (lambda: ForgetsTheEdge(DIM, **GREY), pictures(), "B"),
    (lambda: HasAnIdleParameter(DIM, columns=COLUMNS), [(1.0,), (None,)], "D"),
    (lambda: FillsInPlace(DIM, **SERIES), [np.array([[1.0], [np.nan]]), *rows(5)], "D"),
    (lambda: ForgetsItsStem(DIM, vocabulary=Bytes(), stem=3), TEXTS, "R"),
    (lambda: MiscountsLengths(DIM, vocabulary=Bytes()), TEXTS, "P"),
]


@pytest.mark.parametrize(("make", "values", "law"), INPUTS, ids=[type(m()).__name__ for m, _, _ in INPUTS])
def test_a_broken_input_is_caught_and_named(make, values, law):
    verdicts = check_input(make, values, laws=law)
    assert broken(verdicts) == [law]
    assert type(make()).__name__ in notes(verdicts)
