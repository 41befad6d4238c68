"""How fast batches of ragged rows are fed, beside a plain torch DataLoader, in one run.

    python benchmarks/feeding.py

20,000 rows of 5 to 200 tokens in a memory-mapped store, batches of 64: order + gather + ``torch.from_numpy``. Prints
the best of the rounds, in batches a second of CPU time and of wall time, and the share of places that hold a token.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from mapsto.data.order import batches
from mapsto.data.store import Store, build
from race import race, table

ROWS, SHORTEST, LONGEST, BATCH, SEED = 20_000, 5, 200, 64, 0
Batch = tuple[torch.Tensor, torch.Tensor]


def ours(store: Store, epoch: int, tokens: int | None) -> Iterator[Batch]:
    lengths = store.columns["tokens"].lengths
    rows = None if tokens else BATCH
    for order in batches(lengths, tokens=tokens, rows=rows, seed=SEED, epoch=epoch):
        values, valid = store.take(order)["tokens"].pad()
        yield torch.from_numpy(values), torch.from_numpy(valid)


def collate(rows: list[torch.Tensor]) -> Batch:
    values = pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return values, torch.arange(values.shape[1]) < lengths[:, None]


def loader(rows: list[torch.Tensor]) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(SEED)
    yield from DataLoader(rows, batch_size=BATCH, shuffle=True, collate_fn=collate, generator=generator)  # type: ignore[arg-type]


def drain(feed: Callable[[int], Iterator[Batch]]) -> int:
    return sum(1 for _ in feed(0))


def main() -> None:
    parser = argparse.ArgumentParser(description="batches of ragged rows a second")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    generator = np.random.default_rng(SEED)
    lengths = generator.integers(SHORTEST, LONGEST + 1, ROWS)
    rows = [generator.integers(0, 8000, length).astype(np.int32) for length in lengths]
    tokens = BATCH * int(lengths.mean())
    with tempfile.TemporaryDirectory() as folder:
        store = build(Path(folder, "store"), ({"tokens": row} for row in rows))
        tensors = [torch.from_numpy(row) for row in rows]
        feeds: dict[str, Callable[[int], Iterator[Batch]]] = {
            f"mapsto, {BATCH} rows": lambda epoch: ours(store, epoch, None),
            f"mapsto, {tokens} tokens": lambda epoch: ours(store, epoch, tokens),
            "torch DataLoader, pad_sequence": lambda epoch: loader(tensors),
        }
        times = race({name: partial(drain, feed) for name, feed in feeds.items()}, rounds)
        lines = []
        for name, feed in feeds.items():
            count, places, real = 0, 0, 0
            for values, valid in feed(0):
                count, places, real = count + 1, places + values.numel(), real + int(valid.sum())
            assert real == int(lengths.sum()), "every token once"
            cpu, wall = count / times[name].cpu_minimum, count / times[name].minimum
            reach = "13,000, 95 %" if feed is not feeds["torch DataLoader, pad_sequence"] else None
            lines.append((name, f"{cpu:,.0f}", f"{wall:,.0f}", f"{real / places:.1%}", reach))
    print(f"{ROWS} rows of {SHORTEST} to {LONGEST} tokens, one thread")
    table(lines, ("", "batches/CPU s", "batches/s", "real tokens", "reach"))


if __name__ == "__main__":
    main()
