"""The training loop: exact sums, a schedule of the step alone, averaged weights, early stopping, checkpoints."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mapsto.errors import NonFiniteError
from mapsto.models.mapper import Batch, Mapper
from mapsto.nn.dropout import set_clock
from mapsto.stream import Clock
from mapsto.training.adamw import AdamW
from mapsto.training.checkpoint import Checkpoints
from mapsto.training.flat import Flat
from mapsto.training.schedule import average_decay, learning_rate

__all__ = ["Feed", "Plan", "Progress", "Trainer", "Watcher", "batch_loss"]

BAD_BATCHES = 3


class Feed(Protocol):
    """Where batches come from: an order that is a pure function of the epoch, and the batches themselves."""

    def order(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """The rows of every micro-batch of an epoch."""

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """One micro-batch, on the model's device."""


class Watcher(Protocol):
    """Who is told how training goes."""

    def stepped(self, step: int, loss: float) -> None:
        """After every step: its number, counted from 1, and its loss per target."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """After every evaluation: a line of ``metrics.jsonl``."""

    def skipped(self, step: int, rows: list[int]) -> None:
        """A batch whose loss or gradient was not finite changed nothing."""

    def positions(self) -> dict[str, int]:
        """Bytes written so far to each append-only file, for resume to cut them back to."""


@dataclass(frozen=True)
class Plan:
    """How to train; all numbers are fixed before the first step.

    Attributes:
        steps: optimiser steps in all.
        lr: the peak of the learning rate.
        warmup: steps of linear warm-up.
        weight_decay: of AdamW, on matrices only.
        clip: largest norm of the gradient; 0 is no limit.
        average: decay of the averaged weights; 0 keeps none.
        accumulate: micro-batches a step.
        evaluate_every: steps between evaluations.
        save_every: steps between checkpoints besides those at evaluations; 0 is none.
        patience: evaluations without a better validation loss before training ends early; 0 never ends it.
        seed: of the noise in training.
        bfloat16: compute in bfloat16 where that is safe (autocast); weights and sums stay in float32.
    """

    steps: int
    lr: float
    warmup: int
    weight_decay: float = 0.01
    clip: float = 1.0
    average: float = 0.99
    accumulate: int = 1
    evaluate_every: int = 100
    save_every: int = 0
    patience: int = 0
    seed: int = 0
    bfloat16: bool = False


@dataclass
class Progress:
    """Where a run is: all of a checkpoint's state that is not a tensor.

    Attributes:
        step: optimiser steps done.
        epoch: the epoch of the next micro-batch.
        index: the next micro-batch within its epoch.
        best: the lowest validation loss so far.
        best_step: the step it was reached at.
        waited: evaluations since then.
        bad: steps in a row that were skipped.
        loss: sum of the losses since the last evaluation.
        count: sum of the counts since the last evaluation.
    """

    step: int = 0
    epoch: int = 0
    index: int = 0
    best: float | None = None
    best_step: int = 0
    waited: int = 0
    bad: int = 0
    loss: float = 0.0
    count: float = 0.0


def batch_loss(model: Mapper, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ_b Σ_t w_t term_t[b], to minimise, and Σ_b count[b], to divide by."""
    loss = model.loss(batch)
    return loss.per_example().sum(), loss.count.sum()


class Trainer:
    """Trains one model by a plan.

    Minimises Σ_b Σ_t w_t term_t[b] / Σ_b count[b] with both sums over the whole step, so the gradient does not depend
    on how a step is cut into micro-batches.

    Args:
        model: changed in place; its parameters become views of one vector.
        plan: how.
        feed: the training batches.
        validate: gives {"loss": ..., further metrics} of the model as it stands (with averaged weights in it).
        watcher: who is told.
        checkpoints: where to save; None keeps the best weights in memory only.
    """

    def __init__(
        self,
        model: Mapper,
        plan: Plan,
        feed: Feed,
        validate: Callable[[], dict[str, float]] | None,
        watcher: Watcher,
        checkpoints: Checkpoints | None = None,
    ):
        self.model, self.plan, self.feed, self.validate, self.watcher = model, plan, feed, validate, watcher
        self.checkpoints = checkpoints
        self.progress = Progress()
        self.clock = Clock(plan.seed)
        set_clock(model, self.clock)
        self.flat = Flat(model)
        weights = self.flat.weights
        self.average = weights.clone() if plan.average else None
        self.best_weights: torch.Tensor | None = None
        self.optimiser = AdamW(weights, self.flat.split, decay=plan.weight_decay)
        self.stopping = False
        self.device = weights.device.type

    def run(self, *, until: int | None = None) -> Progress:
        """Train to the end of the plan, to the end of patience, or until :meth:`stop` is called."""
        progress, plan = self.progress, self.plan
        last = plan.steps if until is None else min(until, plan.steps)
        started, at = time.perf_counter(), progress.step
        groups = self._groups()
        while progress.step < last and not self.stopping:
            loss = self.step(next(groups))
            self.watcher.stepped(progress.step, loss)
            ended = progress.step == plan.steps
            if self.validate is not None and (ended or progress.step % plan.evaluate_every == 0):
                seconds = time.perf_counter() - started
                self._evaluate(
                    {"seconds": round(seconds, 3), "steps_per_second": round((progress.step - at) / seconds, 2)}
                )
                started, at = time.perf_counter(), progress.step
                if plan.patience and progress.waited >= plan.patience:
                    break
            elif plan.save_every and progress.step % plan.save_every == 0:
                self.save()
        return progress

    def stop(self) -> None:
        """End after the step that is running."""
        self.stopping = True

    def step(self, group: Sequence[NDArray[np.int64]]) -> float:
        """One optimiser step over some micro-batches; gives its loss per target."""
        progress, plan, clock = self.progress, self.plan, self.clock
        if not self.model.training:  # it visits every module: 20 to 80 µs
            self.model.train()
        clock.step = progress.step
        sums = []
        for part, rows in enumerate(group):
            clock.part = part
            batch = self.feed.batch(rows)
            if plan.bfloat16:
                with torch.autocast(self.device, torch.bfloat16):
                    loss, weight = batch_loss(self.model, batch)
            else:
                loss, weight = batch_loss(self.model, batch)
            loss.backward()
            sums.append((loss.detach(), weight))
        gradient = self.flat.gradient()
        norm = torch.linalg.vector_norm(gradient)
        # Read only now, when all of the step up to here is queued: a device computes on meanwhile.
        total, count = sum(loss.item() for loss, _ in sums), sum(weight.item() for _, weight in sums)
        if count == 0:  # nothing to learn from: a step that changes nothing
            progress.step += 1
            return 0.0
        length = norm.item() / count
        if not (math.isfinite(length) and math.isfinite(total)):
            return self._skip(group)
        progress.bad = 0
        gradient.mul_(min(1.0, plan.clip / (length + 1e-12)) / count if plan.clip else 1 / count)
        self._apply(gradient)
        progress.step += 1
        progress.loss += total
        progress.count += count
        return total / count

    def _apply(self, gradient: torch.Tensor) -> None:
        plan, step = self.plan, self.progress.step
        self.optimiser.step(gradient, learning_rate(step, peak=plan.lr, warmup=plan.warmup, steps=plan.steps))
        if self.average is not None:
            self.average.lerp_(self.flat.weights, 1 - average_decay(step, plan.average))

    def _skip(self, group: Sequence[NDArray[np.int64]]) -> float:
        progress = self.progress
        progress.bad += 1
        progress.step += 1
        rows = [int(r) for part in group for r in part]
        self.watcher.skipped(progress.step, rows)
        if progress.bad >= BAD_BATCHES:
            raise NonFiniteError(
                f"the loss or its gradient was not finite in {BAD_BATCHES} steps in a row, last at step {progress.step}.   "
                "Lower train.lr, or look for extreme values with mapsto check"
            )
        return math.nan

    def _groups(self) -> Iterator[Sequence[NDArray[np.int64]]]:
        """Micro-batches of every step from where the run is, epoch after epoch."""
        progress, size = self.progress, self.plan.accumulate
        while True:
            order = self.feed.order(progress.epoch)
            while progress.index < len(order):
                group = order[progress.index : progress.index + size]
                progress.index += len(group)
                if progress.index >= len(order):
                    progress.epoch, progress.index = progress.epoch + 1, 0
                    yield group
                    break
                yield group

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The model with its averaged weights, in eval mode, for a while."""
        kept = self.flat.weights.clone()
        if self.average is not None:
            self.flat.weights.copy_(self.average)
        self.model.eval()
        try:
            yield self.model
        finally:
            self.flat.weights.copy_(kept)
            self.model.train()

    def _evaluate(self, record: dict[str, Any]) -> None:
        progress = self.progress
        assert self.validate is not None
        with self.averaged():
            found = self.validate()
            better = math.isfinite(found["loss"]) and (progress.best is None or found["loss"] < progress.best)
            if better:
                progress.best, progress.best_step, progress.waited = found["loss"], progress.step, 0
                self.best_weights = self.flat.weights.clone()
            else:
                progress.waited += 1
        epoch = progress.epoch if progress.index == 0 else progress.epoch + 1
        lr = learning_rate(progress.step - 1, peak=self.plan.lr, warmup=self.plan.warmup, steps=self.plan.steps)
        shown = {"step": progress.step, "epoch": epoch, "loss": progress.loss / max(progress.count, 1.0), "lr": lr}
        validation = {f"val_{name}": value for name, value in found.items()}
        progress.loss = progress.count = 0.0
        self.watcher.evaluated({**shown, **validation, "best": better, **record})
        self.save()

    def finish(self) -> None:
        """Leave the best weights in the model: those of the best evaluation, or the averaged, or the last."""
        best = self.best_weights if self.best_weights is not None else self.average
        if best is not None:
            self.flat.weights.copy_(best)
        self.model.eval()

    def save(self) -> None:
        """Write a checkpoint of all that the run is."""
        if self.checkpoints is None:
            return
        weights = {f"weights.{n}": v for n, v in self.flat.views(self.flat.weights).items()}
        if self.average is not None:
            weights |= {f"average.{n}": v for n, v in self.flat.views(self.average).items()}
        if self.best_weights is not None:
            weights |= {f"best.{n}": v for n, v in self.flat.views(self.best_weights).items()}
        optimiser, optim = self.optimiser, dict[str, torch.Tensor]()
        for name, vector in (("exp_avg", optimiser.mean), ("exp_avg_sq", optimiser.square)):
            optim |= {f"{name}.{n}": v for n, v in self.flat.views(vector).items()}
        optim["step"] = optimiser.count
        state = {"progress": asdict(self.progress), "plan": asdict(self.plan), "files": self.watcher.positions()}
        self.checkpoints.save(self.progress.step, weights, optim, state, keep=set())

    def restore(self, weights: dict[str, torch.Tensor], optim: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        flat = self.flat

        def named(source: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
            return {n[len(prefix) :]: t for n, t in source.items() if n.startswith(prefix)}

        flat.load(flat.weights, named(weights, "weights."))
        if self.average is not None:
            flat.load(self.average, named(weights, "average."))
        if best := named(weights, "best."):
            self.best_weights = torch.empty_like(flat.weights)
            flat.load(self.best_weights, best)
        flat.load(self.optimiser.mean, named(optim, "exp_avg."))
        flat.load(self.optimiser.square, named(optim, "exp_avg_sq."))
        self.optimiser.count.copy_(optim["step"])
        for name, value in state["progress"].items():
            setattr(self.progress, name, value)
