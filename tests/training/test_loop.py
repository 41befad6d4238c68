import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from mapsto.errors import NonFiniteError
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.nn.initial import initialise
from mapsto.nn.pool import MeanPool
from mapsto.nn.position import Learned
from mapsto.nn.reader import Keep
from mapsto.nn.transformer import Encoder
from mapsto.outputs.items import ItemsOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.ragged import Ragged
from mapsto.stream import stream_numpy
from mapsto.training import loop
from mapsto.training.checkpoint import Checkpoints
from mapsto.training.loop import Trainer
from mapsto.training.plan import Plan
from mapsto.training.schedule import average_decay, learning_rate
from mapsto.vocabulary import Symbols

DIM, ROWS, SIZE = 8, 24, 4
LETTERS = ["a", "b", "c", "d"]
CLASSES = {"kind": "label", "classes": LETTERS}
PLAN = Plan(steps=12, lr=3e-3, warmup=3, evaluate_every=4)


class Rows:
    """Ragged rows of letters: the label of a row is its first letter, the tag of an item the letter itself."""

    def __init__(self, model, *, items=False, size=SIZE, dtype=torch.float32, poison=()):
        self.model, self.size, self.dtype, self.poison = model, size, dtype, set(poison)
        self.served = []
        random = np.random.default_rng(0)
        rows = [[LETTERS[i] for i in random.integers(0, 4, n)] for n in random.integers(1, 12, ROWS)]
        self.columns = {"x": self.store(model.inputs[0], rows)}
        self.columns["target"] = self.store(model.output, [(row,) if items else (row[0],) for row in rows])

    @staticmethod
    def store(part, values):
        parsed = [part.parse(value) for value in values]
        return {n: Ragged.pack([row[n] for row in parsed]) for n in parsed[0]}

    def order(self, epoch):
        rows = stream_numpy(1, "order", epoch).permutation(ROWS)
        return [rows[i : i + self.size] for i in range(0, ROWS, self.size)]

    def batch(self, rows):
        self.served.append(rows)
        parts = {"x": self.model.inputs[0], "target": self.model.output}
        found = {n: part.gather({m: c.take(rows) for m, c in self.columns[n].items()}) for n, part in parts.items()}
        self.model.output.hurt = len(self.served) - 1 in self.poison
        return found


class Note:
    """A watcher that writes everything down."""

    def __init__(self):
        self.losses, self.records, self.skips = [], [], []

    def stepped(self, step, loss):
        self.losses.append((step, loss))

    def evaluated(self, record):
        self.records.append(record)

    def skipped(self, step, rows, cause):
        self.skips.append((step, rows, cause))

    def unsaved(self, error):
        raise error

    def positions(self):
        return {}


class Fragile(VectorOutput):
    """An output whose loss of a poisoned batch is NaN."""

    hurt = False

    def loss(self, theta, target):
        found = super().loss(theta, target)
        if self.hurt:
            found.terms["first"] = found.terms["first"] * math.nan
        return found


def make(*, items=False, dropout=0.2, dtype=torch.float32, seed=0):
    if items:
        output, reader = ItemsOutput(DIM, name="letter", target=CLASSES), Keep()
    else:
        output, reader = Fragile(DIM, targets={"first": CLASSES}, smoothing=0.1), MeanPool()
    text = SequenceInput(DIM, vocabulary=Symbols(LETTERS))
    encoder = Encoder(DIM, 1, 2, position=Learned(DIM, 12), hidden=12, dropout=dropout)
    model = Mapper({"x": text}, encoder, reader, output, masking=dropout / 2)
    initialise(model, seed)
    return model.to(dtype)


def trainer(plan=PLAN, *, validate=None, model=None, checkpoints=None, **rows):
    model = model or make()
    feed = Rows(model, **rows)
    return Trainer(model, plan, feed, validate, Note(), checkpoints)


def weights(of):
    return of.flat.weights.clone()


# Law J: a step is the whole batch, however it is cut


def step_gradient(cut, *, items, dtype):
    """The gradient that the optimiser gets for one step over rows 0 … 15, cut into micro-batches."""
    model = make(items=items, dropout=0.0, dtype=dtype)
    trained = trainer(replace(PLAN, clip=0.0), model=model, items=items)
    found = []
    trained._apply = lambda gradient: found.append(gradient.double())
    trained.step(np.split(np.arange(16), np.cumsum(cut)[:-1]))
    return found[0]


def worst_cut(items, dtype):
    """The largest |g - g_whole| / |g_whole| over several cuts."""
    whole = step_gradient([16], items=items, dtype=dtype)
    cuts = [[8, 8], [4] * 4, [1] * 16, [1, 15], [3, 5, 8]]
    others = [step_gradient(cut, items=items, dtype=dtype) for cut in cuts]
    return max(float((g - whole).norm() / whole.norm()) for g in others)


@pytest.mark.parametrize("items", [False, True])
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_a_steps_gradient_is_the_whole_batchs_for_any_accumulation(items, dtype, tol):
    assert worst_cut(items, dtype) <= tol


@pytest.mark.parametrize("items", [False, True])
def test_the_check_of_accumulation_catches_a_mean_of_means(items, monkeypatch):
    true = loop.batch_loss

    def mean(model, batch):
        total, count = true(model, batch)
        return total / count, torch.ones(())

    monkeypatch.setattr(loop, "batch_loss", mean)
    assert worst_cut(items, torch.float64) > 1e-3


def test_the_gradient_is_that_of_the_summed_loss_over_the_summed_count():
    model = make(items=True, dropout=0.0, dtype=torch.float64)
    feed = Rows(model, items=True)
    found = step_gradient([5, 11], items=True, dtype=torch.float64)
    loss = model.loss(feed.batch(np.arange(16)))
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss.per_example().sum() / loss.count.sum(), list(named.values()))
    order = Trainer(model, PLAN, feed, None, Note()).flat.names
    wanted = torch.cat([dict(zip(named, gradients, strict=True))[n].reshape(-1) for n in order])
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_the_gradient_is_clipped_to_its_norm():
    trained = trainer(replace(PLAN, clip=1e-3), model=make(dropout=0.0))
    found = []
    trained._apply = found.append
    trained.step([np.arange(16)])
    assert float(found[0].norm()) == pytest.approx(1e-3, rel=1e-5)
    free = step_gradient([16], items=False, dtype=torch.float32)
    torch.testing.assert_close(found[0].double() / 1e-3, free / free.norm(), atol=1e-5, rtol=0)


def saved(trained):
    """Every tensor a checkpoint would hold now: weights, their averages, the best, the optimiser's moments and steps."""
    found = {}
    kept = trained.checkpoints, trained.saved
    trained.checkpoints, trained.saved = Taker(found), -1
    trained.save()
    trained.checkpoints, trained.saved = kept
    return found


class Taker:
    """Checkpoints that go into a dict."""

    def __init__(self, found):
        self.found = found

    def save(self, step, weights, optim, state):
        self.found |= {n: t.clone() for n, t in {**weights, **optim}.items()}


def equal(one, other):
    return set(one) == set(other) and all(torch.equal(t, other[n]) for n, t in one.items())


# The schedule and the optimiser


def test_the_learning_rate_rises_linearly_and_falls_as_half_a_cosine():
    rates = [learning_rate(t, peak=2.0, warmup=4, steps=20, floor=0.1) for t in range(21)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    for t in range(4, 21):
        assert rates[t] == pytest.approx(2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi * (t - 4) / 16)) / 2))
    assert rates[20] == pytest.approx(0.2)
    assert learning_rate(100, peak=2.0, warmup=4, steps=20, floor=0.1) == pytest.approx(0.2)
    assert learning_rate(0, peak=2.0, warmup=0, steps=20) == 2.0


def test_averaging_forgets_its_start():
    assert average_decay(0, 0.99) == 0.1
    assert average_decay(10**6, 0.99) == 0.99
    assert all(average_decay(t, 0.9) <= average_decay(t + 1, 0.9) for t in range(200))


def test_steps_are_those_of_adamw_with_decay_on_matrices_only():
    """Against torch's own AdamW on the parameters one by one; in float64, for it blows up the noise of zero gradients."""
    plan = replace(PLAN, weight_decay=0.3)
    trained = trainer(plan, model=make(dropout=0.0, dtype=torch.float64))
    plain = make(dropout=0.0, dtype=torch.float64)
    matrices = [p for p in plain.parameters() if p.ndim >= 2]
    vectors = [p for p in plain.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.98), foreach=False)
    feed = Rows(plain)
    for step, rows in enumerate(feed.order(0)):
        trained.step([rows])
        loss = plain.loss(feed.batch(rows))
        reference.zero_grad()
        (loss.per_example().sum() / loss.count.sum()).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        for group in reference.param_groups:
            group["lr"] = learning_rate(step, peak=plan.lr, warmup=plan.warmup, steps=plan.steps)
        reference.step()
    for name, p in plain.named_parameters():
        torch.testing.assert_close(dict(trained.model.named_parameters())[name], p, atol=1e-7, rtol=0)


def test_averaged_weights_are_the_running_average_of_the_weights():
    trained = trainer()
    wanted = weights(trained)
    for step, rows in enumerate(trained.feed.order(0)):
        trained.step([rows])
        decay = average_decay(step, PLAN.average)
        wanted = decay * wanted + (1 - decay) * trained.flat.weights
    torch.testing.assert_close(trained.average, wanted)
    own = weights(trained)
    with trained.averaged() as model:
        assert torch.equal(trained.flat.weights, trained.average)
        assert not model.training
    assert torch.equal(trained.flat.weights, own)
    assert trained.model.training


def test_every_row_comes_once_an_epoch_in_steps_of_some_micro_batches():
    trained = trainer(replace(PLAN, steps=6, accumulate=4))
    trained.run()
    sizes = [len(r) for r in trained.feed.served]
    assert sizes == [SIZE] * 18  # 6 micro-batches an epoch in steps of 4 and 2, three epochs
    for epoch in range(3):
        rows = np.concatenate(trained.feed.served[6 * epoch : 6 * epoch + 6])
        assert sorted(rows.tolist()) == list(range(ROWS))
    assert (trained.progress.epoch, trained.progress.index) == (3, 0)


def test_training_learns():
    trained = trainer(replace(PLAN, steps=60, lr=1e-2, average=0.9), items=True, model=make(items=True))
    trained.run()
    losses = [loss for _, loss in trained.watcher.losses]
    assert np.mean(losses[-6:]) < 0.5 * np.mean(losses[:6])


# Law Z: a bad batch changes nothing


def test_a_batch_with_a_nan_changes_no_weight_and_is_named():
    trained = trainer(poison=[2])
    groups = iter(trained.feed.order(0))
    for _ in range(2):
        trained.step([next(groups)])
    before = saved(trained)
    loss = trained.step([next(groups)])
    assert math.isnan(loss)
    assert equal(saved(trained), before)
    assert trained.watcher.skips == [(3, trained.feed.served[2].tolist(), "the loss, from finite outputs")]
    assert (trained.progress.step, trained.progress.bad) == (3, 1)
    assert math.isfinite(trained.step([next(groups)]))
    assert trained.progress.bad == 0
    assert not equal(saved(trained), before)


def test_an_infinite_gradient_of_a_finite_loss_changes_nothing():
    trained = trainer()
    group = trained.feed.order(0)[:1]
    trained.step(group)
    before = weights(trained)
    hook = trained.model.output.query.register_hook(lambda g: g * math.inf)
    assert math.isnan(trained.step(group))
    hook.remove()
    assert [cause for _, _, cause in trained.watcher.skips] == ["the gradient of output.query"]
    assert torch.equal(trained.flat.weights, before)
    assert math.isfinite(trained.step(group))


def test_three_bad_batches_in_a_row_stop_the_run_with_the_weights_of_before():
    trained = trainer(poison=[0, 2, 3, 4])
    with pytest.raises(NonFiniteError, match=r"3 steps in a row, last at step 5.*\n?.*train\.lr"):
        trained.run()
    other = trainer(poison=[0])
    other.run(until=2)
    assert torch.equal(trained.flat.weights, other.flat.weights)
    assert [step for step, _, _ in trained.watcher.skips] == [1, 3, 4, 5]


# Evaluation, early stopping, the best weights


def falling_then_rising(best):
    """A validation loss that is lowest at one evaluation."""
    calls = []

    def validate():
        calls.append(None)
        return {"loss": 1.0 + abs(len(calls) - best), "accuracy": 0.5}

    return validate, calls


def test_patience_ends_training_and_the_best_weights_are_kept():
    validate, calls = falling_then_rising(best=3)
    trained = trainer(replace(PLAN, steps=100, evaluate_every=2, patience=2), validate=validate)
    kept = []
    inner = trained.validate
    trained.validate = lambda: (kept.append(weights(trained)), inner())[1]
    progress = trained.run()
    assert len(calls) == 5
    assert (progress.step, progress.best_step, progress.best, progress.waited) == (10, 6, 1.0, 2)
    assert [r["step"] for r in trained.watcher.records] == [2, 4, 6, 8, 10]
    assert [r["best"] for r in trained.watcher.records] == [True, True, True, False, False]
    assert trained.watcher.records[0]["val_accuracy"] == 0.5
    trained.finish()
    assert torch.equal(trained.flat.weights, kept[2])
    assert not trained.model.training


def test_a_run_that_patience_has_ended_does_not_go_on_when_it_is_resumed(tmp_path):
    plan = replace(PLAN, steps=100, evaluate_every=2, patience=1, save_every=1)
    first = trainer(plan, validate=falling_then_rising(best=2)[0], checkpoints=Checkpoints(tmp_path))
    assert first.run().step == 6
    second = trainer(plan, validate=falling_then_rising(best=2)[0], model=make(seed=9))
    second.restore(Checkpoints(tmp_path).newest())
    assert second.run().step == 6
    for one in (first, second):
        one.finish()
    assert torch.equal(first.flat.weights, second.flat.weights)


def test_without_patience_training_goes_on_to_its_last_step_and_evaluates_there():
    validate, _ = falling_then_rising(best=1)
    trained = trainer(replace(PLAN, steps=7, evaluate_every=3, patience=0), validate=validate)
    assert trained.run().step == 7
    assert [r["step"] for r in trained.watcher.records] == [3, 6, 7]


def test_a_validation_loss_that_is_not_finite_is_never_the_best():
    trained = trainer(replace(PLAN, steps=4, evaluate_every=2), validate=lambda: {"loss": math.nan})
    assert trained.run().best is None
    trained.finish()
    assert torch.equal(trained.flat.weights, trained.average)


def test_validation_sees_the_averaged_weights_without_dropout():
    seen = []
    trained = trainer(replace(PLAN, steps=4, evaluate_every=4))
    trained.validate = lambda: (seen.append((weights(trained), trained.model.training)), {"loss": 1.0})[1]
    trained.run()
    assert torch.equal(seen[0][0], trained.average)
    assert not seen[0][1]


def test_the_reported_loss_is_that_of_all_targets_since_the_last_evaluation():
    trained = trainer(replace(PLAN, steps=6, evaluate_every=3), validate=lambda: {"loss": 1.0})
    trained.run()
    losses = [loss for _, loss in trained.watcher.losses]
    assert trained.watcher.records[0]["loss"] == pytest.approx(np.mean(losses[:3]))
    assert trained.watcher.records[1]["loss"] == pytest.approx(np.mean(losses[3:]))


def test_stop_ends_after_the_step_that_runs():
    trained = trainer()
    trained.watcher.stepped = lambda step, loss: trained.stop() if step == 3 else None
    assert trained.run().step == 3


# Law Q: a resumed run is the uninterrupted one, bit for bit


def validation(trained):
    def validate():
        with torch.no_grad():
            loss = trained.model.loss(trained.feed.batch(np.arange(8)))
        return {"loss": float(loss.per_example().sum() / loss.count.sum())}

    return validate


def state(trained):
    records = [
        {k: v for k, v in r.items() if k not in ("seconds", "steps_per_second")} for r in trained.watcher.records
    ]
    return asdict(trained.progress), records, saved(trained)


@pytest.mark.parametrize("until", [1, 4, 5, 6, 7, 11])
def test_a_run_saved_and_restored_midway_is_the_uninterrupted_one(until, tmp_path):
    plan = replace(PLAN, accumulate=2)
    whole = trainer(plan)
    whole.validate = validation(whole)
    whole.run()
    first = trainer(plan, checkpoints=Checkpoints(tmp_path))
    first.validate = validation(first)
    first.run(until=until)
    first.save()
    found = Checkpoints(tmp_path).newest()
    assert found is not None
    second = trainer(plan, model=make(seed=9))
    second.validate = validation(second)
    second.restore(found)
    second.run()
    progress, records, tensors = state(second)
    wanted_progress, wanted_records, wanted = state(whole)
    assert progress == wanted_progress
    assert first.watcher.losses + second.watcher.losses == whole.watcher.losses
    assert state(first)[1] + records == wanted_records
    assert equal(tensors, wanted)


def test_the_check_of_resume_catches_noise_that_is_not_the_steps(tmp_path, monkeypatch):
    """The twin: dropout that draws on from where the process is, not from the step."""
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr("mapsto.noise.stream", lambda *a, **k: generator)
    with pytest.raises(AssertionError):
        test_a_run_saved_and_restored_midway_is_the_uninterrupted_one(5, tmp_path)


def test_the_same_seed_gives_the_same_run_and_another_does_not():
    runs = [trainer(replace(PLAN, seed=seed)) for seed in (0, 0, 1)]
    before = torch.random.get_rng_state()
    for one in runs:
        one.run()
    assert torch.equal(runs[0].flat.weights, runs[1].flat.weights)
    assert not torch.equal(runs[0].flat.weights, runs[2].flat.weights)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_checkpoints_are_written_at_evaluations_and_every_so_many_steps(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    saved = []
    inner = checkpoints.save
    checkpoints.save = lambda step, *a, **k: (saved.append(step), inner(step, *a, **k))[1]
    trained = trainer(
        replace(PLAN, steps=9, evaluate_every=4, save_every=3), validate=lambda: {"loss": 1.0}, checkpoints=checkpoints
    )
    trained.run()
    assert saved == [3, 4, 6, 8, 9]
    assert checkpoints.steps()[-1] == 9


def test_bfloat16_keeps_float32_weights_and_a_close_loss():
    wide, narrow = trainer(model=make(dropout=0.0)), trainer(replace(PLAN, bfloat16=True), model=make(dropout=0.0))
    losses = [t.step([np.arange(16)]) for t in (wide, narrow)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert narrow.flat.weights.dtype == torch.float32
