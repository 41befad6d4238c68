"""The verb ``train``: from rows to a finished run folder."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.text import Text

from mapsto import disk, document
from mapsto.errors import ConfigError, DataError, MapstoError
from mapsto.models.mapper import Mapper
from mapsto.models.vae import VAE
from mapsto.process import release_memory, set_products
from mapsto.tasks.announce import describe_map, result_lines
from mapsto.tasks.autoencoder import learned
from mapsto.tasks.build import build, save_model
from mapsto.tasks.card import model_card
from mapsto.tasks.config import Config, read_config
from mapsto.tasks.crossover import choose
from mapsto.tasks.dataset import prepare
from mapsto.tasks.environment import bfloat16_helps, device, environment
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.forecast import begin
from mapsto.tasks.honesty import Doubt
from mapsto.tasks.judge import judge
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.plan import feed, make_plan, settle, sized, timed
from mapsto.tasks.run import Run, load
from mapsto.tasks.runfolder import RunFolder, default_name
from mapsto.tasks.score import Answers, answer, followed, validation
from mapsto.tasks.transfer import start_from
from mapsto.tasks.watch import RunWatcher, clock
from mapsto.training.checkpoint import Checkpoints
from mapsto.training.loop import Trainer
from mapsto.training.parallel import World, joined

__all__ = ["Interrupted", "train"]


class Interrupted(MapstoError):
    """Stopped by a signal, with everything saved."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.code = 128 + number


def train(
    config: Config,
    source: Any = None,
    *,
    name: str = "",
    resume: bool = False,
    console: Console | None = None,
    root: Path = Path("runs"),
    tuned: dict[str, Any] | None = None,
    world: World | None = None,
) -> tuple[Run, dict[str, Any]]:
    """Train a model and leave a run folder.

    Args:
        config: every setting.
        source: rows in memory; by default what ``data.source`` names.
        name: of the run; by default the data's.
        resume: continue the run of this name.
        console: where to show progress; by default the terminal's standard error.
        root: the folder of run folders.
        tuned: what was set for the whole process (:func:`mapsto.process.tune_process`).
        world: the processes; by default those that ``torchrun`` started together, or this one alone.

    Returns:
        The finished run, and ``{"run", "metrics", "intervals", "baselines", "seconds"}``.
    """
    path = root / (name or default_name(config.data.source))
    place: RunFolder | None = None
    known = read_config(path / "config.yaml") if resume and (path / "config.yaml").is_file() else config
    with nullcontext(world) if world is not None else joined(known.train.timeout) as here:
        console = (console or Console(stderr=True)) if here.first else Console(quiet=True)
        begun = False
        try:
            if resume:
                place, found = _opened(path, here)
                if found["finished"]:
                    return _finished(path, console)
                config, begun = Config.model_validate(found["config"]), found["begun"]
            return _Job(config, path, here, console, tuned or {}).run(source, place, resumed=resume, begun=begun)
        finally:
            if place is not None:
                place.close()


def _opened(path: Path, world: World) -> tuple[RunFolder | None, dict[str, Any]]:
    """What the first process finds in a run folder, for all of them; its mistakes are everybody's."""
    place, found = None, dict[str, Any]()
    if world.first:
        try:
            place = RunFolder.open(path)
            begun = any((path / "checkpoints").glob("step-*"))
            found = {"config": place.config.model_dump(), "finished": place.finished, "begun": begun}
        except MapstoError as error:
            if world.size == 1:
                raise
            found = {"error": str(error), "code": error.code}
    found = json.loads(world.share(json.dumps(found).encode(), starting=True)[0])
    if "error" in found:
        refused = MapstoError(found["error"])
        refused.code = found["code"]
        raise refused
    return place, found


def _finished(path: Path, console: Console) -> tuple[Run, dict[str, Any]]:
    run = load(path)
    text = f"{path} is finished: {run.config.train.steps} steps.   To train on from its weights: --init {path}"
    console.print(Text(visible(text)), soft_wrap=True)
    return run, run.result


class _Job:
    """One training, from settings to a finished folder."""

    def __init__(self, config: Config, path: Path, world: World, console: Console, tuned: dict[str, Any]):
        self.config, self.path, self.world, self.console = config, path, world, console
        self.tuned = tuned
        self.began = time.perf_counter()

    def run(self, source: Any, place: RunFolder | None, *, resumed: bool, begun: bool) -> tuple[Run, dict[str, Any]]:
        """Prepare, train, measure, leave.

        Args:
            source: rows in memory, or None.
            place: the folder of a run that goes on; only the first process has it.
            resumed: whether a run goes on.
            begun: whether it has a checkpoint.
        """
        world, config = self.world, self.config
        self._settle_process(place)
        where = device(config.device, world.local if world.size > 1 else None)
        dataset = prepare(config, source)
        lacking = [part for part, rows in dataset.split.counts.items() if not rows]
        if lacking:
            raise DataError(
                f"no rows for {' and '.join(lacking)}.   Give data.shares such as [0.8, 0.1, 0.1], or more rows"
            )
        config = sized(config, dataset)
        helps = config.train.precision == "auto" and bfloat16_helps(where, config.model.dim)
        bfloat16 = helps or config.train.precision == "bfloat16"
        config, chosen = choose(config, dataset, device=where, bfloat16=bfloat16, world=world)
        config = settle(config, dataset, world)
        if config.time and not config.train.steps and config.train.shard:
            raise ConfigError("time cannot be tried out on a sharded model.   Give --epochs or train.steps")
        if config.train.shard and config.model.latent:
            raise ConfigError("an autoencoder is not sharded: each process holds all of it.   Leave train.shard out")
        facts = dataset.facts()
        known = {**environment(self.tuned), "device": str(where), "processes": world.size, "data": facts}
        alike = {"config": config.model_dump(), "data": facts, "versions": known["versions"]}
        world.agree(document.dump(alike), "settings, data or versions", starting=True)
        model = build(dataset.schema, dataset.measured, config.model, seed=config.seed).to(where)
        feeds = {part: feed(dataset, part, model, config, where) for part in ("train", "val", "test")}
        if not begun:
            begin(model, feeds["train"], feeds["val"])
        if config.init and not begun:
            start_from(model, Path(config.init), feeds["train"], seed=config.seed)
        if config.time and not config.train.steps:
            config = timed(config, model, feeds, bfloat16, world)
        plan = make_plan(config, feeds["train"], bfloat16)
        config.train.steps = plan.steps
        if isinstance(model, VAE):
            learned(model, config.train, plan.steps)
        own = place
        try:
            if place is not None:
                place.check_data(facts)
            elif world.first:
                own = RunFolder.new(self.path, config, known)
            folder = Path(world.share(str(own.path if own else "").encode())[0].decode())
            watcher = RunWatcher(
                folder if world.first else None,
                self.console,
                metric=_metric(model),
                place=lambda row: "{} row {}".format(*dataset.places[feeds["train"].place(row)]),
                batch=lambda rows: feeds["train"].batch(np.array(rows)),
            )
            checkpoints = None
            if own is not None:
                facts = {k: known[k] for k in ("threads", "versions", "device")} | {"data": facts["fingerprint"]}
                checkpoints = Checkpoints(folder / "checkpoints", {"run": own.environment["run"], **facts})
            check = partial(
                _validate, model, feeds["val"], world, Doubt(model, feeds["val"], watcher, seed=config.seed)
            )
            trainer = Trainer(model, plan, feeds["train"], check, watcher, checkpoints, world, shard=config.train.shard)
            if resumed or world.size > 1:
                self._take_up(trainer, watcher, place, known)
            if not trainer.progress.step:
                for line in describe_map(dataset, config, model, plan.steps, feeds["train"], where, bfloat16, folder):
                    watcher.say(line)
                if chosen:
                    watcher.say(chosen)
            _train(trainer, watcher, folder)
            trainer.finish()
            found = None if isinstance(model, VAE) else answer(model, feeds["test"], world=world)
            if world.sharded:
                model = build(dataset.schema, dataset.measured, config.model, seed=config.seed)
                trainer.give(model)
            return self._leave(Run(folder, model, dataset.schema, config, dataset), feeds, found, watcher)
        finally:
            if own is not None and own is not place:
                own.close()

    def _settle_process(self, place: RunFolder | None) -> None:
        """Threads and matrix products are part of a run's bits: those of its start, in all processes."""
        was = {} if place is None else place.environment
        threads = was.get("threads") or self.config.threads or torch.get_num_threads()
        products = was.get("process", {}).get("products") or self.tuned.get("products", "default")
        threads, products = json.loads(self.world.share(json.dumps([threads, products]).encode(), starting=True)[0])
        if isinstance(threads, int) and 0 < threads <= 1024:
            torch.set_num_threads(threads)
        if products != self.tuned.get("products"):
            self.tuned = {**self.tuned, "products": set_products(products)}

    def _take_up(self, trainer: Trainer, watcher: RunWatcher, place: RunFolder | None, now: dict[str, Any]) -> None:
        """Continue from the newest checkpoint that is whole, in all processes."""
        checkpoints, found = trainer.checkpoints, None
        if place is not None and checkpoints is not None:
            found = checkpoints.newest()
            for reason in checkpoints.bad.values():
                watcher.tell(f"warning: a checkpoint cannot be used: {reason}.   The one before is", "yellow")
            try:
                checkpoints.sweep()
                watcher.cut(found.state.get("files", {}) if found is not None else {})
            except OSError as error:
                raise disk.full(place.path, error) from None
            for line in place.inexact(now):
                watcher.tell(f"warning: not bit for bit the run that was begun: {line}", "yellow")
        trainer.restore(found)
        if place is not None:
            watcher.tell(f"resumed at step {trainer.progress.step} of {trainer.plan.steps}")

    def _leave(
        self, run: Run, feeds: dict[str, StoreFeed], found: Answers | None, watcher: RunWatcher
    ) -> tuple[Run, dict[str, Any]]:
        """Measure on the test part; write the model, its card, and last the result."""
        model, config, folder, world = run.model, self.config, run.folder, self.world
        groups = run.dataset().groups
        groups = None if groups is None else groups[feeds["test"].owners]
        judged = judge(model, config, feeds["test"], (feeds["train"], feeds["val"]), found, groups=groups, world=world)
        result: dict[str, Any] = {
            "run": str(folder),
            **judged,
            "seconds": round(time.perf_counter() - self.began, 2),
        }
        if not world.first:
            return run, result
        try:
            size = save_model(folder / "model", model, run.schema, run.config.model, model_card(run, result))
            for line in result_lines(result, model):
                watcher.say(line)
            watcher.say(f"saved {folder / 'model'} ({size / 1e6:.1f} MB) in {clock(time.perf_counter() - self.began)}")
            watcher.positions()
            disk.replace(folder / "result.json", document.dump(result))
        except OSError as error:
            raise disk.full(folder, error) from None
        return run, result


def _validate(model: Mapper, val: StoreFeed, world: World, doubt: Doubt) -> dict[str, float]:
    try:
        doubt.check()
        return validation(model, val, world)
    finally:
        release_memory()


def _metric(model: Mapper) -> str:
    return "elbo" if isinstance(model, VAE) else followed(next(iter(model.output.targets.values())))


def _train(trainer: Trainer, watcher: RunWatcher, folder: Path) -> None:
    watcher.begin(trainer.plan.steps, trainer.progress.step)
    try:
        with _signals(trainer) as received:
            trainer.run()
            trainer.save()
    finally:
        watcher.end()
    # One process may be asked to stop after the last step that all know of: all end, or none.
    if trainer.stopping or any(trainer.world.share(b"stop" if received else b"")):
        step, steps = trainer.progress.step, trainer.plan.steps
        kept = f"stopped at step {step} of {steps}, saved"
        if trainer.checkpoints is not None and trainer.saved != step:
            last = f"the last checkpoint is of step {trainer.saved}" if trainer.saved >= 0 else "there is no checkpoint"
            kept = f"stopped at step {step} of {steps}, not saved: {last}"
        raise Interrupted(f"{kept}.   Go on with --resume --run {folder.name}", (received or [signal.SIGTERM])[0])


@contextmanager
def _signals(trainer: Trainer) -> Iterator[list[int]]:
    """SIGINT, SIGTERM and a closed terminal end the step that runs; a second signal ends the process at once."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        # torchrun passes on what the terminal has sent to all already; its own last word is SIGKILL.
        if received and trainer.world.size == 1:
            os._exit(128 + number)
        received.append(number)
        trainer.stop()

    ending = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        ending.append(signal.SIGHUP)
    try:
        before = {s: signal.signal(s, handle) for s in ending}
    except ValueError:  # not the main thread: signals go to whoever is
        yield received
        return
    try:
        yield received
    finally:
        for number, old in before.items():
            signal.signal(number, old)
