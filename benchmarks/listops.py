"""Long sequences of brackets and digits, learned with each kind of attention: accuracy, time and memory side by side.

    python benchmarks/listops.py                                  lengths 200 to 500, about 40 minutes on one thread
    python benchmarks/listops.py --shortest 500 --longest 2000    the lengths of the Long Range Arena

A row is an expression of MIN, MAX, MED (median) and SM (sum modulo 10) over digits and expressions; its label is the value.
Every kind has the same model (4 layers), the same rows, the same seed, the same number of steps, and a process of its own.
Favor's number of features is in its name; queries and keys are normalised there, as they are by default.

Reference: Nangia & Bowman, ListOps, 2018; Tay et al., Long Range Arena, 2021.
"""

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mapsto.process import tune_process
from mapsto.stream import entropy
from mapsto.tasks.config import Config, override
from mapsto.tasks.train import train
from race import table

OPERATIONS = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
NAMES = list(OPERATIONS)
KINDS = ("softmax", "window:64", "favor:256")


def expression(source: random.Random, depth: int, nested: float, most: int) -> tuple[list[str], int]:
    """Tokens and value; each argument is an expression with probability ``nested`` until the depth is used up."""
    name = source.choice(NAMES)
    tokens, values = [name], []
    for _ in range(source.randint(2, most)):
        if depth > 1 and source.random() < nested:
            inner, value = expression(source, depth - 1, nested, most)
            tokens += inner
        else:
            value = source.randrange(10)
            tokens.append(str(value))
        values.append(value)
    return [*tokens, "]"], OPERATIONS[name](values)


def rows(count: int, shortest: int, longest: int, seed: int) -> list[dict[str, Any]]:
    """Expressions of the lengths asked."""
    source, found = random.Random(entropy(seed, "listops")), []
    while len(found) < count:
        tokens, value = expression(source, 10, 0.25, 10)
        if shortest <= len(tokens) <= longest:
            found.append({"expression": tokens, "value": str(value)})
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Train one kind; memory is the most that this process had, less what it had before training."""
    torch.set_num_threads(args.threads)
    data = rows(args.rows, args.shortest, args.longest, args.seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    settings = {
        "model.attention": args.measure,
        "model.depth": 4,
        "model.dim": args.dim,
        "model.heads": 4,
        "model.dropout": 0.0,
        "input.limit": 0,
        "train.lr": 1e-3,
        "train.epochs": args.epochs,
        "train.batch_tokens": 8192,
        "threads": args.threads,
        "seed": args.seed,
    }
    config = override(Config(), [f"{k}={json.dumps(v)}" for k, v in settings.items()])
    config.data.inputs, config.data.targets = ["expression"], ["value"]
    clock, processor = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        console = Console(stderr=True, quiet=not args.verbose)
        run, result = train(config, data, name="listops", root=Path(folder), console=console)
        return {
            "kind": args.measure,
            "accuracy": result["metrics"]["accuracy"],
            "common": result["baselines"]["most common"]["accuracy"],
            "wall": time.perf_counter() - clock,
            "cpu": time.process_time() - processor,
            "memory": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
            "steps": run.config.train.steps or result.get("steps"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--shortest", type=int, default=200)
    parser.add_argument("--longest", type=int, default=500)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="show training")
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        tune_process()
        print(json.dumps(measure(args)))
        return
    print(
        f"{args.rows:,} rows of {args.shortest} to {args.longest} tokens, {args.epochs:g} epochs, {args.threads} threads"
    )
    found = []
    for kind in args.kinds:
        command = [sys.executable, *sys.argv, "--measure", kind]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    table(
        [
            [f["kind"], f["accuracy"], f["common"], f"{f['cpu']:.0f}", f"{f['cpu'] / found[0]['cpu']:.2f}", f["memory"]]
            for f in found
        ],
        ["attention", "accuracy", "most common", "CPU seconds", f"of {found[0]['kind']}", "MB more"],
    )


if __name__ == "__main__":
    main()
