"""attention=auto: exact or linear attention, by the time that both take on this machine for the lengths of the data."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mapsto.attention import Attention
from mapsto.attention.favor import FavorAttention
from mapsto.attention.softmax import SoftmaxAttention
from mapsto.errors import ConfigError
from mapsto.stream import stream
from mapsto.tasks.config import Config
from mapsto.tasks.dataset import Dataset, Parts
from mapsto.tasks.watch import amount
from mapsto.training.parallel import World

__all__ = ["AUTO", "Crossover", "choose", "lengths", "race"]

AUTO = "auto"
FAVOR = "favor:256"

LEAST = 64
"""Rows of fewer items never pay for features, whatever the machine."""

BIASED = ("alibi", "t5", "relative")
"""Positions that add to the logits, which linear attention never makes."""

GROWTH = {"softmax": 2.0, "favor": 1.0}
"""Beyond what was timed, time grows with this power of the length."""

POINTS, LEAST_POINTS = 5, 3  # lengths that are timed
TOKENS = 512  # items of a batch to time
WIDEST = (512, 1 << 14)  # the longest that is timed, at least and at most


@dataclass(frozen=True)
class Crossover:
    """What a row of each length costs, forward and backward.

    Attributes:
        lengths: those that were timed, rising.
        softmax: seconds a row with exact attention.
        favor: seconds a row with linear attention.
    """

    lengths: Sequence[int]
    softmax: Sequence[float]
    favor: Sequence[float]

    def cost(self, kind: str, lengths: ArrayLike) -> NDArray[np.float64]:
        """Seconds a row of each of these lengths: straight lines in logarithms between and beyond those timed."""
        x, y = np.log(self.lengths), np.log(getattr(self, kind))
        asked = np.log(np.maximum(1, np.asarray(lengths, np.float64)))
        beyond = GROWTH[kind] * np.maximum(0, asked - x[-1]) + np.minimum(0, asked - x[0])
        cost: NDArray[np.float64] = np.exp(np.interp(asked, x, y) + beyond)
        return cost

    @property
    def length(self) -> float:
        """The length from which on linear attention is faster; infinite if it never comes to be."""
        tried = np.unique(np.round(np.geomspace(self.lengths[0], 1 << 20, 2000)))
        slower = np.flatnonzero(self.cost("favor", tried) >= self.cost("softmax", tried))
        if not len(slower):
            return float(tried[0])
        return float(tried[slower[-1] + 1]) if slower[-1] + 1 < len(tried) else math.inf


def race(
    heads: int,
    key: int,
    *,
    causal: bool = False,
    longest: int = WIDEST[1],
    device: torch.device | str = "cpu",
    bfloat16: bool = False,
    budget: float = 2.0,
    timer: Callable[[Callable[[], None]], float] | None = None,
) -> Crossover:
    """Time forward and backward of softmax and of favor attention with 256 features.

    At five lengths from 64 to the longest of the data (512 to 16,384), or as many as the time allows.

    Args:
        heads: H.
        key: K.
        causal: as the model is.
        longest: of the data.
        device: where.
        bfloat16: as the model computes.
        budget: seconds in all, about.
        timer: gives the seconds of a call; by default the least of some calls by the clock.
    """
    device, top = torch.device(device), min(max(longest, WIDEST[0]), WIDEST[1])
    kinds: dict[str, Attention] = {
        "softmax": SoftmaxAttention().bind(heads, key),
        "favor": FavorAttention(256).bind(heads, key, stream(0, "crossover")).to(device),
    }
    clock = timer or (lambda call: _least(call, device, budget / (4 * POINTS)))
    timed: list[int] = []
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for kind in kinds.values():  # what a process does once
        _call(kind, 1, heads, LEAST, key, causal, device, bfloat16)()
    began = time.perf_counter()
    for length in np.round(np.geomspace(LEAST, top, POINTS)).astype(int).tolist():
        batch = max(1, TOKENS // length)
        for name, kind in kinds.items():
            taken[name].append(clock(_call(kind, batch, heads, length, key, causal, device, bfloat16)) / batch)
        timed.append(length)
        spent = time.perf_counter() - began
        if (spent > budget / 2 and len(timed) >= LEAST_POINTS) or spent > 3 * budget:  # a machine in other use
            break
    return Crossover(timed, taken["softmax"], taken["favor"])


def _call(
    kind: Attention, batch: int, heads: int, length: int, key: int, causal: bool, device: torch.device, bfloat16: bool
) -> Callable[[], None]:
    number = torch.bfloat16 if bfloat16 else torch.float32
    source = stream(0, "crossover", length)
    drawn = [torch.randn(batch, heads, length, key, generator=source).to(device, number) for _ in range(4)]
    q, k, v = (x.requires_grad_() for x in drawn[:3])
    valid = torch.ones(batch, length, dtype=torch.bool, device=device)

    def call() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            out = kind(q, k, v, valid=valid, causal=causal)
        torch.autograd.grad(out, (q, k, v), drawn[3].to(out.dtype))

    return call


def _least(call: Callable[[], None], device: torch.device, budget: float) -> float:
    """The least of up to five calls after the first, of which one at least is made."""
    least = math.inf
    until = time.perf_counter() + budget
    for number in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        if number:
            least = min(least, now - start)
        if number and now > until:
            break
    return least


def lengths(dataset: Dataset) -> NDArray[np.int64]:
    """Items of each training row, all inputs together; of a language model, those of its windows."""
    if not dataset.schema.inputs:
        tokens, window = dataset.store.columns["t.ids"].lengths, dataset.measured.output["window"]
        tokens = tokens[dataset.split.rows("train")]
        whole: NDArray[np.int64] = np.full(int((tokens // window).sum()), window, np.int64)
        return np.concatenate([whole, tokens % window])
    parts = Parts.build(dataset.schema, dataset.measured, dim=8).inputs
    found = []
    for i, part in enumerate(parts):
        prefix = f"{i}."
        columns = {c.removeprefix(prefix): x for c, x in dataset.store.columns.items() if c.startswith(prefix)}
        found.append(part.lengths(columns))
    summed: NDArray[np.int64] = np.sum(found, axis=0)[dataset.split.rows("train")]
    return summed


def choose(
    config: Config, dataset: Dataset, *, device: torch.device, bfloat16: bool = False, world: World | None = None
) -> tuple[Config, str]:
    """Settle ``model.attention=auto``: favor attention if the training rows take less time with it, softmax otherwise.

    The time of a row grows faster than its length, so it is summed over rows, not taken of their mean length. Of
    several processes the first decides. Rows that all have fewer than 64 items, and positions that add to the
    logits, get softmax, and nothing is timed.

    Args:
        config: with model.dim and model.heads settled.
        dataset: whose training rows count.
        device: where the model is to be.
        bfloat16: whether it computes in it.
        world: the processes.

    Returns:
        A config that names the kind, and a line that says why (empty if the kind was named already).

    Raises:
        ConfigError: the model has no attention.
    """
    if config.model.attention != AUTO:
        return config, ""
    if config.model.mixer != "attention":
        raise ConfigError(
            f"model.mixer={config.model.mixer} stands in the place of attention.   Leave out model.attention={AUTO}"
        )
    found = b""
    if world is None or world.first:
        causal = not dataset.schema.inputs
        found = json.dumps(_decide(config, lengths(dataset), device, bfloat16, causal)).encode()
    kind, why = json.loads((found if world is None else world.share(found, starting=True)[0]).decode())
    config = config.model_copy(deep=True)
    config.model.attention = kind
    return config, f"attention     auto: {why}"


def _decide(
    config: Config, rows: NDArray[np.int64], device: torch.device, bfloat16: bool, causal: bool
) -> tuple[str, str]:
    heads, key = config.model.heads, config.model.dim // max(1, config.model.heads)
    least, longest = (int(rows.min()), int(rows.max())) if len(rows) else (0, 0)
    if longest < LEAST:
        return "softmax", f"softmax: rows of at most {amount(longest)} items are too short for another kind to pay"
    if config.model.position in BIASED:
        return "softmax", f"softmax: position {config.model.position} adds to its logits, and favor attention has none"
    began = time.perf_counter()
    found = race(heads, key, causal=causal, longest=longest, device=device, bfloat16=bfloat16)
    ratio = float(found.cost("favor", rows).sum() / found.cost("softmax", rows).sum())
    at, spent = found.length, time.perf_counter() - began
    from_ = f"it is faster from about {amount(float(f'{at:.2g}'))} items on" if at < 1e6 else "it is never faster"
    data = f"{amount(least)} to {amount(longest)} items a row" if least < longest else f"{amount(longest)} items a row"
    if ratio < 1:
        return FAVOR, f"{FAVOR} takes {ratio:.2f} of the time of softmax here ({data}; {from_}; timed in {spent:.1f} s)"
    return (
        "softmax",
        f"softmax; {FAVOR} would take {ratio:.1f} times as long here ({data}; {from_}; timed in {spent:.1f} s)",
    )
