"""How queries read a memory: the step between an encoder and an output."""

from abc import ABC, abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from mapsto.collection import Collection

__all__ = ["Keep", "Reader"]


class Reader(nn.Module, ABC):
    """The contract of poolings and decoders."""

    def enter(self, items: Collection) -> Collection:
        """What the encoder shall see: a class item may be put in front here."""
        return items

    @abstractmethod
    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """Answer every query from the memory."""


class Keep(Reader):
    """Every item answers for itself: the queries are the memory, and stay as they are."""

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """The queries."""
        return queries.items
