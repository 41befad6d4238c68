"""What models that write sequences reach on real data, each beside its reference, on two CPU threads.

    python benchmarks/sequences.py                  all but those of an hour (about 40 minutes)
    python benchmarks/sequences.py words play
    python benchmarks/sequences.py translation      an hour

Splits and seeds are printed by the runs themselves (``--verbose``). Errors and distances are fractions, BLEU has its
signature, losses are nats. Simple models stand beside: n-grams with back-off, and the source itself.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import quality
import recipe
from mapsto.tasks.score import answer
from quality import Row, fit, less, main

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def beside(result: Row, metric: str) -> str:
    """The simple models' values of a metric."""
    found = {name: values.get(metric) for name, values in result["baselines"].items()}
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items() if value is not None)


def toys() -> list[Row]:
    """Strings of up to ten letters, written as they are and backwards."""
    rng = np.random.default_rng(0)
    found = []
    for name, act in (("copy", lambda s: s), ("reverse", lambda s: s[::-1])):
        lengths = rng.integers(1, 11, 12_000)
        strings = list(dict.fromkeys("".join(rng.choice(list(LETTERS), n)) for n in lengths))
        rows = [{"from": s, "to": act(s)} for s in strings]
        _, result = fit(TOYS, rows, inputs=["from:sequence"], targets=["to:sequence"])
        exact = result["metrics"]["exact_match"]
        found.append(
            quality.row(f"{name}, up to 10 letters", exact, 0.99, result["seconds"], 120, beside(result, "exact_match"))
        )
    return found


def words() -> list[Row]:
    """The demo as it ships."""
    _, result = quality.demo("words")
    note = f"perplexity {result['metrics']['perplexity']:.3f}; {beside(result, 'perplexity')}"
    return [less("words, 4,700, stress kept: PER", result["metrics"]["per"], 0.20, result["seconds"], 180, note)]


def dictionary(
    settings: dict[str, Any] | None = None, limit: int = 600, asked: tuple[float, float] = (0.11, 0.084)
) -> list[Row]:
    """The whole CMU dictionary, with the marks of stress and without."""
    rows = recipe.cmudict()
    plain = [r | {"sounds": [s.rstrip("012") for s in r["sounds"]]} for r in rows]  # type: ignore[attr-defined]
    found = []
    for name, some, aim in (("stress kept", rows, asked[0]), ("without stress", plain, asked[1])):
        _, result = fit(settings or DICTIONARY, some, inputs=["word:sequence"], targets=["sounds:sequence"])
        wrong = 1 - result["metrics"]["exact_match"]
        note = (
            f"words wrong {wrong:.3f}; perplexity {result['metrics']['perplexity']:.3f}; {beside(result, 'perplexity')}"
        )
        found.append(less(f"CMUdict, {name}: PER", result["metrics"]["per"], aim, result["seconds"], limit, note))
    return found


def dictionary_hour() -> list[Row]:
    """The same in an hour."""
    return dictionary(DICTIONARY | DICTIONARY_HOUR, 3600, (0.075, 0.058))


def translation() -> list[Row]:
    """Multi30k, English to German, the published split."""
    _, result = fit(TRANSLATION, recipe.multi30k(), inputs=["english:sequence"], targets=["german:sequence"])
    metrics = result["metrics"]
    signature = "sacrebleu's defaults"
    note = f"chrF {metrics['chrf']:.1f}, perplexity {metrics['perplexity']:.2f}, {signature}; copy {beside(result, 'bleu')}"
    return [quality.row("Multi30k en-de: BLEU", metrics["bleu"], 25, result["seconds"], 3600, note)]


def play() -> list[Row]:
    """Tiny Shakespeare by nanoGPT's recipe for CPUs: the last tenth validates; a plain loop of the same recipe beside."""
    text = recipe.tiny_shakespeare()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "play.txt")
        path.write_text(text, encoding="utf8")
        settings = PLAY | {"data.source": str(path)}
        run, result = fit(settings, inputs=[], targets=[])
        nll = [answer(run.model, run.feed(part)).nll["text"] for part in ("val", "test")]
    last_tenth = float(np.concatenate(nll).mean())
    plain, seconds = plain_loop(text)
    note = f"a plain loop of the recipe: {plain:.4f} in {seconds:.0f} s; {beside(result, 'nll')}"
    return [less("tiny Shakespeare, 2,000 steps: nats", last_tenth, 1.85, result["seconds"], seconds, note)]


class Plain(nn.Module):
    """The recipe's model, written plainly: 4 blocks, 4 heads, 128 wide, learned positions, tied, no dropout."""

    def __init__(self, size: int, context: int = 64, dim: int = 128, depth: int = 4, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.tokens, self.places = nn.Embedding(size, dim), nn.Embedding(context, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth + 1))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(dim, 4 * dim) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(4 * dim, dim) for _ in range(depth))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Log-odds of what follows each."""
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for i, (qkv, out, up, down) in enumerate(zip(self.qkv, self.out, self.up, self.down, strict=True)):
            parts = qkv(self.norms[2 * i](x)).chunk(3, -1)
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
            x = x + out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            x = x + down(F.gelu(up(self.norms[2 * i + 1](x))))
        return self.norms[-1](x) @ self.tokens.weight.T


def plain_loop(text: str, steps: int = 2000, context: int = 64, rows: int = 12) -> tuple[float, float]:
    """Validation nats and seconds of the plain loop: batches at random places, warm-up of 100 steps, cosine to a tenth."""
    torch.manual_seed(0)
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(c) for c in text])
    cut = int(0.9 * len(ids))
    model = Plain(len(letters))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)
    started = time.perf_counter()
    for step in range(steps):
        share = (step + 1) / 100 if step < 100 else 0.1 + 0.45 * (1 + np.cos(np.pi * (step - 100) / (steps - 100)))
        for group in adam.param_groups:
            group["lr"] = 1e-3 * share
        at = torch.randint(cut - context - 1, (rows,))
        batch = torch.stack([ids[i : i + context + 1] for i in at])
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
    seconds = time.perf_counter() - started
    left = ids[cut:]
    windows = left[: (len(left) - 1) // context * context + 1].unfold(0, context + 1, context)
    with torch.no_grad():
        nll = [
            F.cross_entropy(model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten(), reduction="sum")
            for w in windows.split(64)
        ]
    return float(sum(nll)) / (len(windows) * context), seconds


def chorales() -> list[Row]:
    """Chorales on a grid of sixteenths, four symbols a step: nats a symbol, with absolute and with relative positions."""
    found = []
    for position in ("sinusoidal", "relative"):
        settings = CHORALES | {"model.position": position}
        run, result = fit(settings, recipe.chorales(), inputs=["nothing"], targets=["symbols:sequence"])
        val = float(answer(run.model, run.feed("val")).nll["symbols"].mean())
        note = f"test {result['metrics']['nll']:.4f}; test of {beside(result, 'nll')}"
        found.append(less(f"chorales, {position}: val nats", val, None, result["seconds"], None, note))
    return found


TOYS = {
    "input.vocabulary": "characters",
    "output.vocabulary": "characters",
    "model.dim": 64,
    "model.depth": 2,
    "model.heads": 4,
    "model.dropout": 0.0,
    "train.lr": 3e-3,
    "train.batch_tokens": 2048,
    "train.epochs": 20,
    "output.beam": 1,
}
DICTIONARY = {
    "input.vocabulary": "characters",
    "model.dim": 96,
    "model.depth": 2,
    "model.heads": 4,
    "model.dropout": 0.0,
    "train.lr": 4e-3,
    "train.batch_tokens": 1024,
    "train.average": 0.999,
    "time": "520s",
}
DICTIONARY_HOUR = {
    "model.dim": 128,
    "model.depth": 3,
    "model.dropout": 0.1,
    "train.lr": 3e-3,
    "train.smoothing": 0.1,
    "time": "3300s",
}
TRANSLATION = {
    "data.split": "split",
    "input.vocabulary": "subwords",
    "input.vocabulary_size": 6000,
    "output.vocabulary": "subwords",
    "output.vocabulary_size": 6000,
    "model.dim": 256,
    "model.depth": 3,
    "model.heads": 4,
    "model.dropout": 0.2,
    "train.lr": 1e-3,
    "train.smoothing": 0.1,
    "train.batch_tokens": 2048,
    "train.average": 0.998,
    "time": "3000s",
}
PLAY = {
    "data.shares": [0.9, 0.05, 0.05],
    "output.vocabulary": "characters",
    "output.limit": 64,
    "model.dim": 128,
    "model.depth": 4,
    "model.heads": 4,
    "model.dropout": 0.0,
    "model.position": "learned",
    "train.lr": 2e-3,
    "train.batch_tokens": 768,
    "train.batch_rows": 12,
    "train.steps": 2000,
    "train.average": 0.995,
    "train.weight_decay": 0.1,
    "train.evaluate_every": 2000,
}
CHORALES = {
    "data.split": "split",
    "output.limit": 512,
    "model.dim": 128,
    "model.depth": 3,
    "model.heads": 4,
    "model.dropout": 0.2,
    "train.lr": 2e-3,
    "train.batch_tokens": 4096,
    "train.epochs": 20,
    "train.average": 0.995,
}
CLAIMS: dict[str, Callable[[], list[Row]]] = {
    f.__name__: f for f in (toys, words, play, chorales, dictionary, dictionary_hour, translation)
}
LONG = ("dictionary_hour", "translation")


if __name__ == "__main__":
    main(__doc__, CLAIMS, [name for name in CLAIMS if name not in LONG])
