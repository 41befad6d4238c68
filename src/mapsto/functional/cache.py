"""The keys and values a decoder has written so far, in room kept for all that are to come."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils import _pytree

from mapsto.errors import ConfigError
from mapsto.functional.block import Bias
from mapsto.functional.state import State

__all__ = ["Cache", "longest"]


def longest(before: Int[Tensor, " B"], length: Int[Tensor, " B"], filled: int, capacity: int) -> int:
    """The longest that a row can be after a piece: ``filled``, or what it is where that would be more than there is room.

    Args:
        before: how many places of each row were written.
        length: how many are now.
        filled: the longest a row can be, if it had all of every piece.
        capacity: the most that there is room for.

    Raises:
        ConfigError: a row grew beyond the capacity.
    """
    if filled <= capacity:
        return filled
    # Ragged pieces may be shorter than they look: only now is it worth waiting for the device.
    most = int(length.max()) if len(length) else 0
    if most > capacity:
        raise ConfigError(
            f"attention: the cache holds {capacity} places a row, {int(before.max())} are written "
            f"and {int((length - before).max())} more came. Start it with a capacity of at least {most}"
        )
    return most


@dataclass(frozen=True)
class Cache(State):
    """What the kinds of attention that look back at every key remember between steps.

    Attributes:
        keys: (B, H, C + 1, K): what is written and, up to ``filled``, zeros. The last place takes what is not valid.
        values: (B, H, C + 1, V) likewise.
        length: how many places of each row are written.
        filled: the longest a row can be by now. A Python number, so that no step waits for the device.
        even: whether all rows are ``filled`` long, so that nothing needs a mask.
    """

    keys: Float[Tensor, "B H C K"]
    values: Float[Tensor, "B H C V"]
    length: Int[Tensor, " B"]
    filled: int = 0
    even: bool = True

    @classmethod
    def start(cls, like: Tensor, capacity: int, *, batch: int, heads: int, key: int, value: int) -> "Cache":
        """An empty cache for up to ``capacity`` places a row, of the type and device of ``like``."""
        if capacity < 0:
            raise ConfigError(f"attention: a cache of {capacity} places; expected 0 or more")
        return Cache(
            like.new_zeros(batch, heads, capacity + 1, key),
            like.new_zeros(batch, heads, capacity + 1, value),
            torch.zeros(batch, dtype=torch.int64, device=like.device),
        )

    @property
    def capacity(self) -> int:
        """C, the most places a row can have."""
        return self.keys.shape[2] - 1

    @property
    def held(self) -> tuple[Float[Tensor, "B H M K"], Float[Tensor, "B H M V"]]:
        """Keys and values up to the longest row."""
        return self.keys[:, :, : self.filled], self.values[:, :, : self.filled]

    @property
    def valid(self) -> Bool[Tensor, "B M"] | None:
        """Which of the held places exist; None if all do."""
        if self.even:
            return None
        return torch.arange(self.filled, device=self.length.device) < self.length[:, None]

    @torch.no_grad()
    def select(self, rows: Int[Tensor, " R"]) -> "Cache":
        """The state of some rows, in a new order; a row may be taken several times. Copies what is written only."""

        def copy(x: Tensor) -> Tensor:
            room = x.new_empty(len(rows), *x.shape[1:])
            torch.index_select(x[:, :, : self.filled], 0, rows, out=room[:, :, : self.filled])
            return room

        return Cache(copy(self.keys), copy(self.values), self.length[rows], self.filled, self.even)

    def write(
        self, k: Float[Tensor, "B H T K"], v: Float[Tensor, "B H T V"], valid: Bool[Tensor, "B T"] | None = None
    ) -> "Cache":
        """Write T places; what is not valid is left out. Consumes the cache.

        Raises:
            ConfigError: a row would grow beyond the capacity.
        """
        places, even = k.shape[2], self.even and valid is None
        length = self.length + (places if valid is None else valid.sum(1))
        filled = longest(self.length, length, self.filled + places, self.capacity)
        if even:
            self.keys.narrow(2, self.filled, places).copy_(k)
            self.values.narrow(2, self.filled, places).copy_(v)
        else:
            for room in (self.keys, self.values):
                room[:, :, self.filled : filled] = 0  # what no row writes
            target = self.length[:, None] + torch.arange(places, device=k.device)
            if valid is not None:
                target = torch.where(valid, target, self.capacity)
            row = torch.arange(len(target), device=k.device)[:, None]
            self.keys[row, :, target] = k.transpose(1, 2).to(self.keys.dtype)
            self.values[row, :, target] = v.transpose(1, 2).to(self.values.dtype)
        return Cache(self.keys, self.values, length, filled, even)

    def seen(
        self, count: int, after: "Cache", valid: Bool[Tensor, "B T"] | None = None, bias: Bias | None = None
    ) -> dict[str, Any]:
        """What the queries of ``count`` new places see of what is held after they are written: each those up to itself.

        Args:
            count: T.
            after: the cache they are written to.
            valid: which of them exist.
            bias: by ranks.

        Returns:
            The arguments of attention: ``allowed``, ``causal`` and ``bias``.
        """
        allowed, causal = None, after.even and self.filled == 0
        if not causal and not (after.even and count == 1):
            rank = self.length[:, None] + torch.arange(count, device=self.length.device)
            place = torch.arange(after.filled, device=self.length.device)
            allowed = place <= rank[:, None, :, None]
            if valid is not None:
                # A place that is not valid is not written: it sees what its row holds, and nobody uses its answer.
                allowed = allowed & (place < after.length[:, None, None, None])
        return {"allowed": allowed, "causal": causal, "bias": self._ranked(bias)}

    def _ranked(self, bias: Bias | None) -> Bias | None:
        """The bias of the new places, whose ranks may differ from row to row."""
        if bias is None:
            return None
        if self.even:
            return lambda queries, keys: bias(slice(queries.start + self.filled, queries.stop + self.filled), keys)
        first = int(self.length.min()) if len(self.length) else 0
        last = int(self.length.max()) if len(self.length) else 0
        row = torch.arange(len(self.length), device=self.length.device)[:, None]

        def ranked(queries: slice, keys: slice) -> Tensor:
            block = bias(slice(first + queries.start, last + queries.stop), keys)
            block = block.expand(len(row), *block.shape[1:])
            place = torch.arange(queries.stop - queries.start, device=row.device)
            return block[row, :, self.length[:, None] - first + place].transpose(1, 2)

        return ranked


_pytree.register_pytree_node(
    Cache,
    lambda s: ([s.keys, s.values, s.length], (s.filled, s.even)),
    lambda tensors, rest: Cache(*tensors, *cast(Any, rest)),
    serialized_type_name="mapsto.Cache",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
)
