"""What attention remembers between steps."""

from abc import ABC, abstractmethod
from typing import Self

from jaxtyping import Int
from torch import Tensor

__all__ = ["State"]


class State(ABC):
    """What a kind remembers between steps: a frozen pytree whose tensors have the batch first."""

    length: Int[Tensor, " B"]

    @abstractmethod
    def select(self, rows: Int[Tensor, " R"]) -> Self:
        """The state of some rows, in a new order (beams)."""
