"""Whole layers: what attention costs beside the rest of one, and the lectures' table of layer types, measured.

    python benchmarks/layer.py                        tables, docs/layers.png
    python benchmarks/layer.py --length 512 --lengths 128 512 --widths 64 128 --no-picture

*First*, a Transformer layer (512 wide, 8 heads, 2048 inside its feed-forward, L = 2048) with each kind of attention,
beside the same layer whose attention returns its values, and torch's own: asked of favor are at most 1.3 times the time
of the former forward, 1.4 forward and backward.

*Second*, layers that mix items, with their projections: self-attention, restricted to a window, linear, recurrent,
convolutional. Time by length and by width, and by which power it grows between the largest two; beside it what theory
says of time, of steps that must follow each other, and of how many layers it takes until an item knows all others.
"""

import argparse
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from candidate import KINDS
from mapsto import kinds
from mapsto.attention import Attention
from mapsto.collection import Collection
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.transformer import Encoder
from mapsto.process import tune_process
from mapsto.stream import stream
from race import Time, race, table

ASKED = {False: 1.3, True: 1.4}

THEORY = {  # L items, D wide, K = D/H a head, m features, window w, kernel k: time beside O(L D²), steps, layers
    "softmax": ("L² D", "1", "1"),
    "hard": ("L² D", "1", "1"),
    "window": ("L w D", "1", "L / w"),
    "favor": ("L m D", "1", "1"),
    "favor causal": ("L m D", "L / 64", "1"),
    "memory": ("L K D", "1", "1"),
    "memory causal": ("L K D", "L / 64", "1"),
    "CompositeMemory": ("L D²", "scan", "1"),
    "GatedMemory": ("L D²", "scan", "1"),
    "torch GRU": ("L D²", "L", "1"),
    "torch Conv1d, 7": ("k L D²", "1", "L / k"),
    "torch attention": ("L² D", "1", "1"),
}


class Values(Attention):
    """The limit: attention that returns its values."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **seen: Any) -> Tensor:
        """V."""
        return v

    def start(self, like: Tensor, capacity: int, **sizes: int) -> None:
        """Nothing to keep."""

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **seen: Any) -> tuple[Tensor, Any]:
        """V."""
        return v, state

    def write(self, k: Tensor, v: Tensor, state: Any, **seen: Any) -> Any:
        """Nothing is kept."""
        return state

    def read(self, q: Tensor, state: Any) -> Tensor:
        """Nothing is known."""
        return torch.zeros_like(q)


def items(length: int, dim: int) -> Tensor:
    return torch.randn(1, length, dim, generator=stream(0, "items"))


def caller(layer: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor, learn: bool) -> Callable[[], None]:
    """Both ways includes the gradients of weights and of items, as inside a model."""
    x = x.clone().requires_grad_(learn)

    def forward() -> None:
        with torch.no_grad():
            call(x)

    def both() -> None:
        x.grad = None
        layer.zero_grad()
        call(x).sum().backward()

    return both if learn else forward


def collection(x: Tensor) -> Collection:
    return Collection(x, torch.ones(x.shape[:2], dtype=torch.bool))


def ours(name: str) -> Any:
    return kinds.make("attention", KINDS[name])


def there(names: list[str]) -> list[str]:
    return [n for n in names if n in kinds.names("attention")]


def whole(args: argparse.Namespace, learn: bool, causal: bool) -> dict[str, Time]:
    dim, heads, hidden = args.dim, 8, 4 * args.dim
    calls = {}
    made: dict[str, Any] = {"values": Values(), **{name: ours(name) for name in there(args.attention)}}
    x = items(args.length, dim)
    for name, attention in made.items():
        layer = Encoder(dim, 1, heads, attention=attention, hidden=hidden)
        calls[name] = caller(layer, lambda x, e=layer: e(collection(x), causal=causal).items, x, learn)
    own = nn.TransformerEncoderLayer(dim, heads, hidden, 0.0, "gelu", batch_first=True, norm_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(args.length) if causal else None
    calls["torch"] = caller(own, lambda x: own(x, src_mask=mask, is_causal=causal), x, learn)
    return {name: time.by(args.clock) for name, time in race(calls, args.rounds, args.budget).items()}


def mixing(name: str, dim: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """A layer and a call of it."""
    kind, _, way = name.partition(" ")
    if name == "torch GRU":
        gru = nn.GRU(dim, dim, batch_first=True)
        return gru, lambda x: gru(x)[0]
    if name.startswith("torch Conv1d"):
        convolution = nn.Conv1d(dim, dim, 7, padding=3)
        return convolution, lambda x: convolution(x.mT).mT
    if name == "torch attention":
        own = nn.MultiheadAttention(dim, 8, batch_first=True)
        return own, lambda x: own(x, x, x, need_weights=False)[0]
    if name.endswith("Memory"):
        from mapsto.nn import memory

        recall = memory.Recall(getattr(memory, name), dim, both=False)
        return recall, lambda x: recall(collection(x))
    layer = MultiheadAttention(dim, 8, attention=ours(kind))
    return layer, lambda x: layer(collection(x), causal=way == "causal")


def types(args: argparse.Namespace) -> list[str]:
    recurrent = importlib.util.find_spec("mapsto.nn.memory") is not None
    known = there(args.attention)
    return [
        name
        for name in THEORY
        if (recurrent if name.endswith("Memory") else name.startswith("torch") or name.split()[0] in known)
    ]


def grow(names: list[str], sizes: list[tuple[int, int]], args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each layer at each (length, width), forward."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for length, dim in sizes:
        x = items(length, dim)
        calls = {name: caller(*mixing(name, dim), x, False) for name in names}
        for name, time in race(calls, args.rounds, args.budget).items():
            found[name].append(1e3 * time.by(args.clock).minimum)
    return found


def power(sizes: list[int], times: list[float]) -> str:
    if len(sizes) < 2:
        return ""
    return f"{math.log(times[-1] / times[-2]) / math.log(sizes[-1] / sizes[-2]):.2f}"


def picture(args: argparse.Namespace, by_length: dict[str, list[float]], by_width: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", sharey=True)
    given = (
        (args.lengths, by_length, f"items, {args.dim} wide"),
        (args.widths, by_width, f"width, {args.length} items"),
    )
    for axes, (sizes, found, label) in zip(panels, given, strict=True):
        for i, (name, times) in enumerate(found.items()):
            line = "--" if name.startswith("torch") else "-"
            axes.plot(sizes, times, line, marker="o", ms=3, color=plt.get_cmap("tab20")(i), label=name)
        axes.set(xscale="log", yscale="log", xlabel=label, xticks=sizes, xticklabels=sizes)
        axes.minorticks_off()
    panels[0].set(ylabel="ms forward, one row")
    panels[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    path = Path(__file__).parents[1] / "docs" / "layers.png"
    figure.savefig(path, dpi=110)
    print(f"\ndocs/{path.name} is written")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--lengths", type=int, nargs="*", default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--widths", type=int, nargs="*", default=[128, 256, 512, 1024])
    parser.add_argument("--attention", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=20.0, help="seconds a row")
    parser.add_argument("--clock", choices=["wall", "cpu"], help="cpu by default for one thread")
    parser.add_argument("--no-picture", action="store_true")
    args = parser.parse_args()
    args.clock = args.clock or ("cpu" if args.threads == 1 else "wall")
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, {args.clock} time; {tune_process()}\n")
    rows: list[list[object]] = []
    for causal in (False, True):
        for learn in (False, True):
            times = whole(args, learn, causal)
            for name in (n for n in times if n != "values"):
                small, median = times[name].over(times["values"])
                way = f"{'causal, ' if causal else ''}{'forward and backward' if learn else 'forward'}"
                asked = ASKED[learn] if name == "favor" and not causal else None
                ms = f"{1e3 * times[name].minimum:.1f}", f"{1e3 * times['values'].minimum:.1f}"
                rows.append([f"{name}, {way}", *ms, f"{small:.2f}", f"{median:.2f}", asked])
    first = f"layer of {args.dim}, L = {args.length}"
    table(rows, [first, "ms", "of values: ms", "ratio of minima", "of medians", "asked"])
    print()
    names = types(args)
    by_length = grow(names, [(length, args.dim) for length in args.lengths], args)
    by_width = grow(names, [(args.length, dim) for dim in args.widths], args)
    header = ["mixing layer", *(f"L={n}" for n in args.lengths), "power of L", *(f"D={n}" for n in args.widths)]
    rows = [
        [
            name,
            *by_length[name],
            power(args.lengths, by_length[name]),
            *by_width[name],
            power(args.widths, by_width[name]),
            *THEORY[name],
        ]
        for name in names
    ]
    table(rows, [*header, "power of D", "time, theory", "steps", "layers to know all"])
    print(f"\nms forward, one row, D = {args.dim} by length, L = {args.length} by width; projections O(L D²) included")
    if not args.no_picture:
        picture(args, by_length, by_width)


if __name__ == "__main__":
    main()
