"""Whether anything leaks, over thousands of random cases; and whether numbers hold, over very long rows.

    python benchmarks/leaks.py                    10,000 cases, some minutes
    python benchmarks/leaks.py --cases 500 --steps 500 --length 16384

*Leaks*: a random kind of attention with random settings, shapes, type, mask, documents and decay is asked twice, at the
same shapes. In between, what stands at padding is replaced (noise up to ×1000, 1e38, Inf, NaN), or everything after one
place is (×1, ×10, ×1000). Answers that may not know of it, and in half of the cases the gradients, must be the same bit
for bit; and gradients of what must not be seen are exactly zero. Counted are the numbers that differ: 0 is asked. A twin
that subtracts the largest logit of all keys, as the most used port does, must be caught both ways.

*Numbers*: 10,000 steps of decoding with |q| and |k| up to 30, without a number that is not finite; rows of 131,072 items
in float32 within 1e-3 of float64. Ends with status 1 if anything is not as it should be.
"""

import argparse
import collections
import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mapsto import kinds
from mapsto.stream import stream, stream_numpy
from race import table

__all__ = ["Case", "Draw", "leaks", "main"]

Attend = Callable[..., Tensor]

SETTINGS: dict[str, Callable[[np.random.Generator], str]] = {
    "softmax": lambda r: "softmax" + r.choice(["", ":0.3"]),
    "hard": lambda r: "hard",
    "window": lambda r: f"window:{r.integers(1, 80)}" + r.choice(["", f",shared={r.integers(1, 9)}"]),
    "favor": lambda r: (
        f"favor:{r.integers(1, 80)},feature={r.choice(['optimal', 'positive', 'hyperbolic', 'relu', 'softplus'])}"
        f",coupling={r.choice(['orthogonal', 'iid', 'regularised'])}"
    ),
    "memory": lambda r: "memory" + r.choice(["", ":0.9", ":0.5", ":gated=true"]),
}


class Careless:
    """The twin: positive features stabilised by the largest logit of all keys, a small number added."""

    honours = frozenset({"decay", "segment"})

    def __init__(self, width: int):
        self.omega = torch.randn(16, width, generator=stream(0, "twin"), dtype=torch.float64)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, valid: Tensor, causal: bool, **_: Any) -> Tensor:
        f, g = (x @ self.omega.T.to(x.dtype) * x.shape[-1] ** -0.25 for x in (q, k))
        f, g = ((x - x.amax((-1, -2), keepdim=True)).exp() + 1e-4 for x in (f, g))
        weight = (f @ g.mT) * valid[:, None, None]
        weight = weight.tril() if causal else weight
        return weight / weight.sum(-1, keepdim=True).clamp(min=1e-30) @ v


@dataclasses.dataclass(frozen=True)
class Case:
    """One random question, and what of its answers may know of the change."""

    text: str
    attend: Attend
    inputs: dict[str, Tensor]
    changed: dict[str, Tensor]
    seen: dict[str, Any]
    kept: Tensor
    """(B, L): the answers that must stay."""
    hidden: Tensor
    """(B, M): the items that must not be seen by them."""
    learn: bool

    def ask(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """The answers that must stay, and the gradients of all that they may depend on."""
        x = {name: t.detach().clone().requires_grad_(self.learn) for name, t in inputs.items()}
        out = self.attend(x["q"], x["k"], x["v"], decay=x.get("decay"), **self.seen)
        given = [out.transpose(1, 2)[self.kept]]
        if self.learn:
            upstream = torch.randn(out.shape, generator=stream(0, "upstream")).to(out.dtype)
            given[0].backward(upstream.transpose(1, 2)[self.kept])
            grads = [t.grad for t in x.values()]
            given += [g.transpose(1, 2)[place] for g in grads if g is not None for place in (~self.hidden, self.hidden)]
        return [t.detach() for t in given]

    def differing(self) -> tuple[int, int]:
        """How many numbers differ, or are not zero where nothing may be seen; and how many are not finite."""
        before, after = self.ask(self.inputs), self.ask(self.changed)
        wrong = sum(int((~same(a, b)).sum()) for a, b in zip(before, after, strict=True))
        wrong += sum(int((g != 0).sum()) for g in after[2::2])
        return wrong, sum(int((~t.isfinite()).sum()) for t in before)


def same(a: Tensor, b: Tensor) -> Tensor:
    """Of the same bits, but for the sign of a zero."""
    return (a == b) | (a.isnan() & b.isnan())


class Draw:
    """Random cases; one of a seed and number is always the same."""

    def __init__(self, number: int, seed: int = 0):
        self.random = stream_numpy(seed, "leak", number)
        self.source = stream(seed, "leak", number)

    def normal(self, *shape: int) -> Tensor:
        """N(0, 1)."""
        return torch.randn(*shape, generator=self.source, dtype=torch.float64)

    def maybe(self, chance: float) -> bool:
        """True with that chance."""
        return bool(self.random.random() < chance)

    def case(self, kind: str) -> Case:
        """A case of a kind, or of the careless twin."""
        r = self.random
        batch, heads, length = (int(r.integers(1, n)) for n in (4, 4, 200))
        if self.maybe(0.1):
            length = int(r.integers(200, 700))
        width, value = int(r.integers(1, 40)), int(r.integers(1, 20))
        text = kind if kind == "careless" else SETTINGS[kind](r)
        attend: Any = Careless(width)
        if kind != "careless":
            attend = kinds.make("attention", text).bind(heads, width, self.source).eval().requires_grad_(False)
        dtype = (torch.float32, torch.float64, torch.bfloat16)[r.integers(3)]
        scale = r.choice([0.1, 1.0, 5.0])
        x = {
            "q": scale * self.normal(batch, heads, length, width),
            "k": scale * self.normal(batch, heads, length, width),
        }
        x["v"] = self.normal(batch, heads, length, value)
        causal = self.maybe(0.6)
        if causal and "decay" in attend.honours and self.maybe(0.4):
            x["decay"] = -self.normal(batch, heads, length).abs() * r.choice([0.01, 1.0])
        seen: dict[str, Any] = {"causal": causal, "valid": self.valid(batch, length)}
        if (causal or kind in ("softmax", "hard", "window")) and "segment" in attend.honours and self.maybe(0.3):
            seen["segment"] = (torch.rand(batch, length, generator=self.source) < 0.05).cumsum(1)
        if "allowed" in attend.honours and self.maybe(0.3):
            seen["allowed"] = torch.rand(1, heads, length, length, generator=self.source) < 0.7
        x = {name: t.to(dtype) for name, t in x.items()}
        if causal and self.maybe(0.6):
            hidden = (torch.arange(length) > int(r.integers(0, length))).expand(batch, -1)
            changed = {n: self.after(t, hidden) for n, t in x.items()}
            kept, what = seen["valid"] & ~hidden, "causality"
        else:
            hidden, what = ~seen["valid"], "padding"
            changed = {n: self.padding(t, hidden) for n, t in x.items()}
            kept = seen["valid"]
        learn = self.maybe(0.5)
        text = f"{what}: {text} {str(dtype)[6:]} B={batch} H={heads} L={length} K={width} V={value} " + " ".join(
            n
            for n in ("causal", "segment", "allowed", "decay", "learn")
            if seen.get(n) is True or torch.is_tensor(seen.get(n)) or n in x or (n == "learn" and learn)
        )
        return Case(text, attend, x, changed, seen, kept, hidden, learn)

    def valid(self, batch: int, length: int) -> Tensor:
        """Items first, or anywhere; some rows have none."""
        if self.maybe(0.5):
            return torch.arange(length) < torch.randint(0, length + 1, (batch, 1), generator=self.source)
        return torch.rand(batch, length, generator=self.source) < self.random.choice([0.3, 0.8])

    def after(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Other numbers, however large, in what comes later."""
        new = float(self.random.choice([1, 10, 1000])) * self.normal(*x.shape).to(x.dtype)
        if x.dim() == 3:
            return torch.where(hidden[:, None], -new.abs(), x)
        return torch.where(hidden[:, None, :, None], new, x)

    def padding(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Other numbers, or none at all, in what does not exist."""
        new = float(self.random.choice([1, 1000])) * self.normal(*x.shape).to(x.dtype)
        if self.maybe(0.7):
            odd = torch.tensor([1e38, -1e38, torch.inf, -torch.inf, torch.nan]).to(x.dtype)
            pick = torch.randint(0, 5, x.shape, generator=self.source)
            new = torch.where(torch.rand(x.shape, generator=self.source) < 0.5, odd[pick], new)
        return torch.where(hidden[:, None] if x.dim() == 3 else hidden[:, None, :, None], new, x)


def leaks(kind: str, cases: int, seed: int = 0) -> tuple[collections.Counter[str], list[str]]:
    """Counts of cases, numbers that differ and numbers that are not finite; and the first few cases that leak."""
    found: collections.Counter[str] = collections.Counter()
    told: list[str] = []
    for number in range(cases):
        case = Draw(number, seed).case(kind)
        what = case.text.partition(":")[0]
        wrong, infinite = case.differing()
        found[what] += 1
        found[f"{what} leaks"] += wrong > 0
        found["differing"] += wrong
        found["not finite"] += infinite
        if (wrong or infinite) and len(told) < 5:
            told.append(f"case {number}: {case.text}: {wrong} differ, {infinite} not finite")
    return found, told


def upto(norm: float, seed: int, *shape: int) -> Tensor:
    """Vectors of any direction, of any length up to a norm."""
    x = torch.randn(*shape, generator=stream(seed, "norm"))
    length = torch.rand(*shape[:-1], 1, generator=stream(seed, "length"))
    return norm * length * x / x.norm(dim=-1, keepdim=True)


@torch.no_grad()
def decode(text: str, steps: int, width: int, heads: int = 2) -> tuple[int, float]:
    """Numbers that are not finite in so many steps, and the error of the last ones against float64, written at once."""
    attend = kinds.make("attention", text).bind(heads, width, stream(0, "features")).eval()
    q, k = (upto(30.0, s, 1, heads, steps, width) for s in (0, 1))
    v = torch.randn(1, heads, steps, width, generator=stream(2, "norm"))
    state = attend.start(q, steps, batch=1, heads=heads, key=width, value=width)
    bad, last = 0, []
    for t in range(steps):
        at = slice(t, t + 1)
        out, state = attend.step(q[:, :, at], k[:, :, at], v[:, :, at], state)
        bad += int((~out.isfinite()).sum())
        last.append(out)
    truth = attend.double()(q.double(), k.double(), v.double(), causal=True)[:, :, -100:]
    return bad, relative(torch.cat(last[-100:], 2), truth)


@torch.no_grad()
def long(text: str, length: int, causal: bool, scale: float, width: int = 64) -> float:
    """Relative error of float32 in one long row."""
    attend = kinds.make("attention", text).bind(1, width, stream(0, "features")).eval()
    q, k, v = (
        s * torch.randn(1, 1, length, width, generator=stream(i, "x")) for i, s in enumerate((scale, scale, 1.0))
    )
    out = attend(q, k, v, causal=causal)
    return relative(out, attend.double()(q.double(), k.double(), v.double(), causal=causal))


def relative(x: Tensor, truth: Tensor) -> float:
    return float((x.double() - truth).norm() / truth.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="over all kinds")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=131_072)
    parser.add_argument("--attention", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    there = [kind for kind in args.attention if kind in kinds.names("attention")]
    wrong: list[str] = []
    counted = ("padding", "padding leaks", "causality", "causality leaks", "differing", "not finite")
    rows: list[list[object]] = []
    for kind in [*there, "careless"]:
        cases = math.ceil(args.cases / len(there)) if kind != "careless" else 100
        found, told = leaks(kind, cases, args.seed)
        rows.append([kind, *(found[name] for name in counted)])
        if kind != "careless":
            wrong += told
        elif not (found["padding leaks"] and found["causality leaks"]):
            wrong.append("the careless twin was not caught")
    table(rows, ["kind", *counted])
    print()
    rows = []
    for text in (t for t in ("favor:256", "memory", "memory:0.99", "window:256") if t.partition(":")[0] in there):
        for width in (16, 64, 256):
            bad, error = decode(text, args.steps, width)
            rows.append([f"{text}, K = {width}, |q|, |k| <= 30", args.steps, bad, error])
            if bad:
                wrong.append(f"{text}: {bad} numbers of {args.steps} steps are not finite at K = {width}")
    table(rows, ["decoding", "steps", "not finite", "relative error of the last 100"])
    print()
    rows = []
    for text in (t for t in ("favor:256", "memory", "window:256") if t.partition(":")[0] in there):
        for causal, scale in ((False, 0.5), (False, 2.0), (True, 0.5), (True, 2.0)):
            error = long(text, args.length, causal, scale)
            place = f"{text}, {args.length} items, {'causal' if causal else 'both ways'}, q and k ~ {scale:g} N(0, 1)"
            rows.append([place, error, 1e-3])
            if not error <= 1e-3:
                wrong.append(f"{place}: relative error {error:.1e}")
    table(rows, ["float32 against float64", "relative error", "asked"])
    for line in wrong:
        print("WRONG", line)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
