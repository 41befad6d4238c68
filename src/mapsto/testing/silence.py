"""A model whose random modules are at rest: the laws of values are stated without noise."""

import copy
from typing import TypeVar

from torch import nn

from mapsto.noise import Random
from mapsto.stream import Clock

__all__ = ["at", "silent"]

Module = TypeVar("Module", bound=nn.Module)


def silent(module: Module) -> Module:
    """A copy without dropout, masking or augmentation."""
    quiet = copy.deepcopy(module)
    for part in quiet.modules():
        if isinstance(part, Random):
            part.rate = 0.0
            for name in ("shift", "flip"):  # what a picture is moved by
                if hasattr(part, name):
                    setattr(part, name, 0)
    return quiet


def at(module: Module, clock: Clock) -> Module:
    """A copy whose random modules, however many they are, read a clock of their own, as at the start of a step."""
    ticking = copy.deepcopy(module)
    for layer, part in enumerate(m for m in ticking.modules() if isinstance(m, Random)):
        part.clock, part.layer, part._now, part._call = clock, layer, (-1, -1), 0
    return ticking
