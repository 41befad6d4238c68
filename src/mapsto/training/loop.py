"""The training loop: exact sums, a schedule of the step alone, averaged weights, early stopping, checkpoints."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mapsto.attention import Attention
from mapsto.errors import NonFiniteError, ResourceError
from mapsto.models.mapper import Batch, Mapper
from mapsto.noise import set_clock
from mapsto.stream import Clock
from mapsto.training.adamw import AdamW
from mapsto.training.ahead import Ahead
from mapsto.training.checkpoint import Checkpoint, Checkpoints
from mapsto.training.feed import Feed
from mapsto.training.flat import Flat, check
from mapsto.training.parallel import World
from mapsto.training.plan import Plan, Progress
from mapsto.training.schedule import average_decay, learning_rate
from mapsto.training.shard import Shards
from mapsto.training.trace import trace
from mapsto.training.watcher import Watcher

__all__ = ["Trainer", "batch_loss"]

BAD_BATCHES = 3
OFTEN = 60.0  # seconds between checkpoints, where the plan does not say
SHARE = 0.05  # of the time, at most, that saving may take


def batch_loss(model: Mapper, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Σ_b Σ_t w_t term_t[b], to minimise, and Σ_b count[b], to divide by."""
    loss = model.loss(batch)
    return loss.per_example().sum(), loss.count.sum()


@dataclass(frozen=True)
class Turn:
    """The rows of one step's micro-batches, and the place in the data after it."""

    rows: Sequence[NDArray[np.int64]]
    epoch: int
    index: int


class Trainer:
    """Trains one model by a plan, in one process or in several.

    Minimises Σ_b Σ_t w_t term_t[b] / Σ_b count[b] with both sums over the whole step, so the gradient does not depend
    on how a step is cut into micro-batches, nor on which process computes which (micro-batch p is rank p mod W's).

    Args:
        model: changed in place; its parameters become views of one vector.
        plan: how.
        feed: the training batches.
        validate: gives {"loss": ..., further metrics} of the model as it stands (with averaged weights in it); all
            processes call it, and it gives all of them the same.
        watcher: who is told.
        checkpoints: where to save; None keeps the best weights in memory only.
        world: the processes; by default this one alone.
        shard: whether each process is to hold a share of the model only.
    """

    def __init__(
        self,
        model: Mapper,
        plan: Plan,
        feed: Feed,
        validate: Callable[[], dict[str, float]] | None,
        watcher: Watcher,
        checkpoints: Checkpoints | None = None,
        world: World | None = None,
        *,
        shard: bool = False,
    ):
        self.model, self.plan, self.feed, self.validate, self.watcher = model, plan, feed, validate, watcher
        self.checkpoints, self.world = checkpoints, world or World()
        self.progress = Progress()
        self.clock = Clock(plan.seed)
        set_clock(model, self.clock)
        self.attentions = [module for module in model.modules() if isinstance(module, Attention)]
        self.world.sharded = shard and self.world.size > 1
        self.flat = Shards(model, self.world) if shard and self.world.size > 1 else Flat(model, self.world)
        weights = self.flat.weights
        self.average = weights.clone() if plan.average else None
        self.best_weights: torch.Tensor | None = None
        self.optimiser = AdamW(weights, self.flat.split, decay=plan.weight_decay)
        self.asked = self.stopping = False
        self.device = weights.device.type
        self.saved = self._tried = -1
        self._saved_at, self._cost, self._wished = time.perf_counter(), 0.0, 0

    def run(self, *, until: int | None = None) -> Progress:
        """Train to the end of the plan, to the end of patience, or until :meth:`stop` is called."""
        progress, plan = self.progress, self.plan
        last = plan.steps if until is None else min(until, plan.steps)
        started = self._saved_at = time.perf_counter()
        at = progress.step
        ahead: Ahead[Turn, list[tuple[int, Batch]]] = Ahead(lambda turn: self._gather(turn.rows), plan.workers)
        ready = ahead(self._turns())
        try:
            while progress.step < last and not self.stopping and not self._patience_ended():
                turn, batches = next(ready)
                loss = self.step(turn.rows, batches)
                progress.epoch, progress.index = turn.epoch, turn.index
                self.watcher.stepped(progress.step, loss)
                ended = progress.step == plan.steps
                if self.validate is not None and (ended or progress.step % plan.evaluate_every == 0):
                    seconds = time.perf_counter() - started
                    self._evaluate(
                        {"seconds": round(seconds, 3), "steps_per_second": round((progress.step - at) / seconds, 2)}
                    )
                    started, at = time.perf_counter(), progress.step
                    if self._due(evaluated=True):
                        self.save()
                elif self._due(evaluated=False):
                    self.save()
        finally:
            ready.close()
        return progress

    def _patience_ended(self) -> bool:
        return 0 < self.plan.patience <= self.progress.waited

    def stop(self) -> None:
        """End after the step that is running; of several processes, after the step in which all know."""
        self.asked = True
        self.stopping = self.stopping or self.world.size == 1

    def step(self, group: Sequence[NDArray[np.int64]], batches: Sequence[tuple[int, Batch]] | None = None) -> float:
        """One optimiser step over some micro-batches; gives its loss per target.

        Args:
            group: the rows of every micro-batch, of all processes.
            batches: this process's, gathered, each with its place in the group.
        """
        progress, plan = self.progress, self.plan
        if not self.model.training:  # it visits every module: 20 to 80 µs
            self.model.train()
        self._renew(progress.step)
        batches = self._gather(group) if batches is None else batches
        sums = []
        with self.world.guard():
            for part, batch in batches:
                loss, weight = self._loss(part, batch)
                if part < len(group):
                    loss.backward()
                    sums.append((part, loss.detach(), weight))
                else:  # computed only because the others wait for this process's share
                    (loss * 0).backward()
        gradient = self.flat.gradient()
        if self.world.size > 1:
            sums = self._add(len(group), sums)  # first: a lost process is noticed here, and nobody waits below
            if not self.world.sharded:
                self.world.add(gradient)
        norm = self.flat.norm(gradient)
        # Read only now, when all of the step up to here is queued: a device computes on meanwhile.
        total, count = sum(loss.item() for _, loss, _ in sums), sum(weight.item() for _, _, weight in sums)
        if count == 0:  # nothing to learn from: a step that changes nothing
            progress.step += 1
            return 0.0
        length = norm.item() / count
        if not (math.isfinite(length) and math.isfinite(total)):
            return self._skip(group, batches)
        progress.bad = 0
        gradient.mul_(min(1.0, plan.clip / (length + 1e-12)) / count if plan.clip else 1 / count)
        self._apply(gradient)
        progress.step += 1
        progress.loss += total
        progress.count += count
        return total / count

    def _renew(self, step: int) -> None:
        """Be at a step, of which all that is random is a function."""
        self.clock.step = step
        for layer, attention in enumerate(self.attentions):
            attention.renew(self.plan.seed, layer, step)

    def _gather(self, group: Sequence[NDArray[np.int64]]) -> list[tuple[int, Batch]]:
        return [(part, self.feed.batch(group[part % len(group)])) for part in self.world.turns(len(group))]

    def _loss(self, part: int, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        self.clock.part = part
        bfloat16: AbstractContextManager[Any] = nullcontext()
        if self.plan.bfloat16:
            bfloat16 = torch.autocast(self.device, torch.bfloat16)
        with bfloat16:
            return batch_loss(self.model, batch)

    def _add(self, parts: int, sums: Sequence[tuple[int, Any, Any]]) -> list[tuple[int, Any, Any]]:
        """Every process's sums, so that all add them in the order of the parts; and whether to stop, or to save."""
        table = torch.zeros(parts + 1, 2, dtype=torch.float64)
        for part, loss, weight in sums:
            table[part] = torch.stack((loss.double(), weight.double()))
        table[parts, 0] = float(self.asked or self.world.orphaned)
        table[parts, 1] = self._wish(self.progress.step + 1) if self.world.first else 0
        self.world.add(table)
        self._wished = int(table[parts, 1])
        self.stopping = bool(table[parts, 0] > 0)
        return [(part, table[part, 0], table[part, 1]) for part in range(parts)]

    def _apply(self, gradient: torch.Tensor) -> None:
        plan, step = self.plan, self.progress.step
        self.optimiser.step(gradient, learning_rate(step, peak=plan.lr, warmup=plan.warmup, steps=plan.steps))
        if self.average is not None:
            self.average.lerp_(self.flat.weights, 1 - average_decay(step, plan.average))
        self.flat.put()

    def _skip(self, group: Sequence[NDArray[np.int64]], batches: Sequence[tuple[int, Batch]]) -> float:
        progress = self.progress
        cause = self._cause(batches)
        progress.bad += 1
        progress.step += 1
        self.watcher.skipped(progress.step, [int(r) for part in group for r in part], cause)
        if progress.bad >= BAD_BATCHES:
            raise NonFiniteError(
                f"the loss or its gradient was not finite in {BAD_BATCHES} steps in a row, last at step {progress.step} "
                f"({cause}).   Lower train.lr, or look for extreme values with mapsto check"
            )
        return math.nan

    def _cause(self, batches: Sequence[tuple[int, Batch]]) -> str:
        """Compute the step again, part by part, and see what first is not finite."""
        found = ""
        for part, batch in [] if self.world.sharded else batches:
            if not found:
                set_clock(self.model, self.clock)  # the same noise again
                found = trace(self.model, batch, lambda p=part, b=batch: self._loss(p, b)[0])  # type: ignore[misc]
        shared = [text.decode() for text in self.world.share(found.encode())]
        return next((text for text in shared if text), "the sum of the gradients, or what did not happen again")

    def _turns(self) -> Iterator[Turn]:
        """Every step's micro-batches from where the run is, epoch after epoch."""
        epoch, index, size = self.progress.epoch, self.progress.index, self.plan.accumulate
        while True:
            order = self.feed.order(epoch)
            while index < len(order):
                group = order[index : index + size]
                index += len(group)
                ended = index >= len(order)
                yield Turn(group, epoch + 1 if ended else epoch, 0 if ended else index)
            epoch, index = epoch + 1, 0

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The model with its averaged weights, in eval mode, for a while."""
        kept = self.flat.weights.clone()
        if self.average is not None:
            self.flat.weights.copy_(self.average)
        self.flat.put()
        self.model.eval()
        try:
            yield self.model
        finally:
            self.flat.weights.copy_(kept)
            self.flat.put()
            self.model.train()

    def _evaluate(self, record: dict[str, Any]) -> None:
        progress = self.progress
        assert self.validate is not None
        if self.world.size > 1 and not self.world.sharded:
            own = hashlib.sha256(self.flat.weights.cpu().numpy().data).digest()
            self.world.agree(own, f"their weights after step {progress.step}")
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

    def finish(self) -> None:
        """Leave the best weights in the model: those of the best evaluation, or the averaged, or the last."""
        best = self.best_weights if self.best_weights is not None else self.average
        if best is not None:
            self.flat.weights.copy_(best)
        if self.best_weights is not None:
            self._renew(self.progress.best_step - 1)
        self.flat.put()
        self.model.eval()

    @torch.no_grad()
    def give(self, model: nn.Module) -> None:
        """Copy the weights to a model that is not sharded; all processes call it, and the first's gets them."""
        whole, own = self.flat.full(self.flat.weights), dict(model.named_parameters())
        for name, tensor in whole.items():
            own[name].copy_(tensor)
        for buffer, mine in zip(model.buffers(), self.model.buffers(), strict=True):
            buffer.copy_(mine)

    def _wish(self, step: int) -> int:
        """Whether to save after a step: 2 in any case, 1 if there is an evaluation, 0 not.

        When a checkpoint is made changes no bit of the run, so the clock may decide.
        """
        if self.plan.save_every:
            return 2 if step % self.plan.save_every == 0 else 1
        rest = time.perf_counter() - self._saved_at
        return 0 if rest < self._cost / SHARE else 2 if rest >= OFTEN else 1

    def _due(self, *, evaluated: bool) -> bool:
        wish = self._wished if self.world.sharded else self._wish(self.progress.step)
        return wish >= (1 if evaluated else 2)

    def save(self) -> None:
        """Write a checkpoint of all that the run is, unless this step's is there; a full disk is told to the watcher."""
        sharded, step = self.world.sharded, self.progress.step
        if step == (self._tried if sharded else self.saved) or (self.checkpoints is None and not sharded):
            return
        began, self._tried = time.perf_counter(), step
        weights, optim = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
        for part, name, vector in self._vectors():
            if vector is not None:
                held = weights if part == "weights" else optim
                held |= {f"{name}.{n}": v for n, v in self.flat.full(vector).items()}
        optim["step"] = self.optimiser.count
        weights |= {f"drawn.{n}": b for n, b in self.model.named_buffers()}
        if self.checkpoints is not None:
            try:
                state = {"progress": asdict(self.progress), "files": self.watcher.positions()}
                self.checkpoints.save(step, weights, optim, state)
                self.saved = step
            except ResourceError as error:
                self.watcher.unsaved(error)
        self._saved_at = time.perf_counter()
        self._cost = self._saved_at - began

    def _vectors(self) -> list[tuple[str, str, torch.Tensor | None]]:
        """What a run is beside its progress: the file, the prefix of the names there, the vector."""
        return [
            ("weights", "weights", self.flat.weights),
            ("weights", "average", self.average),
            ("weights", "best", self.best_weights),
            ("optim", "exp_avg", self.optimiser.mean),
            ("optim", "exp_avg_sq", self.optimiser.square),
        ]

    def restore(self, found: Checkpoint | None) -> None:
        """Continue from a checkpoint; all processes call it, and those that are not the first with None.

        Raises:
            ModelFileError: it is of another model or version.
        """
        state: Any = None
        if found is not None:
            best = any(name.startswith("best.") for name in found.weights)
            state = [asdict(Progress.of(found.state, found.step)), best]
            self.optimiser.count.copy_(check("step", found.optim, self.optimiser.count))
        state = json.loads(self.world.share(json.dumps(state).encode())[0])
        if state is None:
            return
        self.progress = Progress(**state[0])
        if state[1]:
            self.best_weights = torch.empty_like(self.flat.weights)
        for part, name, vector in self._vectors():
            if vector is not None:
                held = None if found is None else found.weights if part == "weights" else found.optim
                prefix = f"{name}."
                self.flat.load(vector, held and {n[len(prefix) :]: t for n, t in held.items() if n.startswith(prefix)})
        for name, buffer in self.model.named_buffers():
            if found is not None:
                buffer.copy_(check(f"drawn.{name}", found.weights, buffer))
            self.world.spread(buffer)
        self.world.spread(self.optimiser.count)
        self.flat.put()
        self.saved = self._tried = self.progress.step
