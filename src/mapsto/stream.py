"""Named streams of randomness: all that is random in a run is a pure function of (seed, purpose, place).

The global generator of torch is neither read nor set, so there is no random state to save, and ranks, workers and
resumed runs cannot differ.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Clock", "entropy", "stream", "stream_numpy"]


def entropy(seed: int, purpose: str, *place: int | str) -> int:
    """64 bits that depend on all of (seed, purpose, place), and on nothing else.

    Example:
        >>> entropy(0, "dropout", 3, 1) == entropy(0, "dropout", 3, 1)
        True
        >>> entropy(0, "dropout", 3, 1) == entropy(0, "dropout", 1, 3)
        False
    """
    text = "\x1f".join((str(seed), purpose, *map(str, place)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(seed: int, purpose: str, *place: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh torch generator for one purpose at one place, such as ``stream(seed, "dropout", step, layer)``."""
    return torch.Generator(device).manual_seed(entropy(seed, purpose, *place))


def stream_numpy(seed: int, purpose: str, *place: int | str) -> np.random.Generator:
    """The same for numpy."""
    return np.random.Generator(np.random.PCG64(entropy(seed, purpose, *place)))


@dataclass
class Clock:
    """Where a training run is, shared by all modules that draw: the loop moves it, they only read it.

    Attributes:
        seed: the run's seed.
        step: the optimiser step, counted from 0.
        part: which micro-batch of the step, counted over all ranks.
    """

    seed: int = 0
    step: int = 0
    part: int = 0
