"""What the training loop costs a step, beside a bare tensor loop over the same model, in one run.

    python benchmarks/loop.py

Asked: at most 60 µs a step more than the bare loop, on a small model. (Other trainers over a bare loop, each with a
DataLoader, on another machine: Accelerate 360 µs, Lightning 745, pythae 1933.)

Bare: batches that are tensors in memory already; ``zero_grad``, forward, backward, ``AdamW(fused=True).step()``, and
nothing else. Ours: ``Trainer`` with a ``StoreFeed`` and a silent watcher: the order of the epoch, gathering from a
ragged store, sums over the step, clipping, the schedule, averaged weights, the check for bad batches, progress. Beside
it: ours without clipping and averaging, ours on the bare loop's tensors (nothing is gathered), and the bare loop with
our optimiser on one vector of all weights, which is where what the rest costs is won back.

Models: a ``Mapper`` (a list of 20 numbers to a label, dim 16, depth 1) and a perceptron (20-64-4), 32 rows a batch, one
thread. A round is one epoch of 200 steps of every candidate in turn. What the loop costs is the median over the rounds
of the difference within a round, of CPU time and of wall time, and the difference of the minima.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.data.store import Store
from mapsto.inputs.vector import VectorInput
from mapsto.models.mapper import Mapper
from mapsto.nn.initial import initialise
from mapsto.nn.loss import Loss
from mapsto.nn.pool import MeanPool
from mapsto.nn.transformer import Encoder
from mapsto.outputs.vector import VectorOutput
from mapsto.ragged import Ragged, Rows
from mapsto.stream import stream_numpy
from mapsto.tasks.feed import StoreFeed
from mapsto.training.adamw import AdamW
from mapsto.training.flat import Flat
from mapsto.training.loop import Plan, Trainer
from race import table

WIDTH, CLASSES, BATCH, STEPS, ASKED = 20, 4, 32, 200, 60.0


class Silent:
    """A watcher that looks away."""

    def stepped(self, step: int, loss: float) -> None:
        """Nothing."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def skipped(self, step: int, rows: list[int]) -> None:
        """Nothing."""

    def positions(self) -> dict[str, int]:
        """No files."""
        return {}


class Column:
    """A fixed-size column as it is."""

    def __init__(self, name: str):
        self.name = name

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray[np.int64]:
        """One item a row."""
        return np.ones(len(columns[self.name]), np.int64)

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """(B, n)."""
        return {self.name: torch.from_numpy(columns[self.name].dense())}


class Perceptron(nn.Module):
    """Two layers, and the loss the loop asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.sources, self.output = {"row": Column("numbers")}, Column("class")
        self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def loss(self, batch: Mapping[str, Mapping[str, Tensor]]) -> Loss:
        """Cross-entropy a row."""
        target = batch["target"]["class"][:, 0]
        nll = F.cross_entropy(self.net(batch["row"]["numbers"]), target, reduction="none")
        return Loss({"class": nll}, {}, torch.ones_like(nll))


class Ready:
    """A feed of tensors in memory."""

    def __init__(self, batches: Sequence[Any]):
        self.batches = batches
        self.places = [np.array([i]) for i in range(len(batches))]

    def order(self, epoch: int) -> list[NDArray[np.int64]]:
        """As they are."""
        return self.places

    def batch(self, rows: NDArray[np.int64]) -> Any:
        """The one of that number."""
        return self.batches[rows[0]]


def perceptron() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Perceptron()


def mapper() -> nn.Module:
    columns = [{"name": "numbers", "kind": "number", "mean": [0.0] * WIDTH, "scale": [1.0] * WIDTH}]
    targets = {"class": {"kind": "label", "classes": [str(c) for c in range(CLASSES)]}}
    with torch.random.fork_rng(devices=[]):
        model = Mapper(
            {"row": VectorInput(16, columns=columns)}, Encoder(16, 1, 2), MeanPool(), VectorOutput(16, targets=targets)
        )
    initialise(model, 0)
    return model


def store() -> Store:
    rows = BATCH * STEPS
    draw = stream_numpy(0, "benchmark")
    numbers = draw.normal(size=(rows, WIDTH)).astype(np.float32)
    classes = (numbers[:, :2] > 0) @ np.array([1, 2])

    def fixed(values: NDArray, width: int) -> Ragged:
        return Ragged(values, np.arange(rows + 1, dtype=np.int64) * width)

    return Store.of(
        {
            "0.numbers": fixed(numbers.reshape(-1), WIDTH),
            "0.labels": fixed(np.zeros(0, np.int32), 0),
            "t.class": fixed(classes.astype(np.int64), 1),
        }
    )


def bare(model: Any, loss: Callable[[Any, Any], Tensor], batches: Sequence[Any]) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=True)
    model.train()

    def epoch() -> None:
        for batch in batches:
            optimiser.zero_grad()
            loss(model, batch).backward()
            optimiser.step()

    return epoch


def lean(model: Any, loss: Callable[[Any, Any], Tensor], batches: Sequence[Any]) -> Callable[[], None]:
    flat = Flat(model)
    optimiser = AdamW(flat.weights, flat.split)
    model.train()

    def epoch() -> None:
        for batch in batches:
            loss(model, batch).backward()
            optimiser.step(flat.gradient(), 1e-3)

    return epoch


def ours(model: Any, feed: Any, **settings: float) -> Callable[[], None]:
    plan = Plan(steps=1_000_000, lr=1e-3, warmup=10, **settings)  # type: ignore[arg-type]
    trainer = Trainer(model, plan, feed, None, Silent())

    def epoch() -> None:
        trainer.run(until=trainer.progress.step + STEPS)

    return epoch


def feed_of(model: Any) -> StoreFeed:
    data = store()
    return StoreFeed(data, np.arange(BATCH * STEPS), model, tokens=BATCH, batch_rows=BATCH)


def candidates(make: Callable[[], Any], loss: Callable[[Any, Any], Tensor]) -> dict[str, Callable[[], None]]:
    feed = feed_of(make())
    batches = [feed.batch(rows) for rows in feed.order(0)]
    assert len(batches) == STEPS, "the epochs of all candidates are equally long"
    whole = make()
    return {
        "bare": bare(make(), loss, batches),
        "bare, our AdamW": lean(make(), loss, batches),
        "ours": ours(whole, feed_of(whole)),
        "ours, clip=0, average=0": ours(less := make(), feed_of(less), clip=0, average=0),
        "ours, nothing gathered": ours(make(), Ready(batches)),
    }


def rounds_of(epochs: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Microseconds a step of every candidate in every round: CPU time and wall time."""
    for epoch in epochs.values():
        epoch()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in epochs}
    for _ in range(rounds):
        for name, epoch in epochs.items():
            start, start_cpu = time.perf_counter(), time.process_time()
            epoch()
            end, end_cpu = time.perf_counter(), time.process_time()
            times[name].append((1e6 * (end_cpu - start_cpu) / STEPS, 1e6 * (end - start) / STEPS))
    return times


def mapper_loss(model: Mapper, batch: Any) -> Tensor:
    return model.loss(batch).per_example().mean()


def perceptron_loss(model: Perceptron, batch: Any) -> Tensor:
    return F.cross_entropy(model.net(batch["row"]["numbers"]), batch["target"]["class"][:, 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    models: dict[str, Callable[[], dict[str, Callable[[], None]]]] = {
        "mapper": partial(candidates, mapper, mapper_loss),
        "perceptron": partial(candidates, perceptron, perceptron_loss),
    }
    lines: list[list[str | None]] = []
    for name, make in models.items():
        times = rounds_of(make(), args.rounds)
        for what, taken in times.items():
            line: list[str | None] = [f"{name}: {what}"]
            for clock in (0, 1):
                mine, base = ([both[clock] for both in found] for found in (taken, times["bare"]))
                line += [f"{statistics.median(mine):.0f}", f"{min(mine):.0f}"]
                more = statistics.median(a - b for a, b in zip(mine, base, strict=True)), min(mine) - min(base)
                line += [None, None] if what == "bare" else [f"{x:+.0f}" for x in more]
            lines.append([*line, f"<= {ASKED:.0f}" if what.startswith("ours") else None])
    print(f"torch {torch.__version__}, one thread, {BATCH} rows a batch, {args.rounds} rounds of {STEPS} steps")
    of = ("median", "minimum", "more: median", "of minima")
    table(lines, ["µs a step", *(f"CPU {o}" for o in of), *(f"wall {o}" for o in of), "asked"])


if __name__ == "__main__":
    main()
