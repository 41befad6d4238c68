"""Exact attention against torch's own, and against the limit of this machine, one beside the other.

    python benchmarks/attention.py --threads 1 --lengths 2048 4096

The limit is the matrix products and the exponentials alone, in blocks: two products and one exponential forward; five
and one more backward (as for any method that does not keep L × M weights). Everything is timed twice, in a process as
installed and in one set up by ``mapsto.process.tune_process``; within a process all candidates take turns.
``tiles`` is our own blocked form even where ``attend`` would not choose it.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mapsto.functional.attention import attend
from mapsto.functional.block import Visible, blockwise
from mapsto.process import tune_process
from mapsto.stream import stream
from race import Time, race, table

ASKED = {
    ("float32", "forward"): 0.55,
    ("bfloat16", "forward"): 0.38,
    ("float32", "both"): 0.60,
    ("bfloat16", "both"): 0.50,
}
ASKED_OF_LIMIT = 1.1


def draw(seed: int, batch: int, heads: int, length: int, width: int, kind: torch.dtype, learn: bool) -> Tensor:
    # As a projection gives them: a place's heads beside each other.
    x = torch.randn(batch, length, heads, width, generator=stream(seed, "benchmark"))
    return x.to(kind).transpose(1, 2).requires_grad_(learn)


def caller(f: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], None]:
    upstream = torch.ones_like(inputs[0].transpose(1, 2)).transpose(1, 2)

    def forward() -> None:
        with torch.no_grad():
            f(*inputs)

    def both() -> None:
        for x in inputs:
            x.grad = None
        f(*inputs).backward(upstream)

    return both if inputs[0].requires_grad else forward


def limit(length: int, learn: bool, heads: int = 8, width: int = 64, block: int = 128) -> Callable[[], None]:
    """Products and exponentials; nothing is masked, normalised or summed."""
    q, k, v = (torch.randn(heads, length, width, generator=stream(s, "benchmark")) for s in range(3))
    keys, values = k.mT.contiguous(), v.mT.contiguous()
    gk, gv = torch.zeros_like(k), torch.zeros_like(v)
    s, t = torch.empty(heads, block, length), torch.empty(heads, block, length)

    @torch.no_grad()
    def run() -> None:
        for i in range(0, length, block):
            torch.bmm(torch.bmm(q[:, i : i + block], keys, out=s).exp2_(), v)
        for i in range(0, length if learn else 0, block):
            rows = q[:, i : i + block]
            torch.bmm(rows, keys, out=s).exp2_()
            torch.bmm(rows, values, out=t)
            torch.bmm(t, k)
            gk.baddbmm_(t.mT, rows)
            gv.baddbmm_(s.mT, rows)

    return run


def long(length: int, kind: str, learn: bool) -> dict[str, Callable[[], None]]:
    inputs = [draw(s, 1, 8, length, 64, getattr(torch, kind), learn) for s in range(3)]
    candidates = {
        "attend": caller(attend, inputs),
        "torch": caller(F.scaled_dot_product_attention, inputs),
        "limit": limit(length, learn),
    }
    if kind == "float32":
        candidates["tiles"] = caller(partial(blockwise, visible=Visible(inputs[0].device), beta=1 / 8), inputs)
    return candidates


def short(length: int, width: int, learn: bool) -> dict[str, Callable[[], None]]:
    inputs = [draw(s, 64, 4, length, width, torch.float32, learn) for s in range(3)]
    lengths = torch.randint(length // 2, length + 1, (64, 1), generator=stream(3, "benchmark"))
    valid = torch.arange(length) < lengths
    beta = width**-0.5
    return {
        "attend": caller(partial(attend, valid=valid), inputs),
        "torch": caller(partial(F.scaled_dot_product_attention, attn_mask=valid[:, None, None]), inputs),
        "tiles": caller(partial(blockwise, visible=Visible(inputs[0].device, valid), beta=beta), inputs),
    }


def jobs(args: argparse.Namespace) -> Iterator[tuple[str, str, str, Callable[[], dict[str, Callable[[], None]]]]]:
    for learn in (False, True):
        way = "both" if learn else "forward"
        for length in args.lengths:
            for kind in args.kinds:
                yield f"{length} {kind} {way}", kind, way, partial(long, length, kind, learn)
        for length, width in ((20, 16), (60, 16), (60, 64)):
            yield f"64 masked rows of {length}, {width} wide, {way}", "", way, partial(short, length, width, learn)


def measure(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    setting = tune_process() if args.tuned else {}
    print(json.dumps({"setting": setting}))
    for what, kind, way, make in jobs(args):
        times = race(make(), args.rounds, args.budget)
        print(
            json.dumps({"what": what, "kind": kind, "way": way, "times": {n: vars(t) for n, t in times.items()}}),
            flush=True,
        )


def report(lines: list[dict]) -> None:
    rows = []
    for line in lines:
        times = {name: Time(**t) for name, t in line["times"].items()}
        mine = times["attend"]
        small, median = mine.over(times["torch"])
        rows.append(
            [
                line["what"],
                *(f"{1e3 * times[n].minimum:.2f}" if n in times else "" for n in ("attend", "tiles", "torch", "limit")),
                f"{small:.2f}",
                f"{median:.2f}",
                ASKED.get((line["kind"], line["way"])),
                f"{mine.over(times['limit'])[0]:.2f}" if "limit" in times else "",
                ASKED_OF_LIMIT if "limit" in times and line["way"] == "forward" else None,
            ]
        )
    header = ["B=1 H=8 K=64 unless said", "attend ms", "tiles ms", "torch ms", "limit ms"]
    table(rows, [*header, "of torch: min", "median", "asked", "of limit", "asked"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048, 4096])
    parser.add_argument("--kinds", nargs="*", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds a row")
    parser.add_argument("--tuned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        measure(args)
        return
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"torch {torch.__version__}, {capability}, {args.threads} threads, {os.cpu_count()} cores")
    for tuned in (False, True):
        command = [sys.executable, *sys.argv, "--worker", *(["--tuned"] if tuned else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        first, *lines = map(json.loads, done.stdout.splitlines())
        print(f"\nprocess {'tuned: ' + json.dumps(first['setting']) if tuned else 'as installed'}")
        report(lines)


if __name__ == "__main__":
    main()
