"""How soon a run goes on, and what saving costs it: a text map of 10 M parameters.

    python benchmarks/restore.py

Trains some steps, stops, and resumes in a fresh process: the seconds from its start (Python and torch loaded) and from
the call of ``train`` (data, model, checkpoint verified and restored) to the first step. Then trains on for a
minute with the usual rule of when to save, and gives the share of the time that went into saving.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETTINGS = [
    *("model.dim=384", "model.depth=6", "model.heads=6", "input.ngrams=0", "train.batch_tokens=512", "threads=2"),
    *("train.steps=100000", "train.evaluate_every=50000"),
]
CHILD = """
import json, sys, time
began, limit = map(float, sys.argv[1:3])
import mapsto.tasks.train as verb
from mapsto.training.checkpoint import Checkpoints
from mapsto.training.loop import Trainer
loaded, state = time.time(), {"saving": 0.0, "saves": 0}
step, save = Trainer.step, Checkpoints.save
def stepped(self, *a):
    if "first" not in state:
        state["first"] = time.time()
        state["parameters"] = self.flat.weights.numel()
    found = step(self, *a)
    state.setdefault("done", time.time())
    if time.time() - state["first"] > limit:
        self.stop()
    return found
def saved(self, *a):
    start = time.time()
    save(self, *a)
    state["saving"] += time.time() - start
    state["saves"] += 1
Trainer.step, Checkpoints.save = stepped, saved
sys.argv[1:] = sys.argv[3:]
from mapsto.cli import main
try:
    main()
finally:
    now = time.time()
    spans = {"start": state["first"] - began, "call": state["first"] - loaded, "step": state["done"] - state["first"]}
    print(json.dumps(state | spans | {"all": now - state["first"]}))
"""


def run(seconds: float, *words: str) -> dict[str, float]:
    """Train for some seconds in a fresh process; what it measured."""
    command = [sys.executable, "-c", CHILD, str(time.time()), str(seconds), "train", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to train on")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        os.chdir(place)
        first = run(1.0, "--demo", "peptides", "--run", "r", *SETTINGS)
        size = sum(f.stat().st_size for f in sorted(Path("runs/r/checkpoints").glob("step-*"))[-1].iterdir())
        print(f"{first['parameters'] / 1e6:.1f} M parameters, a checkpoint of {size / 1e6:.0f} MB")
        again = [run(0.0, "--resume", "--run", "r") for _ in range(arguments.times)]
        start, call, step = (statistics.median(a[k] for a in again) for k in ("start", "call", "step"))
        print(
            f"resumed: the first step begins {call:.2f} s after the call (asked 3 s), {start:.2f} s after the process began, "
            f"and takes {step:.2f} s"
        )
        on = run(arguments.seconds, "--resume", "--run", "r")
        share = on["saving"] / on["all"]
        late = call > 3 or share > 0.05
        print(f"{on['saves']:.0f} saves in {on['all']:.0f} s took {100 * share:.1f} % of the time   asked 5 %")
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
