"""From a user's settings to numbers: what was left to the data's size, the batches, the plan of the training, its time."""

import itertools
import json
import math
import re
import statistics
import time

import torch
from rich.console import Console

from mapsto.errors import ConfigError
from mapsto.models.mapper import Mapper
from mapsto.tasks.config import SIZES, Config
from mapsto.tasks.dataset import Dataset
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.score import validation
from mapsto.tasks.watch import RunWatcher
from mapsto.tasks.window import make_feed
from mapsto.training.loop import Trainer
from mapsto.training.parallel import World
from mapsto.training.plan import Plan

__all__ = ["feed", "make_plan", "seconds", "settle", "sized", "timed"]

WARM, TIMED = 5, 20


def sized(config: Config, dataset: Dataset) -> Config:
    """Fill in width, depth and heads, where they were left to the data's size."""
    config = config.model_copy(deep=True)
    rows = _rows(dataset)
    if config.size == "auto":
        config.size = "xs" if rows < 1000 else "s" if rows < 50_000 else "m"
    size = dict(SIZES[config.size])
    if config.model.latent:
        kind = dataset.schema.output.kind
        if kind == "vector" or (kind == "image" and not config.input.patch):
            size |= {"dim": 4 * size["dim"], "depth": 2}  # perceptrons, which are cheap
        else:  # z has to tell all queries what to say
            size |= {"dim": max(64, size["dim"]), "heads": max(4, size["heads"])}
    for name in ("dim", "depth", "heads"):
        if not getattr(config.model, name):
            setattr(config.model, name, int(size[name]))
    return config


def _rows(dataset: Dataset) -> int:
    """Training rows; of a language model, whose texts are of any length, stretches of 64 tokens."""
    rows = dataset.split.rows("train")
    if dataset.schema.inputs:
        return len(rows)
    return max(len(rows), int(dataset.store.columns["t.ids"].lengths[rows].sum()) // 64)


def settle(config: Config, dataset: Dataset, world: World | None = None) -> Config:
    """Fill in what was left to the data's size and the processes, so that the config says every value."""
    config = sized(config, dataset)
    rows = _rows(dataset)
    if config.model.normalise is None:
        config.model.normalise = config.model.attention.partition(":")[0] == "favor"
    if not config.train.lr:
        config.train.lr = float(SIZES[config.size]["lr"])
    if not config.train.accumulate:
        config.train.accumulate = world.size if world is not None else 1
    if config.model.latent and not config.train.epochs:
        config.train.epochs = float(min(600, max(20, math.ceil(1_000_000 / max(1, rows)))))
    if not config.train.epochs:
        config.train.epochs = float(min(60, max(4, math.ceil(150_000 / max(1, rows)))))
    return config


def feed(dataset: Dataset, part: str, model: Mapper, config: Config, where: torch.device) -> StoreFeed:
    """The batches of one part; the budget of a batch is settled on the training part."""
    rows = dataset.split.rows(part)
    made = make_feed(
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
        workers=t.workers,
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


def timed(config: Config, model: Mapper, feeds: dict[str, StoreFeed], bfloat16: bool, world: World) -> Config:
    """Fix the number of steps for ``--time`` from twenty timed ones, whose changes are undone; the slowest decides."""
    budget = seconds(config.time)
    plan = make_plan(config, feeds["train"], bfloat16)
    trial = Trainer(model, plan, feeds["train"], None, RunWatcher(None, Console(quiet=True)), world=world)
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
    validation(model, feeds["val"], world)
    evaluation = time.perf_counter() - start
    a_step, evaluation = (
        max(json.loads(x)[i] for x in world.share(json.dumps([a_step, evaluation]).encode())) for i in (0, 1)
    )
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
