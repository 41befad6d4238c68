"""An associative memory: write pairs of key and value, ask with a noisy key, and see how many values come back.

    python examples/retrieval.py

A store of fixed size (``memory`` with 64 × 64 numbers, ``favor`` with its features × 64) against a cache that keeps every
key (``softmax``). Each value is one of as many directions as there are pairs; it is found if the answer is nearest to it.
What was written long ago is forgotten by ``memory:0.9``: it finds the last pairs, and only those.
"""

import torch
import torch.nn.functional as F

from mapsto import kinds
from mapsto.stream import stream

WIDTH, NOISE, TRIALS = 64, 0.1, 4
SHARP = 24.0  # β q·k of a key with itself: how far the right one stands out
KINDS = ("softmax", "favor:256", "favor:2048", "memory", "memory:0.9")


@torch.no_grad()
def found(kind: str, pairs: int, seed: int = 0) -> torch.Tensor:
    """For each pair, in the order of writing, the share of trials that its value was found in."""
    source = stream(seed, "retrieval", pairs)
    keys = F.normalize(torch.randn(TRIALS, 1, pairs, WIDTH, generator=source), dim=-1)
    values = F.normalize(torch.randn(TRIALS, 1, pairs, WIDTH, generator=source), dim=-1)
    asked = F.normalize(keys + NOISE * torch.randn(keys.shape, generator=source) / WIDTH**0.5, dim=-1)
    scale = (SHARP * WIDTH**0.5) ** 0.5
    keys, asked = scale * keys, scale * asked
    attention = kinds.make("attention", kind).bind(1, WIDTH)
    memory = attention.start(keys, pairs, batch=TRIALS, heads=1, key=WIDTH, value=WIDTH)
    for i in range(pairs):
        memory = attention.write(keys[:, :, i : i + 1], values[:, :, i : i + 1], memory)
    answers = attention.read(asked, memory)
    nearest = (answers @ values.transpose(-1, -2)).argmax(-1)
    return (nearest == torch.arange(pairs)).float().mean((0, 1))


def main() -> None:
    """Print a row a kind."""
    counts = (4, 16, 64, 256)
    print("share of values found again, of so many pairs written".ljust(56), "and of the last 4 of 256")
    print("attention".ljust(14) + "".join(f"{n:>10}" for n in counts))
    for kind in KINDS:
        shares = [found(kind, n) for n in counts]
        print(
            kind.ljust(14)
            + "".join(f"{float(s.mean()):>10.2f}" for s in shares)
            + f"{float(shares[-1][-4:].mean()):>20.2f}"
        )


if __name__ == "__main__":
    main()
