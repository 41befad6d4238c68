"""Features that are drawn anew in training are a function of the step, and what was drawn goes with the weights."""

import itertools
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import mapsto
from mapsto.attention.favor import FavorAttention
from mapsto.errors import ModelFileError
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.nn.initial import initialise
from mapsto.nn.pool import MeanPool
from mapsto.nn.transformer import Encoder
from mapsto.outputs.vector import VectorOutput
from mapsto.ragged import Ragged
from mapsto.stream import stream_numpy
from mapsto.training.checkpoint import Checkpoints
from mapsto.training.loop import Trainer
from mapsto.training.plan import Plan
from mapsto.vocabulary import Symbols

DIM, ROWS = 8, 24
LETTERS = ["a", "b", "c", "d"]
PLAN = Plan(steps=12, lr=3e-3, warmup=3, evaluate_every=4)


class Rows:
    """The label of a row is its first letter."""

    def __init__(self, model):
        self.parts = {"x": model.inputs[0], "target": model.output}
        random = np.random.default_rng(0)
        rows = [[LETTERS[i] for i in random.integers(0, 4, n)] for n in random.integers(1, 12, ROWS)]
        values = {"x": rows, "target": [(row[0],) for row in rows]}
        self.columns = {}
        for name, part in self.parts.items():
            parsed = [part.parse(value) for value in values[name]]
            self.columns[name] = {n: Ragged.pack([row[n] for row in parsed]) for n in parsed[0]}

    def order(self, epoch):
        rows = stream_numpy(1, "order", epoch).permutation(ROWS)
        return [rows[i : i + 6] for i in range(0, ROWS, 6)]

    def batch(self, rows):
        return {n: p.gather({m: c.take(rows) for m, c in self.columns[n].items()}) for n, p in self.parts.items()}


class Silent:
    def stepped(self, step, loss):
        pass

    def evaluated(self, record):
        pass

    def skipped(self, step, rows, cause):
        raise AssertionError(cause)

    def unsaved(self, error):
        raise error

    def positions(self):
        return {}


def trainer(*, redraw=3, seed=0, checkpoints=None, losses=()):
    output = VectorOutput(DIM, targets={"first": {"kind": "label", "classes": LETTERS}})
    encoder = Encoder(DIM, 2, 2, attention=FavorAttention(8, redraw=redraw), hidden=12, normalise=True)
    model = Mapper({"x": SequenceInput(DIM, vocabulary=Symbols(LETTERS))}, encoder, MeanPool(), output)
    initialise(model, seed)
    given = iter(losses)
    validate = (lambda: {"loss": next(given)}) if losses else None
    return Trainer(model, PLAN, Rows(model), validate, Silent(), checkpoints)


def held(of):
    return {**{n: p.clone() for n, p in of.model.named_parameters()}, **drawn(of)}


def drawn(of):
    return {n: b.clone() for n, b in of.model.named_buffers()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("redraw", [0, 3])
@pytest.mark.parametrize("until", [1, 3, 4, 7])
def test_a_run_restored_between_two_draws_is_the_uninterrupted_one(until, redraw, tmp_path):
    whole = trainer(redraw=redraw)
    whole.run()
    first = trainer(redraw=redraw, checkpoints=Checkpoints(tmp_path))
    first.run(until=until)
    first.save()
    second = trainer(redraw=redraw, seed=9)  # other features than the first began with
    second.restore(Checkpoints(tmp_path).newest())
    assert equal(drawn(second), drawn(first))
    second.run()
    assert equal(held(second), held(whole))
    assert asdict(second.progress) == asdict(whole.progress)


def test_a_checkpoint_without_what_was_drawn_is_refused(tmp_path):
    first = trainer(checkpoints=Checkpoints(tmp_path))
    first.run(until=2)
    first.save()
    found = Checkpoints(tmp_path).newest()
    fewer = {n: t for n, t in found.weights.items() if not n.startswith("drawn.")}
    with pytest.raises(ModelFileError, match=r"drawn\.encoder\.blocks\.0\.attention\.attention\.omega"):
        trainer().restore(replace(found, weights=fewer))


def test_layers_draw_features_of_their_own_every_so_many_steps():
    run, seen = trainer(), []
    for step in range(1, 8):
        run.run(until=step)
        seen.append(drawn(run))
    first, second = sorted(seen[0])
    assert not torch.equal(seen[0][first], seen[0][second])
    assert [equal(a, b) for a, b in itertools.pairwise(seen)] == [True, True, False, True, True, False]


def test_the_best_weights_come_with_the_features_they_were_evaluated_with():
    run = trainer(losses=[1.0, 2.0, 3.0])
    run.run(until=4)
    wanted = drawn(run)
    run.run()
    assert not equal(drawn(run), wanted)
    run.finish()
    assert run.progress.best_step == 4
    assert equal(drawn(run), wanted)


def test_a_saved_model_answers_with_the_features_it_was_trained_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"text": letter * (3 + i % 5), "label": letter} for i in range(60) for letter in "ab"]
    settings = {"model.attention": "favor:8,redraw=2", "train.steps": 5, "size": "xs"}
    run = mapsto.fit(rows, source="text", target="label", run="drawn", settings=settings, quiet=True)
    again = mapsto.load("runs/drawn")
    assert again.config.model.normalise is True
    assert equal(dict(run.model.named_buffers()), dict(again.model.named_buffers()))
    questions = [{"text": "aaa"}, {"text": "bb"}]
    assert run.predict(questions) == again.predict(questions)
