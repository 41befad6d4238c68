"""Sums whose terms are added in whatever order threads come: what makes two runs differ on a CPU."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Unordered"]


class Unordered(TorchDispatchMode):
    """Notes every ``index_put(accumulate=True)`` that adds several numbers that are not zero to one cell.

    That is the gradient of ``x[index]``, where an index occurs twice. Torch adds these by atomic operations of all
    threads, and (a + b) + c is not a + (b + c). ``torch.embedding`` and ``index_select`` add in the order of the index.

    Attributes:
        found: a text for each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look, and do it."""
        if "index_put" in str(func) and len(args) > 3 and args[3]:
            self._look(*args[:3])
        return func(*args, **(kwargs or {}))

    def _look(self, x: torch.Tensor, indices: list[torch.Tensor | None], values: torch.Tensor) -> None:
        terms = x.new_zeros(x.shape).index_put(indices, (values != 0).to(x.dtype), accumulate=True)
        if int((terms > 1).sum()):
            shapes = [None if i is None else tuple(i.shape) for i in indices]
            self.found.append(f"the gradient of {tuple(x.shape)}[{', '.join(map(str, shapes))}]")
