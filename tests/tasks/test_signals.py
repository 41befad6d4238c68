"""Signals, terminals that go away, steps that are not finite: a run keeps what it has, and goes on to the same bits."""

import fcntl
import io
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from rich.console import Console

from mapsto import disk
from mapsto.cli import main
from mapsto.tasks.watch import RunWatcher

SETTINGS = ["model.dim=8", "model.depth=1", "model.heads=2", "train.steps=12", "train.evaluate_every=4", "threads=1"]
START = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.HANGUP)  # whatever the tests were started by
import torch
torch.set_num_threads(1)
from mapsto.training.loop import Trainer
step = Trainer.step
def disturbed(self, group, batches):
    if self.progress.step == 6:
        DISTURB
    return step(self, group, batches)
Trainer.step = disturbed
from mapsto.cli import main
main()
"""


def write(folder):
    rows = [f"{'good' if i % 2 else 'bad'} film {i % 17},{'pos' if i % 2 else 'neg'}" for i in range(80)]
    (folder / "reviews.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return folder / "reviews.csv"


@pytest.fixture
def data(tmp_path):
    return write(tmp_path)


def command(data, name, disturb="pass", hangup="SIG_DFL"):
    words = ["train", str(data), "--from", "text:sequence", "--to", "label", "--run", name, *SETTINGS]
    return [sys.executable, "-c", START.replace("DISTURB", disturb).replace("HANGUP", hangup), *words]


def resumed(name):
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(sys, "argv", ["mapsto", "train", "--resume", "--run", name])
        main()
    return out.getvalue()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcome of a run that nothing happens to."""
    here = tmp_path_factory.mktemp("whole")
    done = subprocess.run(command(write(here), "whole"), cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return outcome(here / "runs/whole")


def outcome(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clocks = ("seconds", "steps_per_second")
    return (run / "model/model.safetensors").read_bytes(), [
        {k: v for k, v in r.items() if k not in clocks} for r in lines
    ]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_finishes_the_step_saves_and_has_its_exit_code(data, name, whole):
    number = signal.Signals[name]
    disturb = f"os.kill(os.getpid(), {int(number)})"
    done = subprocess.run(command(data, "part", disturb), capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number, done.stderr
    assert "error: stopped at step 7 of 12, saved.   Go on with --resume --run part" in done.stderr
    assert [p.name for p in Path("runs/part/checkpoints").iterdir() if p.name == "step-000007"]
    assert "resumed at step 7 of 12" in resumed("part")
    assert outcome(Path("runs/part")) == whole


def test_a_second_signal_ends_the_process_at_once(data):
    disturb = "[os.kill(os.getpid(), signal.SIGTERM) for _ in range(2)]"
    done = subprocess.run(command(data, "part", disturb), capture_output=True, text=True, check=False)
    assert done.returncode == 143
    assert "stopped" not in done.stderr
    assert not Path("runs/part/checkpoints/step-000007").exists()
    resumed("part")


def on_a_terminal(words, *, controlling):
    """Run on a terminal of its own that is closed at the seventh step; gives the exit code."""
    ours, theirs = pty.openpty()
    told, tell = os.pipe()

    def take():
        if controlling:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [w.replace("TELL", str(tell)) for w in words],
        stdin=theirs, stdout=theirs, stderr=theirs, pass_fds=[tell], start_new_session=True, preexec_fn=take,
    )  # fmt: skip
    os.close(theirs)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        while os.read(pipe.fileno(), 1) != b"7":
            pass
        os.close(ours)
    return process.wait(timeout=120)


DISTURB = "os.write(TELL, b'7'); __import__('time').sleep(0.5)"


def test_a_terminal_that_goes_away_loses_no_step(data, whole):
    assert on_a_terminal(command(data, "part", DISTURB), controlling=True) == 129
    assert "resumed at step 7 of 12" in resumed("part")
    assert outcome(Path("runs/part")) == whole
    assert on_a_terminal(command(data, "other", DISTURB), controlling=False) == 0
    assert outcome(Path("runs/other")) == whole


def test_a_run_that_ignores_hangups_goes_on_without_its_terminal(data):
    assert on_a_terminal(command(data, "part", DISTURB, "SIG_IGN"), controlling=True) == 0
    assert Path("runs/part/result.json").exists()


def test_a_finished_run_that_is_resumed_says_so(data):
    assert subprocess.run(command(data, "done"), capture_output=True, check=False).returncode == 0
    before = outcome(Path("runs/done"))
    assert "runs/done is finished: 12 steps" in resumed("done")
    assert outcome(Path("runs/done")) == before


def test_a_run_that_is_not_finite_ends_with_6_and_says_which_rows_and_where(data):
    words = [*command(data, "wild"), "train.lr=1e30", "train.clip=0"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert "not finite in 3 steps in a row" in done.stderr
    assert "the output of " in done.stderr
    records = [json.loads(line) for line in Path("runs/wild/bad-batches.jsonl").read_text().splitlines()]
    assert len(records) == 3
    assert all(row.startswith("reviews.csv row ") for r in records for row in r["rows"])
    assert set(disk.read_tensors(Path("runs/wild/bad-batch.safetensors"))) >= {"text.ids", "target.label"}


class Gone(io.StringIO):
    """A stream whose reader has gone after some writes."""

    def __init__(self, left):
        super().__init__()
        self.left = left

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


@pytest.mark.parametrize("left", [0, 1, 3])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_watcher_without_anybody_to_tell_keeps_its_log(tmp_path, left, terminal):
    one = RunWatcher(tmp_path, Console(file=Gone(left), force_terminal=terminal))
    one.say("hello")
    one.begin(5)
    for step in range(1, 6):
        one.stepped(step, 0.5)
        one.shown = 0.0
    one.end()
    one.say("[bold]done[/bold]")
    assert (tmp_path / "log.txt").read_text() == "hello\n[bold]done[/bold]\n"
