"""Training on rows of varying length: real tokens a second, beside padded random batches of a stock torch model.

    python benchmarks/batches.py

Asked: at least 4.5 times the stock model in float32, and 7.5 times in bfloat16 (on a CPU with bfloat16 instructions:
without them it is emulated and the library chooses float32; ``--bfloat16`` measures it there too, which takes long).

Model: 4 layers, 256 wide, 4 heads, feed-forward 1024, GELU, norm first, dropout 0.1, an embedding of 1,000 tokens; a
step is forward and backward. Rows: lognormal lengths (median 55, mean about 75, at most 512). Stock:
``nn.TransformerEncoder`` with a padding mask on random batches of 32 rows, in a process as installed. Ours: ``Encoder``
on token-budget batches of ``mapsto.data.order``, gathered from a ragged column, after ``tune_process``. The rows between
them change one thing at a time, so that the table says where the factor comes from.

Every candidate has a process of its own, and they take turns, a batch at a time, one thread each; others wait. A
candidate's speed is all tokens over the sum of its batches' median CPU times (and minima), over the rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.data.order import batches
from mapsto.nn.transformer import Encoder
from mapsto.process import tune_process
from mapsto.ragged import Ragged
from mapsto.stream import stream_numpy
from race import table

DIM, HEADS, HIDDEN, DEPTH, WORDS, ROWS = 256, 4, 1024, 4, 1000, 32


@dataclass(frozen=True)
class Candidate:
    """What one process does: a model, how its batches are made, and how the process is set."""

    model: str = "mapsto"
    tokens: int = 0  # the budget of a batch; 0 is random batches of 32 rows
    tuned: bool = False
    keep: bool = True
    groups: int = 0  # padded groups of a packed batch; 0 is not packed
    bfloat16: bool = False
    dropout: float = 0.1


def data(rows: int) -> Ragged:
    draw = stream_numpy(0, "benchmark")
    lengths = np.exp(4 + 0.8 * draw.normal(size=rows)).clip(8, 512).astype(int)
    return Ragged.pack([draw.integers(1, WORDS, length) for length in lengths])


def order(column: Ragged, candidate: Candidate) -> list[NDArray[np.int64]]:
    if candidate.tokens:
        return batches(column.lengths, tokens=candidate.tokens, seed=0, epoch=0)
    rows = stream_numpy(0, "order").permutation(len(column))
    return list(np.split(rows, range(ROWS, len(rows), ROWS)))


def stock(dropout: float) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    layer = nn.TransformerEncoderLayer(
        DIM, HEADS, HIDDEN, dropout=dropout, activation="gelu", batch_first=True, norm_first=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are off with norm_first
        encoder = nn.TransformerEncoder(layer, DEPTH, norm=nn.LayerNorm(DIM))
    embedding = nn.Embedding(WORDS, DIM)

    def loss(ids: Tensor, valid: Tensor) -> Tensor:
        items = encoder(embedding(ids), src_key_padding_mask=~valid)
        return items[valid].sum() / valid.sum()

    return nn.ModuleList([embedding, encoder]), loss


def ours(dropout: float, groups: int) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    encoder = Encoder(DIM, DEPTH, HEADS, hidden=HIDDEN, dropout=dropout)
    embedding = nn.Embedding(WORDS, DIM)

    def loss(ids: Tensor, valid: Tensor) -> Tensor:
        if groups:
            items = encoder(Collection.build(embedding(ids), valid).pack(groups)).items
            return items.sum() / len(items)
        x = encoder(Collection.build(embedding(ids), valid))
        return x.items[valid].sum() / valid.sum()

    return nn.ModuleList([embedding, encoder]), loss


def worker(candidate: Candidate, rows: int) -> None:
    """Answer every line of input, the number of a batch, with the CPU seconds of a step on it."""
    torch.set_num_threads(1)
    setting = tune_process(candidate.keep) if candidate.tuned else {}
    column = data(rows)
    parts = order(column, candidate)
    torch.manual_seed(0)
    model, loss = stock(candidate.dropout) if candidate.model == "stock" else ours(candidate.dropout, candidate.groups)
    model.train()

    def step(part: NDArray[np.int64]) -> float:
        start = time.process_time()
        values, valid = column.take(part).pad()
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=candidate.bfloat16):
            found = loss(torch.from_numpy(values), torch.from_numpy(valid))
        found.backward()
        return time.process_time() - start

    places = sum(len(part) * int(column.lengths[part].max()) for part in parts)
    print(json.dumps({"batches": len(parts), "places": places, "setting": setting}), flush=True)
    for line in sys.stdin:
        print(step(parts[int(line)]), flush=True)


def native() -> bool:
    """Whether this CPU has bfloat16 instructions."""
    return any(name.endswith("bf16") and value is True for name, value in torch.cpu.get_capabilities().items())


def candidates(tokens: int, bfloat16: bool) -> dict[str, Candidate]:
    padded, full = Candidate("stock"), Candidate(tokens=tokens, tuned=True)
    return {
        "stock, random batches": padded,
        "stock, token budget": replace(padded, tokens=tokens),
        "stock, token budget, tuned": replace(padded, tokens=tokens, tuned=True),
        "ours, not tuned": replace(full, tuned=False),
        "ours, tuned, memory not kept": replace(full, keep=False),
        "ours": full,
        "ours, twice the budget": replace(full, tokens=2 * tokens),
        "ours, packed in 2 groups": replace(full, groups=2),
        "ours, random batches packed in 8": replace(full, tokens=0, groups=8),
        **({"ours, bfloat16": replace(full, bfloat16=True)} if bfloat16 else {}),
        "stock, random batches, dropout 0": replace(padded, dropout=0.0),
        "ours, dropout 0": replace(full, dropout=0.0),
        "ours, packed in 2 groups, dropout 0": replace(full, dropout=0.0, groups=2),
    }


class Process:
    """A candidate in its own process."""

    def __init__(self, candidate: Candidate, rows: int):
        command = [sys.executable, *sys.argv[:1], "--worker", json.dumps(asdict(candidate)), "--rows", str(rows)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.about = json.loads(self.process.stdout.readline())
        self.times: list[list[float]] = [[] for _ in range(self.about["batches"])]

    def step(self, number: int) -> float:
        """The CPU seconds of a step on one batch."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(number, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(processes: dict[str, Process], rounds: int, budget: float) -> int:
    """Rounds of all batches until ``budget`` seconds are over, one at least; gives how many."""
    start = time.perf_counter()
    longest = max(process.about["batches"] for process in processes.values())
    for process in processes.values():
        process.step(0)
    for done in range(rounds):
        if done and time.perf_counter() - start > budget:
            return done
        for i in range(longest):
            for process in processes.values():
                count = process.about["batches"]
                for number in range(i * count // longest, (i + 1) * count // longest):
                    process.times[number].append(process.step(number))
    return rounds


def report(processes: dict[str, Process], total: int) -> None:
    lines = []
    middle = {n: total / sum(map(statistics.median, p.times)) for n, p in processes.items()}
    best = {n: total / sum(map(min, p.times)) for n, p in processes.items()}
    asked = {"ours": ">= 4.5", "ours, bfloat16": ">= 7.5"}
    base = "stock, random batches"
    for name, process in processes.items():
        against = f"{base}, dropout 0" if "dropout 0" in name and f"{base}, dropout 0" in processes else base
        lines.append(
            [
                name,
                f"{total / process.about['places']:.0%}",
                f"{middle[name]:,.0f}",
                f"{best[name]:,.0f}",
                f"{middle[name] / middle[against]:.2f}" if against in processes else None,
                f"{best[name] / best[against]:.2f}" if against in processes else None,
                asked.get(name),
            ]
        )
    table(lines, ["", "real places", "tokens/CPU s: median", "best", "times stock: median", "best", "asked"])
    steps = [
        ("padding saved", "stock, random batches", "stock, token budget"),
        ("attention and dropout", "stock, token budget", "ours, not tuned"),
        ("products by oneDNN, if chosen", "ours, not tuned", "ours, tuned, memory not kept"),
        ("memory kept", "ours, tuned, memory not kept", "ours"),
    ]
    known = [step for step in steps if {step[1], step[2]} <= set(middle)]
    found = [[name, f"{middle[b] / middle[a]:.2f}", f"{best[b] / best[a]:.2f}"] for name, a, b in known]
    print()
    table(found, ["where the factor comes from", "median", "best"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds after which no round begins")
    parser.add_argument("--tokens", type=int, default=2400, help="places of a batch of ours")
    parser.add_argument("--bfloat16", action="store_true", help="even if this CPU emulates it")
    parser.add_argument("--only", nargs="*", default=[], help="names of candidates; all by default")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(Candidate(**json.loads(args.worker)), args.rows)
        return
    chosen = {
        n: c for n, c in candidates(args.tokens, args.bfloat16 or native()).items() if not args.only or n in args.only
    }
    processes = {name: Process(candidate, args.rows) for name, candidate in chosen.items()}
    try:
        rounds = measure(processes, args.rounds, args.budget)
    finally:
        for process in processes.values():
            process.close()
    total = int(data(args.rows).lengths.sum())
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"torch {torch.__version__}, {capability}, one thread; {args.rows} rows, {total} tokens, {rounds} rounds")
    setting = next((p.about["setting"] for p in processes.values() if p.about["setting"]), {})
    print(f"tuned: {json.dumps(setting)}")
    report(processes, total)


if __name__ == "__main__":
    main()
