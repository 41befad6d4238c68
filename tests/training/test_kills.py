"""Law Q, by a sample of ``benchmarks/kills.py`` and ``benchmarks/power.py``, and twins that it must catch."""

import random

import pytest

import kills
import power
from mapsto import disk, document, manifest
from mapsto.tasks.watch import RunWatcher
from mapsto.training.checkpoint import FILES, Checkpoint, Checkpoints
from mapsto.training.loop import Trainer

TASKS = kills.tasks()


@pytest.fixture
def bench(tmp_path):
    def make(task="text", **more):
        folder = tmp_path / "runs"
        folder.mkdir()
        return kills.Bench(TASKS[task], folder, {"train.steps": 12, "train.evaluate_every": 4, **more})

    return make


def holds(count):
    assert count.runs
    assert not count.broken, count.notes
    return count


@pytest.mark.parametrize(
    ("task", "workers", "precision"),
    [("picture", 2, "float32"), ("tags", 0, "bfloat16"), ("novel", 0, "float32"), ("pairs", 2, "float32")],
)
def test_runs_killed_at_random_end_in_the_same_bits(bench, task, workers, precision):
    one = bench(task, **{"train.workers": workers, "train.precision": precision})
    assert holds(kills.random_kills(one, 6, random.Random(1))).kills >= 6


def test_every_way_to_fail_at_some_file_operations_loses_nothing(bench):
    holds(kills.every_operation(bench("series"), random.Random(2), share=0.015))


def test_what_a_power_loss_leaves_resumes_to_the_same_bits(bench):
    holds(power.power_losses(bench("series"), random.Random(3), share=0.015))


@pytest.mark.slow
@pytest.mark.sample
def test_a_larger_share_of_all_operations_and_power_losses_loses_nothing(bench):
    one = bench("tags")
    holds(kills.every_operation(one, random.Random(4), share=0.05))
    for left in one.folder.iterdir():
        disk.remove(left)
    holds(power.power_losses(one, random.Random(5), share=0.05))


# Twins


def saved_in_place():
    """Writes into the folder that counts, which counts because of its name."""

    def save(self, step, weights, optim, state):
        self.folder.mkdir(exist_ok=True)
        disk.make(self.path(step))
        disk.write_tensors(self.path(step) / FILES[0], weights)
        disk.write_tensors(self.path(step) / FILES[1], optim)
        disk.write(self.path(step) / FILES[2], document.dump(state))
        self._prune(step)

    def newest(self):
        if not self.steps():
            return None
        path = self.path(self.steps()[-1])
        parts = [disk.read_tensors(path / name) for name in FILES[:2]]
        return Checkpoint(self.steps()[-1], *parts, disk.read_json(path / FILES[2]))

    Checkpoints.save, Checkpoints.newest = save, newest


def order_replayed():
    """Resumes at the start of the data."""
    inner = Trainer.restore

    def restore(self, found):
        inner(self, found)
        self.progress.epoch = self.progress.index = 0

    Trainer.restore = restore


def journals_kept():
    """Resumes without cutting the append-only files."""
    RunWatcher.cut = lambda self, sizes: None


@pytest.mark.parametrize(
    ("twin", "how"), [(saved_in_place, "lost"), (order_replayed, "different"), (journals_kept, "different")]
)
def test_the_check_catches(bench, twin, how):
    one = bench("text")
    count = kills.Count()
    wanted = one.reference()
    operations = (one.folder / "operations", kills.count_operations(one))[0].read_text().splitlines()
    tensors = [i for i, name in enumerate(operations, 1) if name == "write_tensors"]
    for number in tensors[2:6:2]:  # in the middle of the second save, after an evaluation, and of the third
        kills.fail_at(one, number, "torn", wanted, count, twin)
    assert getattr(count, how), count.notes


def nothing_synced():
    disk.sync = lambda path: None


def manifests_first():
    """A manifest on the disk before the files it speaks of."""

    def seal(folder, facts, names):
        sync, disk.sync = disk.sync, lambda path: None
        inner(folder, facts, names)
        disk.sync = sync
        disk.sync(folder / "manifest.json")
        disk.sync(folder)

    inner, manifest.seal = manifest.seal, seal


@pytest.mark.parametrize("twin", [nothing_synced, manifests_first])
def test_the_check_of_power_losses_catches(bench, twin):
    found = power.power_losses(bench("text", **{"train.steps": 4}), random.Random(0), share=0.1, twin=twin)
    assert found.broken
