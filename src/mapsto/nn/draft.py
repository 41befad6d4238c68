"""What a decoder remembers of the items it has been given so far, and of the memory they ask."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mapsto.collection import Collection
from mapsto.functional.cache import longest
from mapsto.functional.state import State
from mapsto.nn.position import Position
from mapsto.nn.product import Products

__all__ = ["Draft", "Foreseen", "Now"]


@dataclass(frozen=True)
class Now:
    """What one step is about, the same for all blocks.

    Attributes:
        x: the new items at the entrance: where they are, and which exist.
        valid: which of the new items exist, first in each row; None if all do.
        position: tells queries and keys their places.
        known: where all items so far are, the new ones included; only asked if the position has a bias.
        first: the rank of each row's first new item.
        product: of items and weights.
    """

    x: Collection
    valid: Bool[Tensor, "R T"] | None
    position: Position
    known: Collection | None
    first: int | Int[Tensor, " R"]
    product: Products


@dataclass(frozen=True)
class Draft:
    """The state of a stack of blocks between steps.

    Attributes:
        own: a state of each block's self-attention.
        memory: a state of each block's cross-attention; empty where there is no memory.
        owner: (R,) which row of the memory each row asks: rows that search from one source share it.
        product: of few items and the weights, which it keeps prepared for that.
        places: (R, C, P) where the items so far are, if a bias will ask for them.
        length: (R,) how many items each row has.
        filled: the most that a row can have by now. A Python number, so that no step waits for the device.
        even: whether all rows have ``filled`` items.
    """

    own: tuple[State, ...]
    memory: tuple[State, ...]
    owner: Int[Tensor, " R"]
    product: Products
    places: Float[Tensor, "R C P"] | None
    length: Int[Tensor, " R"]
    filled: int = 0
    even: bool = True

    def select(self, rows: Int[Tensor, " N"]) -> "Draft":
        """Some rows in a new order; a row may be taken several times. The memory moves only if owners do."""
        owner = self.owner[rows]
        same = owner.shape == self.owner.shape and torch.equal(owner, self.owner)
        return replace(
            self,
            own=tuple(state.select(rows) for state in self.own),
            memory=self.memory if same else tuple(state.select(rows) for state in self.memory),
            owner=owner,
            places=None if self.places is None else self.places[rows],
            length=self.length[rows],
        )

    def extended(self, x: Collection, valid: Bool[Tensor, "R T"] | None) -> "Draft":
        """With T more items in each row, those that are valid; states are still the old ones. Writes to places.

        Raises:
            ConfigError: places are kept, and a row would have more than there is room for.
        """
        count = x.items.shape[1]
        even = self.even and valid is None
        length = self.length + (count if valid is None else valid.sum(1))
        filled = self.filled + count
        if self.places is not None and x.places is not None:
            filled = longest(self.length, length, filled, self.places.shape[1] - 1)
            rank = self.length[:, None] + torch.arange(count, device=self.length.device)
            if valid is not None:  # the last place takes what does not exist, and is never read
                rank = rank.masked_fill(~valid, self.places.shape[1] - 1)
            self.places.scatter_(1, rank[..., None].expand(-1, -1, x.places.shape[-1]), x.places)
        return replace(self, length=length, filled=filled, even=even)

    @property
    def first(self) -> int | Int[Tensor, " R"]:
        """The rank of each row's next item."""
        return self.filled if self.even else self.length

    @property
    def known(self) -> Collection | None:
        """Where all items so far are; None if nobody asks."""
        if self.places is None:
            return None
        valid = torch.arange(self.filled, device=self.length.device) < self.length[:, None]
        return Collection(self.places.new_empty(*valid.shape, 0), valid, self.places[:, : self.filled])


@dataclass(frozen=True)
class Foreseen:
    """What stands in a draft's place where all that will be said is known from the start.

    Attributes:
        answers: at every place.
        logits: of every token there.
        first: which place each row is at.
    """

    answers: Float[Tensor, "R H D"]
    logits: Float[Tensor, "R H V"]
    first: Int[Tensor, " R"]

    def select(self, rows: Int[Tensor, " N"]) -> "Foreseen":
        """Some rows in a new order; a row may be taken several times."""
        return Foreseen(self.answers[rows], self.logits[rows], self.first[rows])

    def step(
        self, count: int, valid: Bool[Tensor, "R T"] | None
    ) -> tuple[Float[Tensor, "R 1 V"], Float[Tensor, "R T D"], "Foreseen"]:
        """Go on by ``count`` places, or by those that are valid: the log-odds at the last, the answers at all of them."""
        steps = torch.arange(count, device=self.first.device)
        at = (self.first[:, None] + steps).clamp(max=self.answers.shape[1] - 1)
        row = torch.arange(len(at), device=at.device)
        length = count if valid is None else valid.sum(1)
        last = at[row, length - 1]
        return self.logits[row, last][:, None], self.answers[row[:, None], at], replace(self, first=self.first + length)
