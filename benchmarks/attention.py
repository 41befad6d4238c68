"""Every kind of attention against its peers, torch's own, and the limit of this machine, one beside the other.

    python benchmarks/attention.py --threads 1 --lengths 2048 4096
    python benchmarks/attention.py --lengths 256 1024 4096 16384 --exact 8192 --peak 4096 16384
    python benchmarks/attention.py --device cuda --lengths 4096 16384 65536 --compile

First exact attention: ``attend`` and ``tiles`` (our own blocked form even where ``attend`` would not choose it) against
torch, at large and at short lengths. Then every kind, both ways and causal: favor against performer-pytorch and
fast-transformers' C++ with the same 256 features, window:256 against local-attention, memory against fast-transformers;
``values`` is attention that returns its values, the "X (OPT)" of the Performer paper. What is not installed is skipped,
with the reason.

The limit is the matrix products and the exponentials alone, in blocks: two products and one exponential forward; five
and one more backward (as for any method that does not keep L × M weights). That of favor has four products and two
exponentials, eight more backward, and causally those within chunks of 64. Everything is timed twice, in a process as
installed and in one set up by ``mapsto.process.tune_process``; within a process all candidates take turns.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from candidate import KINDS, Setting, caller, draw, exact_limit, inputs, limits, usable
from mapsto import kinds
from mapsto.functional.attention import attend
from mapsto.functional.block import Visible, blockwise
from mapsto.process import tune_process
from mapsto.stream import stream
from peak import peak_apart
from peer import PEERS
from race import race
from ratio import report_exact, report_kinds, report_peaks

Calls = dict[str, Callable[[], None]]


def long(length: int, kind: str, learn: bool) -> Calls:
    given = inputs(Setting(length, kind, learn=learn))
    candidates = {
        "attend": caller(attend, given),
        "torch": caller(F.scaled_dot_product_attention, given),
        "limit": exact_limit(length, learn),
    }
    if kind == "float32":
        candidates["tiles"] = caller(partial(blockwise, visible=Visible(given[0].device), beta=1 / 8), given)
    return candidates


def short(length: int, width: int, learn: bool) -> Calls:
    inputs = [draw(s, 64, 4, length, width, torch.float32, learn) for s in range(3)]
    lengths = torch.randint(length // 2, length + 1, (64, 1), generator=stream(3, "benchmark"))
    valid = torch.arange(length) < lengths
    beta = width**-0.5
    return {
        "attend": caller(partial(attend, valid=valid), inputs),
        "torch": caller(partial(F.scaled_dot_product_attention, attn_mask=valid[:, None, None]), inputs),
        "tiles": caller(partial(blockwise, visible=Visible(inputs[0].device, valid), beta=beta), inputs),
    }


def settings(args: argparse.Namespace) -> Iterator[Setting]:
    for causal, learn, length, kind in itertools.product((False, True), (False, True), args.lengths, args.kinds):
        yield Setting(length, kind, causal, learn, args.device)


def ours(args: argparse.Namespace) -> list[str]:
    there = [name for name in args.attention if name in kinds.names("attention")]
    return there + ([f"{name} compiled" for name in there if name != "softmax"] if args.compile else [])


def jobs(args: argparse.Namespace) -> Iterator[tuple[dict, Calls]]:
    """What the line is about, and what takes turns."""
    if "exact" in args.tables and args.device == "cpu":
        for learn in (False, True):
            way = "both" if learn else "forward"
            for length in args.lengths:
                if length > args.exact:
                    continue
                for kind in args.kinds:
                    about = {"table": "exact", "what": f"{length} {kind} {way}", "kind": kind, "way": way}
                    yield about, long(length, kind, learn)
            for length, width in ((20, 16), (60, 16), (60, 64)):
                what = f"64 masked rows of {length}, {width} wide, {way}"
                yield {"table": "exact", "what": what, "kind": "", "way": way}, short(length, width, learn)
    for setting in settings(args) if "kinds" in args.tables else ():
        found, reasons = usable([*ours(args), *args.peers, "values"], setting, args.exact)
        about = {"table": "kinds", "setting": vars(setting), "missing": reasons}
        yield about, found | (limits(setting) if setting.kind == "float32" else {})


def measure(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    print(json.dumps({"setting": tune_process() if args.tuned else {}}))
    for about, calls in jobs(args):
        times = race(calls, args.rounds, args.budget)
        print(json.dumps({**about, "times": {n: vars(t.by(args.clock)) for n, t in times.items()}}), flush=True)


def run(command: list[str]) -> list[dict]:
    """What a worker prints; a worker that ends early, by a lack of memory say, leaves what it has measured."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.append(json.loads(line))
    if worker.returncode:
        print(f"the process ended with {worker.returncode} after {len(lines) - 1} rows; these are the rows")
    return lines or [{"setting": {}}]


def peaks(args: argparse.Namespace) -> None:
    lines = []
    for causal, learn, length in itertools.product((False, True), (False, True), args.peak):
        setting = Setting(length, args.kinds[0], causal, learn, args.device)
        names = [n for n in (*ours(args), *args.peers, "values") if setting.takes(n, args.exact)]
        lines.append((setting, {name: peak_apart(name, setting) for name in names}))
    report_peaks(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048, 4096])
    parser.add_argument("--kinds", nargs="*", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds a row")
    parser.add_argument("--tables", nargs="*", default=["exact", "kinds"], choices=["exact", "kinds"])
    parser.add_argument("--attention", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--exact", type=int, default=8192, help="the longest row that exact attention is timed on")
    parser.add_argument("--peak", type=int, nargs="*", default=[], help="lengths to measure the peak memory at")
    parser.add_argument("--process", nargs="*", default=["installed", "tuned"], choices=["installed", "tuned"])
    parser.add_argument("--clock", choices=["wall", "cpu"], help="cpu by default for one thread on a CPU")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--compile", action="store_true", help="our kinds under torch.compile too")
    parser.add_argument("--tuned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here")
    args.clock = args.clock or ("cpu" if args.threads == 1 and args.device == "cpu" else "wall")
    if args.worker:
        measure(args)
        return
    if args.device == "cuda":
        args.process = ["installed"]
        print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    else:
        capability = torch.backends.cpu.get_cpu_capability()
        print(
            f"torch {torch.__version__}, {capability}, {args.threads} threads, {os.cpu_count()} cores, {args.clock} time"
        )
    for process in args.process:
        command = [sys.executable, *sys.argv, "--worker", *(["--tuned"] if process == "tuned" else [])]
        first, *lines = run(command)
        print(f"\nprocess {'tuned: ' + json.dumps(first['setting']) if process == 'tuned' else 'as installed'}")
        report_exact([line for line in lines if line["table"] == "exact"])
        report_kinds([line for line in lines if line["table"] == "kinds"])
    if args.peak:
        peaks(args)


if __name__ == "__main__":
    main()
