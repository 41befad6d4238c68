"""The verb ``train``: from rows to a finished run folder."""

import itertools
import json
import math
import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console

from mapsto.errors import ConfigError, MapstoError, ModelFileError
from mapsto.models.mapper import Mapper
from mapsto.nn.target import NumberTarget
from mapsto.process import release_memory
from mapsto.tasks.build import build, load_model, save_model
from mapsto.tasks.card import model_card
from mapsto.tasks.config import SIZES, Config, read_config, write_config
from mapsto.tasks.dataset import Dataset, StoreFeed, prepare
from mapsto.tasks.environment import bfloat16_helps, device, environment
from mapsto.tasks.run import Run, describe_map, result_lines
from mapsto.tasks.score import answer, baselines, score, validation
from mapsto.tasks.watch import RunWatcher, clock
from mapsto.training.checkpoint import Checkpoints, write_json
from mapsto.training.loop import Plan, Trainer

__all__ = ["Interrupted", "train"]

WARM, TIMED = 5, 20


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

    Returns:
        The finished run, and ``{"run", "metrics", "intervals", "baselines", "seconds"}``.
    """
    began = time.perf_counter()
    console = console or Console(stderr=True)
    if config.threads:
        torch.set_num_threads(config.threads)
    where = device(config.device)
    folder = root / (name or default_name(config.data.source))
    kept: Config | None = None
    if resume:
        kept = read_config(_existing(folder) / "config.yaml")
        config = kept
    dataset = prepare(config, source)
    config = settle(config, dataset)
    model = build(dataset.schema, dataset.measured, config.model, seed=config.seed).to(where)
    if config.init:
        _start_from(model, Path(config.init))
    feeds = {part: feed(dataset, part, model, config, where) for part in ("train", "val", "test")}
    bfloat16 = config.train.precision == "bfloat16" or (config.train.precision == "auto" and bfloat16_helps(where))
    if config.time and not config.train.steps:
        config = timed(config, model, feeds, bfloat16)
    plan = make_plan(config, feeds["train"], bfloat16)
    config.train.steps = plan.steps
    if not resume:
        folder = make_folder(folder)
    watcher = RunWatcher(folder, console, metric=_metric(model))
    checkpoints = Checkpoints(folder / "checkpoints")
    trainer = Trainer(model, plan, feeds["train"], partial(_validate, model, feeds["val"]), watcher, checkpoints)
    if resume:
        _resume(trainer, checkpoints, folder, dataset)
        watcher.say(f"resumed at step {trainer.progress.step}")
    else:
        (folder / "config.yaml").write_text(write_config(config), encoding="utf-8")
        write_json(
            folder / "environment.json", {**environment(tuned), "device": str(where), "data": dataset.fingerprint()}
        )
        for line in describe_map(dataset, config, model, plan.steps, feeds["train"], where, bfloat16, folder):
            watcher.say(line)
    _train(trainer, watcher, checkpoints, folder)
    trainer.finish()
    save_model(folder / "model", model, dataset.schema, config.model)
    run = Run(folder, model, dataset.schema, config, dataset)
    groups = None if dataset.groups is None else dataset.groups[feeds["test"].rows]
    scores = score(model, answer(model, feeds["test"]), groups=groups, seed=config.seed)
    simple = baselines(model, feeds["train"], feeds["val"], feeds["test"])
    result = {
        "run": str(folder),
        "metrics": scores.metrics,
        "intervals": {k: list(v) for k, v in scores.intervals.items()},
        "baselines": simple,
        "seconds": round(time.perf_counter() - began, 2),
    }
    write_json(folder / "result.json", result)
    (folder / "model" / "README.md").write_text(model_card(run, result), encoding="utf-8")
    for line in result_lines(result, model):
        watcher.say(line)
    size = sum(f.stat().st_size for f in (folder / "model").iterdir())
    watcher.say(f"saved {folder / 'model'} ({size / 1e6:.1f} MB) in {clock(time.perf_counter() - began)}")
    return run, result


def default_name(source: str) -> str:
    """The run's name from the data's: ``data/reviews.csv`` is ``reviews``."""
    text = source.removeprefix("demo:").rstrip("/")
    stem = Path(text).name.split(".")[0] if text else "run"
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "run"


def make_folder(folder: Path) -> Path:
    """Make a run folder that was not there: NAME, NAME-2, NAME-3 and so on."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        found = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            found.mkdir()
        except FileExistsError:
            continue
        return found
    raise ConfigError(f"{folder} and 9,999 more exist already.   Choose another name with --run")


def _existing(folder: Path) -> Path:
    if not (folder / "config.yaml").is_file():
        there = sorted(p.name for p in folder.parent.iterdir() if p.is_dir()) if folder.parent.is_dir() else []
        raise ConfigError(f"there is no run {folder} to resume.   Runs: {', '.join(there) or 'none'}")
    return folder


def settle(config: Config, dataset: Dataset) -> Config:
    """Fill in what was left to the data's size, so that the config says every value."""
    config = config.model_copy(deep=True)
    rows = dataset.split.counts["train"]
    if config.size == "auto":
        config.size = "xs" if rows < 1000 else "s" if rows < 50_000 else "m"
    size = SIZES[config.size]
    for name in ("dim", "depth", "heads"):
        if not getattr(config.model, name):
            setattr(config.model, name, int(size[name]))
    if not config.train.lr:
        config.train.lr = float(size["lr"])
    if not config.train.epochs:
        config.train.epochs = float(min(60, max(4, math.ceil(150_000 / max(1, rows)))))
    return config


def feed(dataset: Dataset, part: str, model: Mapper, config: Config, where: torch.device) -> StoreFeed:
    """The batches of one part; the budget of a batch is settled on the training part."""
    rows = dataset.split.rows(part)
    made = StoreFeed(
        dataset.store, rows, model, tokens=1, batch_rows=config.train.batch_rows, seed=config.seed, device=where
    )
    if not config.train.batch_tokens:
        total = int(made.lengths.sum())
        longest = int(made.lengths.max(initial=1))
        fit = min(8192, max(64, total // 16))
        config.train.batch_tokens = max(1 << (fit.bit_length() - 1), longest)
    made.tokens = config.train.batch_tokens
    return made


def make_plan(config: Config, train_feed: StoreFeed, bfloat16: bool) -> Plan:
    """Numbers of steps from epochs, and so on."""
    t = config.train
    an_epoch = max(1, math.ceil(len(train_feed.order(0)) / t.accumulate))
    steps = t.steps or max(1, round(t.epochs * an_epoch))
    every = t.evaluate_every or max(an_epoch, math.ceil(steps / 40))
    return Plan(
        steps=steps,
        lr=t.lr,
        warmup=max(1, round(t.warmup * steps)),
        weight_decay=t.weight_decay,
        clip=t.clip,
        average=t.average,
        accumulate=t.accumulate,
        evaluate_every=min(every, steps),
        save_every=t.save_every,
        patience=t.patience,
        seed=config.seed,
        bfloat16=bfloat16,
    )


def seconds(text: str) -> float:
    """``90s``, ``10m``, ``2h``, or plain seconds.

    Example:
        >>> seconds("10m")
        600.0
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smh]?)\s*", text)
    if not match:
        raise ConfigError(f'time: "{text}" is no time.   Write 90s, 10m or 2h')
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def timed(config: Config, model: Mapper, feeds: dict[str, StoreFeed], bfloat16: bool) -> Config:
    """Fix the number of steps for ``--time`` from twenty timed ones, whose changes are undone."""
    budget = seconds(config.time)
    plan = make_plan(config, feeds["train"], bfloat16)
    trial = Trainer(model, plan, feeds["train"], None, RunWatcher(None, Console(quiet=True)))
    kept = trial.flat.weights.clone()
    order, size = feeds["train"].order(0), config.train.accumulate
    groups = itertools.cycle([order[i : i + size] for i in range(0, len(order), size)])
    lap = []
    for _ in range(WARM + TIMED):
        start = time.perf_counter()
        trial.step(next(groups))
        lap.append(time.perf_counter() - start)
    a_step = statistics.median(lap[WARM:])  # a pause of the machine must not halve the training
    start = time.perf_counter()
    validation(model, feeds["val"])
    evaluation = time.perf_counter() - start
    trial.flat.weights.copy_(kept)
    model.train()
    an_epoch = max(1, math.ceil(len(order) / size))
    # Evaluations come once an epoch, forty at most; the test part and the simple models take about one more each.
    left = max(budget * 0.97 - 3 * evaluation, budget / 2)
    steps = left / (a_step + evaluation / an_epoch)
    if steps > 40 * an_epoch:
        steps = max(1.0, (left - 40 * evaluation) / a_step)
    config = config.model_copy(deep=True)
    config.train.steps = max(1, int(steps))
    config.train.epochs = round(config.train.steps / an_epoch, 3)
    return config


def _validate(model: Mapper, val: StoreFeed) -> dict[str, float]:
    try:
        return validation(model, val)
    finally:
        release_memory()


def _metric(model: Mapper) -> str:
    first = next(iter(model.output.targets.values()))
    return "mae" if isinstance(first, NumberTarget) else "accuracy"


def _start_from(model: Mapper, path: Path) -> None:
    other, _, _ = load_model(path / "model")
    own, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    fits = [n for n, p in own.items() if n in theirs and theirs[n].shape == p.shape]
    if not fits:
        raise ModelFileError(
            f"init={path}: no weight of that model fits this one.   Use the same --size and model settings"
        )
    with torch.no_grad():
        for name in fits:
            own[name].copy_(theirs[name])


def _resume(trainer: Trainer, checkpoints: Checkpoints, folder: Path, dataset: Dataset) -> None:
    known = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    if known.get("data") != dataset.fingerprint():
        raise ConfigError(
            f"{folder}: the data have changed since this run began.   Start a new run, or restore the data"
        )
    found = checkpoints.newest()
    if found is None:
        return
    weights, optim, state = found
    trainer.restore(weights, optim, state)
    for name, size in state["files"].items():
        path = folder / name
        if path.exists() and path.stat().st_size > size:
            os.truncate(path, size)


def _train(trainer: Trainer, watcher: RunWatcher, checkpoints: Checkpoints, folder: Path) -> None:
    watcher.begin(trainer.plan.steps, trainer.progress.step)
    try:
        with _signals(trainer.stop) as received:
            trainer.run()
    finally:
        watcher.end()
    if received:
        trainer.save()
        raise Interrupted(
            f"stopped at step {trainer.progress.step} of {trainer.plan.steps}, saved.   "
            f"Go on with --resume --run {folder.name}",
            received[0],
        )


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[list[int]]:
    """SIGINT and SIGTERM end the step that runs; a second one ends the process at once."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        stop()

    try:
        before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals go to whoever is
        yield received
        return
    try:
        yield received
    finally:
        for number, old in before.items():
            signal.signal(number, old)
