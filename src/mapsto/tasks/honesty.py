"""How far favor attention can be trusted in a model: what theory predicts and what is measured, by layer and head."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mapsto.attention.favor import EXPONENTIAL, FavorAttention
from mapsto.functional.attention import attend
from mapsto.functional.block import fading
from mapsto.functional.linear import wide
from mapsto.models.mapper import Batch, Mapper
from mapsto.stream import stream, stream_numpy
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.watch import RunWatcher

__all__ = ["MEASURED", "PREDICTED", "Doubt", "Trust", "cures", "listed", "place", "some", "trust"]

PREDICTED = 1.0
"""The relative variance of a weight, in the middle of all pairs, beyond which theory says that it is noise."""

MEASURED = 0.5
"""The relative error of a head's answers beyond which they are not those of softmax attention."""

MOST = 1e30  # of a variance that is written down: JSON knows no infinity
FEATURES = 4096  # more are never offered as a cure


@dataclass(frozen=True)
class Trust:
    """One head of one layer.

    Attributes:
        layer: such as "encoder 1", counted from 1.
        head: counted from 1.
        predicted: the relative variance of a weight that theory predicts, the median over pairs of query and key.
        predicted_95: its 95th percentile.
        measured: rms(favor − exact) / rms(exact) of the head's answers.
    """

    layer: str
    head: int
    predicted: float
    predicted_95: float
    measured: float

    @property
    def doubt(self) -> float:
        """Above 1 it cannot be trusted."""
        return max(self.predicted / PREDICTED, self.measured / MEASURED)


@torch.no_grad()
def trust(model: Mapper, batch: Batch, *, queries: int = 256, keys: int = 16, seed: int = 0) -> list[Trust]:
    """Judge every head with favor attention on a batch; an empty list if the model has none.

    Features with kernels of their own (relu, softplus) approximate nothing, and are not judged.

    Args:
        model: in the weights to be judged.
        batch: some rows.
        queries: at most about so many, of all rows together, are compared with exact attention.
        keys: at most so many of each query are asked for the predicted variance.
        seed: of the choice of both.

    Cost: one forward, and exact attention for the chosen queries of each layer.
    """
    found: list[Trust] = []
    hooks = []

    def hooked(name: str) -> Any:
        def judge(module: FavorAttention, inputs: Any, given: dict[str, Any], out: Tensor) -> None:
            if name not in seen:
                seen.add(name)
                q, k, v = inputs
                source = stream(seed, "honesty", name)
                found.extend(_judge(place(name), module, (q, k, v), given, out, queries, keys, source))

        return judge

    seen: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, FavorAttention) and module.feature in EXPONENTIAL:
            hooks.append(module.register_forward_hook(hooked(name), with_kwargs=True))
    training = model.training
    try:
        if hooks:
            model.eval()
            model.answers(batch)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training)
    return found


def _judge(
    layer: str,
    module: FavorAttention,
    tensors: tuple[Tensor, Tensor, Tensor],
    given: Mapping[str, Any],
    out: Tensor,
    queries: int,
    keys: int,
    source: torch.Generator,
) -> list[Trust]:
    q, k, v = (t.to(wide(t.dtype)) for t in tensors)
    index, visible = _chosen(q, k, given, queries, source)
    real = visible.any(-1)
    q, out = (t.gather(2, index[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3])) for t in (q, out))
    valid, fade = given.get("valid"), given.get("decay")
    bias = None
    if fade is not None:
        fade = fading(fade, None if valid is None else valid[:, None])
        own = fade.gather(2, index[:, None].expand(-1, fade.shape[1], -1))
        bias = lambda a, b: (own[:, :, a, None] - fade[:, :, None, b]).clamp(max=0)  # noqa: E731
    exact = attend(q, k, v, valid=valid, allowed=visible[:, None], bias=bias).double()
    off = (out.double() - exact).square().sum(-1).mul(real[:, None]).sum((0, 2))
    size = exact.square().sum(-1).mul(real[:, None]).sum((0, 2))
    drawn = torch.rand(visible.shape, generator=source).to(q.device).masked_fill(~visible, -1.0)
    chosen = drawn.topk(min(keys, visible.shape[-1]), -1)
    pairs = k[torch.arange(len(k), device=k.device)[:, None, None], :, chosen.indices]  # (B, S, T, H, K)
    logs = module.variance(q.transpose(1, 2)[:, :, None], pairs)[chosen.values >= 0]  # (pairs, H)
    if not len(logs):
        return []
    middle, high = torch.quantile(logs, torch.tensor([0.5, 0.95], dtype=logs.dtype, device=logs.device), dim=0)
    error = (off / size.clamp(min=1e-300)).sqrt()
    columns = [_plain(t.exp()) for t in (middle, high)] + [_plain(error)]
    return [Trust(layer, head, *values) for head, values in enumerate(zip(*columns, strict=True), 1)]


def _chosen(
    q: Tensor, k: Tensor, given: Mapping[str, Any], queries: int, source: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(B, S) ranks of queries that exist, and (B, S, M) which keys they see."""
    batch, asked, there = q.shape[0], q.shape[2], k.shape[2]
    valid, segment = given.get("valid"), given.get("segment")
    exists = torch.ones(batch, there, dtype=torch.bool, device=q.device) if valid is None else valid
    asks = exists if asked == there else exists.new_ones(batch, asked)
    drawn = torch.rand(batch, asked, generator=source).to(q.device).masked_fill(~asks, -1.0)
    best = drawn.topk(min(asked, math.ceil(queries / max(1, batch))), -1)
    visible = exists[:, None] & (best.values >= 0)[..., None]
    if given.get("causal"):
        visible = visible & (torch.arange(there, device=q.device) <= best.indices[..., None])
    if segment is not None:
        visible = visible & (segment.gather(1, best.indices)[..., None] == segment[:, None])
    return best.indices, visible


def _plain(values: Tensor) -> list[float]:
    return [float(f"{x:.6g}") for x in values.nan_to_num(MOST, MOST).clamp(max=MOST).tolist()]


def place(name: str) -> str:
    """A layer as people count.

    Example:
        >>> place("encoder.blocks.0.attention.attention")
        'encoder 1'
    """
    parts = re.fullmatch(r"(\w+)\.blocks\.(\d+)\.(\w+?)(?:\.attention)?", name)
    if parts is None:
        return name.removesuffix(".attention")
    cross = "" if parts[3] == "attention" else f" {parts[3]}"
    return f"{parts[1]} {int(parts[2]) + 1}{cross}"


def some(feed: StoreFeed, *, count: int = 8, seed: int = 0) -> Batch | None:
    """A batch of a few rows of a feed, always the same ones, that fits its budget; None if it has no rows."""
    order = stream_numpy(seed, "honesty", len(feed.rows)).permutation(len(feed.rows))[:count]
    while len(order) > 1 and len(order) * int(feed.lengths[order].max()) > feed.tokens:
        order = order[:-1]
    return feed.batch(feed.rows[order]) if len(order) else None


class Doubt:
    """Warns once in a run when favor attention cannot be trusted, and says what to type.

    Args:
        model: as it is trained.
        feed: whose rows are looked at.
        watcher: who is told.
        seed: of the choice of rows, queries and keys.
    """

    def __init__(self, model: Mapper, feed: StoreFeed, watcher: RunWatcher, *, seed: int = 0):
        self.model, self.feed, self.watcher, self.seed = model, feed, watcher, seed
        self.judged = any(isinstance(m, FavorAttention) and m.feature in EXPONENTIAL for m in model.modules())

    def check(self) -> None:
        """Look at an evaluation, until there was something to warn of. All processes of a sharded model call it."""
        batch = some(self.feed, seed=self.seed) if self.judged else None
        if batch is None:
            return
        found = trust(self.model, batch, seed=self.seed)
        worst = max(found, key=lambda one: one.doubt, default=None)
        if worst is not None and worst.doubt > 1:
            known = "warning: favor attention cannot be trusted"
            self.watcher.once(known, f"{known}{warning(self.model, worst)}")
            self.judged = False


def warning(model: Mapper, worst: Trust) -> str:
    """What is wrong with the worst head, and what to type."""
    return (
        f": {worst.layer}, head {worst.head}: its weights have a relative variance of {_short(worst.predicted)} "
        f"(predicted, median; good below {PREDICTED:g}), its answers are off by {worst.measured:.0%} (measured; good "
        f"below {MEASURED:.0%}).   Type one of: {', '.join(cures(model, worst))}"
    )


def cures(model: Mapper, worst: Trust) -> list[str]:
    """What to type, the cheapest first."""
    found = []
    layers = [m for m in model.modules() if isinstance(getattr(m, "attention", None), FavorAttention)]
    if any(layer.log_temperature is None for layer in layers):
        found.append("model.normalise=true")
    kind = next(m for m in model.modules() if isinstance(m, FavorAttention))
    usual = FavorAttention().settings()
    wanted = kind.features * max(worst.predicted / PREDICTED, (worst.measured / MEASURED) ** 2)
    if wanted <= FEATURES:
        count = 1 << math.ceil(math.log2(max(wanted, kind.features + 1)))
        others = [f"{n}={v}" for n, v in kind.settings().items() if n != "features" and v != usual[n]]
        found.append(f"model.attention={','.join([f'favor:{count}', *others])}")
    return [*found, "model.attention=softmax"]


def listed(found: Sequence[Trust]) -> list[str]:
    """A table of text, a line a head; those that cannot be trusted are marked."""
    if not found:
        return []
    wide_name = max(len("layer"), *(len(one.layer) for one in found))
    lines = [
        "favor attention beside exact attention: relative variance of its weights (predicted), error of its answers",
        f"{'layer':<{wide_name}}  head   predicted   95 % below   measured",
    ]
    for one in found:
        mark = "   ! not to be trusted" if one.doubt > 1 else ""
        lines.append(
            f"{one.layer:<{wide_name}}  {one.head:>4}   {_short(one.predicted):>9}   {_short(one.predicted_95):>10}   "
            f"{one.measured:>8.1%}{mark}"
        )
    return lines


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 1e4 else f"{value:.0e}"
