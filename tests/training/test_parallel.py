"""Law J: several processes are one, by ``benchmarks/ranks.py``; and twins that the checks must catch."""

import errno
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import kills
import mapsto
import ranks
from mapsto import disk
from mapsto.errors import ConfigError
from mapsto.training.loop import Trainer
from mapsto.training.parallel import World

TAGS = kills.tasks()["tags"]


@pytest.fixture
def team(tmp_path):
    wires = []

    def make(size, **more):
        folder = tmp_path / "runs"
        folder.mkdir(exist_ok=True)
        wires.append(ranks.Wires(size))
        settings = {"train.accumulate": 6, "train.timeout": 20.0, "train.steps": 8, "train.evaluate_every": 4}
        settings |= {"train.lr": 0.003, "train.patience": 0}
        return ranks.Team(kills.Bench(TAGS, folder, settings | more), size, wires[-1])

    yield make
    for one in wires:
        one.close()


def ended(team, name, twin=None):
    """Run to the end; gives the run folder."""
    codes = team.whole(name, twin)
    assert codes == [0] * team.size, (codes, team.errors(name))
    return team.bench.folder / name


def weights(run):
    return torch.cat([t.reshape(-1) for _, t in sorted(disk.read_tensors(run / "model/model.safetensors").items())])


def test_metrics_of_equal_weights_do_not_depend_on_the_number_of_processes(tmp_path):
    assert ranks.metrics(tmp_path / "runs") <= 1e-12


def test_the_check_of_metrics_catches_a_process_that_measures_alone(tmp_path, monkeypatch):
    # each process measures its own batches only
    monkeypatch.setattr("mapsto.tasks.score._gathered", lambda found, world: found)
    assert ranks.metrics(tmp_path / "runs") > 1e-12


def gradients(to):
    """A twin that writes down each step's gradient."""

    def twin(rank):
        def apply(self, gradient):
            if rank == 0:
                np.save(to / f"{self.progress.step}.npy", gradient.double().numpy())
            inner(self, gradient)

        inner, Trainer._apply = Trainer._apply, apply

    return twin


def worst(team, tmp_path, twin=None):
    """The largest |g - g_1| / |g_1| of the first step's gradient, over 2 and 3 processes."""
    found = []
    for size in (1, 2, 3):
        to = tmp_path / str(size)
        to.mkdir()

        def both(rank, to=to):
            gradients(to)(rank)
            if twin is not None:
                twin(rank)

        ended(team(size, **{"train.clip": 0.0, "train.steps": 1}), f"run-{size}", both)
        found.append(np.load(to / "0.npy"))
    return max(float(np.linalg.norm(g - found[0]) / np.linalg.norm(found[0])) for g in found)


def test_one_steps_gradient_is_that_of_one_process(team, tmp_path):
    assert worst(team, tmp_path) <= 1e-6


def mean_of_means(rank):
    """Gradients that are averaged over processes, as if all had equally many targets."""

    def step(self, group, batches=None):
        size, self.world.size = self.world.size, 1
        sums = [self._loss(part, batch) for part, batch in batches]
        own = sum(float(count) for _, count in sums)
        (sum(loss for loss, _ in sums) / max(own, 1.0)).backward()
        self.world.size = size
        gradient = self.flat.gradient()
        self.world.add(gradient)
        self._apply(gradient / size)
        self.progress.step += 1
        return 0.0

    Trainer.step = step


def test_the_check_of_gradients_catches_a_mean_of_means(team, tmp_path):
    assert worst(team, tmp_path, mean_of_means) > 1e-4


def rows_to(path):
    """A twin that writes down which rows each part of each step has."""

    def twin(rank):
        def gather(self, group):
            with path.open("a") as file:
                for part in self.world.turns(len(group)):
                    file.write(json.dumps([self.progress.step, part, group[part].tolist()]) + "\n")
            return inner(self, group)

        inner, Trainer._gather = Trainer._gather, gather

    return twin


def test_a_run_resumed_by_another_number_of_processes_goes_on_in_the_same_order(team, tmp_path):
    one = ended(team(1), "one", rows_to(tmp_path / "one.rows"))
    pair, alone = team(2), team(1)

    def stopped(rank):
        rows_to(tmp_path / "many.rows")(rank)
        if rank == 1:
            ranks.strike("asked to end", 1, "before a step", 4, tmp_path / "mark")(rank)

    assert pair.whole("many", stopped) == [143, 143]
    many = ended(alone, "many", rows_to(tmp_path / "many.rows"))
    lines = [sorted((tmp_path / f"{n}.rows").read_text().splitlines()) for n in ("one", "many")]
    assert lines[0] == lines[1]
    a, b = weights(one), weights(many)
    assert float((a - b).norm() / a.norm()) < 1e-3  # AdamW makes steps of all sizes equal: rounding shows
    assert "processes" in json.loads((many / "environment.json").read_text())


@pytest.mark.parametrize("size", [2])
def test_the_faults_of_one_process_end_all_and_the_run_goes_on_to_the_same_bits(tmp_path, size):
    wrong = ranks.faults(tmp_path / "runs", 4, size, random.Random(5))
    assert not wrong


def test_the_check_of_faults_catches_a_loss_that_is_not_told_from_other_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(World, "guard", lambda self: nullcontext())
    monkeypatch.setattr(ranks, "FAULTS", ("killed",))
    wrong = ranks.faults(tmp_path / "runs", 1, 2, random.Random(1))
    assert any("exit codes" in line for line in wrong)


def test_what_is_not_finite_in_one_process_changes_nothing_in_any(team):
    def poisoned(rank):
        def loss(self, part, batch):
            total, count = inner(self, part, batch)
            return (total * math.nan if (self.progress.step, part) == (3, 1) else total), count

        inner, Trainer._loss = Trainer._loss, loss

    pair = team(2)
    run = ended(pair, "bad", poisoned)
    (line,) = (run / "bad-batches.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["step"], record["first"]) == (4, "the loss, from finite outputs")
    assert all(re.fullmatch(r"data row \d+", row) for row in record["rows"])
    assert torch.isfinite(weights(run)).all()
    assert set(disk.read_tensors(run / "bad-batch.safetensors")) >= {"x.ids", "target.values"}


def test_a_full_disk_of_the_first_process_stops_nobody(team):
    def starved(rank):
        def write(path, data):
            if path.name == "state.json" and ".step-000004" in str(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            inner(path, data)

        inner, disk.write = disk.write, write

    run = ended(team(2), "full", starved)
    assert kills.differing(kills.outcome(run), kills.outcome(ended(team(2), "usual"))) == []


def test_processes_with_other_settings_end_with_what_differs(team):
    def other(rank):
        if rank:
            build = TAGS.config

            def config(**more):
                return build(**{**more, "seed": 5})

            object.__setattr__(TAGS, "config", config)

    pair = team(2)
    assert 7 in pair.whole("other", other)
    assert "differ in settings, data or versions" in pair.errors("other")


# Sharded


def test_a_sharded_run_is_the_one_that_is_not_and_its_checkpoints_fit_any_number_of_processes(team, tmp_path):
    short = {"train.steps": 4, "train.evaluate_every": 2}
    plain = ended(team(1, **short), "plain")
    shards, alone = team(3, **short, **{"train.shard": True}), team(1, **short, **{"train.shard": True})
    whole = ended(shards, "whole")

    def stopped(rank):
        ranks.strike("asked to end", 1, "before a step", 3, tmp_path / "mark")(rank) if rank == 1 else None

    assert shards.whole("part", stopped) == [143, 143, 143]
    (step,) = sorted((shards.bench.folder / "part/checkpoints").glob("step-*"))[-1:]
    tensors = disk.read_tensors(step / "weights.safetensors")
    known = disk.read_tensors(plain / "model/model.safetensors")
    assert {n: t.shape for n, t in tensors.items() if n.startswith("weights.")} == {
        f"weights.{n}": t.shape for n, t in known.items()
    }
    part = ended(shards, "part")
    assert kills.differing(kills.outcome(part), kills.outcome(whole)) == []
    a, b = weights(plain), weights(whole)
    assert float((a - b).norm() / a.norm()) < 1e-3
    assert shards.whole("less", stopped) == [143, 143, 143]
    c = weights(ended(alone, "less"))
    assert float((a - c).norm() / a.norm()) < 1e-3


def test_a_lost_process_of_a_sharded_run_ends_all(team):
    pair = team(2, **{"train.shard": True, "train.timeout": 5.0})

    def gone(rank):
        if rank == 1:
            ranks.strike("killed", 1, "before a step", 3, pair.bench.folder / "mark")(rank)

    assert pair.whole("lost", gone) == [7, -signal.SIGKILL]
    ended(pair, "lost")


# As people start it


def reviews(path):
    rows = [f"{'good' if i % 2 else 'bad'} film {i}," + ("pos" if i % 2 else "neg") for i in range(200)]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


def launched(*words, **more):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "--",
        "mapsto",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return subprocess.Popen(
        [*command, *map(str, words)],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **more,
    )


def workers(launcher):
    return [int(x) for x in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()]


def until(true, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


SMALL = ["train.batch_tokens=64", "train.epochs=200", "train.save_every=20", "train.evaluate_every=50", "model.dim=16"]


@pytest.mark.slow
@pytest.mark.sample
@pytest.mark.parametrize("who", ["launcher killed", "launcher interrupted", "worker killed"])
def test_torchrun_leaves_nobody_behind_and_the_run_goes_on(tmp_path, who):
    data = reviews(tmp_path / "reviews.csv")
    words = ["train", data, "--from", "text:sequence", "--to", "label", "--run", "r", *SMALL]
    launcher = launched(*words)
    try:
        run = Path("runs/r")
        until(lambda: len(list(run.glob("checkpoints/step-*"))) > 0)
        there = workers(launcher)
        assert len(there) == 2
        if who == "worker killed":
            os.kill(there[1], signal.SIGKILL)
        else:
            os.kill(launcher.pid, signal.SIGKILL if who == "launcher killed" else signal.SIGINT)
        until(lambda: not any(map(alive, there)))
        said = launcher.communicate(timeout=60)[0]
    finally:
        launcher.kill()
    assert not (run / "result.json").exists()
    if who != "worker killed":
        assert "saved" in said
    again = launched("train", "--resume", "--run", "r")
    text = again.communicate(timeout=300)[0]
    assert again.returncode == 0, text
    assert (run / "result.json").exists()
    measured = launched("evaluate", "runs/r", "--json")
    text = measured.communicate(timeout=300)[0]
    (line,) = [line for line in text.splitlines() if line.startswith("{")]
    assert json.loads(line)["metrics"] == json.loads((run / "result.json").read_text())["metrics"]


def test_rows_in_memory_are_resumed_when_they_are_given_again(tmp_path):
    rows = [{"text": f"{'good' if i % 2 else 'bad'} film {i}", "label": "pn"[i % 2]} for i in range(60)]
    settings = {"model.dim": 8, "model.depth": 1, "model.heads": 2, "train.steps": 6, "train.save_every": 2}
    run = mapsto.fit(rows, target="label", source="text:sequence", run="m", settings=settings, quiet=True)
    before = (run.folder / "model/model.safetensors").read_bytes()
    (run.folder / "result.json").unlink()
    disk.remove(run.folder / "checkpoints/step-000006")
    again = mapsto.fit(rows, run="m", resume=True, quiet=True)
    assert (again.folder / "model/model.safetensors").read_bytes() == before
    (run.folder / "result.json").unlink()
    with pytest.raises(ConfigError, match=r"the data have changed since runs/m began: rows\.train: 48 -> 40"):
        mapsto.fit(rows[:50], run="m", resume=True, quiet=True)


def test_one_process_that_is_asked_to_stop_when_patience_has_ended_training_ends_all(team):
    pair = team(
        2, **{"train.lr": 0.3, "train.patience": 1, "train.steps": 24, "train.evaluate_every": 4, "train.accumulate": 2}
    )
    run = ended(pair, "usual")
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert last < 24

    def late(rank):
        if rank == 1:
            ranks.strike("asked to end", 1, "evaluating", last // 4, pair.bench.folder / "mark")(rank)

    assert pair.whole("late", late) == [143, 143]
    assert kills.differing(kills.outcome(ended(pair, "late")), kills.outcome(run)) == []
