"""The one currency between inputs, models and outputs: a batch of groups of items, padded or packed."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils import _pytree

__all__ = ["Collection", "Edges", "Packed", "join"]


def _pytree_node(cls: type) -> type:
    """Make a frozen dataclass of tensors a pytree, so that transforms, compile and export see through it."""
    names = [f.name for f in dataclasses.fields(cls) if f.type is not bool]
    known = [f.name for f in dataclasses.fields(cls) if f.type is bool]

    def told(x: Any) -> list[bool]:
        return [getattr(x, n) for n in known]

    _pytree.register_pytree_node(
        cls,
        lambda x: ([getattr(x, n) for n in names], told(x)),
        lambda values, context: cls(*values, *cast(Any, context)),
        serialized_type_name=f"mapsto.{cls.__name__}",
        to_dumpable_context=list,
        from_dumpable_context=list,
        flatten_with_keys_fn=lambda x: ([(_pytree.GetAttrKey(n), getattr(x, n)) for n in names], told(x)),
    )
    return cls


class _Fields:
    """What all frozen dataclasses of tensors can do: every field goes along."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def _map(self, change: Callable[[Any], Any]) -> Self:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = (getattr(self, f.name) for f in fields)
        return type(self)(*(v if v is None or isinstance(v, bool) else change(v) for v in values))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move every field, as ``Tensor.to`` does; masks, indices and places keep their type."""
        probe = torch.empty(0).to(*args, **kwargs)

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value.to(*args, **kwargs)
            return value.to(probe.device)

        moved = self._map(move)
        items = getattr(moved, "items", None)
        if isinstance(items, Tensor) and items.is_floating_point() and probe.dtype != torch.float32:
            return moved.replace(items=items.to(probe.dtype))
        return moved

    def pin_memory(self) -> Self:
        """Every field in page-locked memory."""
        return self._map(lambda v: v.pin_memory())


@_pytree_node
@dataclass(frozen=True)
class Edges(_Fields):
    """The edges of a batch of graphs.

    Attributes:
        graph: (E,) which row of the batch an edge belongs to.
        source: (E,) the item it comes from, counted within its row.
        target: (E,) the item it goes to, counted within its row.
        attributes: (E, A) what is known of the edge, or None.
        weights: (E,) or None.
    """

    graph: Int[Tensor, " E"]
    source: Int[Tensor, " E"]
    target: Int[Tensor, " E"]
    attributes: Float[Tensor, "E A"] | None = None
    weights: Float[Tensor, " E"] | None = None

    def select(self, rows: Int[Tensor, " R"]) -> "Edges":
        """The edges of some rows of the batch, in their new order."""
        graph, edge = (rows[:, None] == self.graph[None, :]).nonzero(as_tuple=True)
        pick = lambda x: None if x is None else x[edge]  # noqa: E731
        return Edges(graph, self.source[edge], self.target[edge], pick(self.attributes), pick(self.weights))


def _all(valid: Bool[Tensor, "B N"]) -> bool:
    """Whether all items exist, where that can be seen without waiting for a device or breaking a graph."""
    if valid.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return bool(valid.all())


@_pytree_node
@dataclass(frozen=True)
class Collection(_Fields):
    """B groups of up to N items.

    Build one with :meth:`build`, which keeps its promises: padding is zeros, and valid items come first in each row,
    so that an item's rank is its index.

    Attributes:
        items: (B, N, D) what the items are.
        valid: (B, N) True = this item exists.
        places: (B, N, P) float32, where an item is (rank, seconds, (row, column), coordinates), or None for a set.
        edges: for graphs.
        full: whether it is known, without another look at ``valid``, that all items exist; then nothing needs a mask.
    """

    items: Float[Tensor, "B N D"]
    valid: Bool[Tensor, "B N"]
    places: Float[Tensor, "B N P"] | None = None
    edges: Edges | None = None
    full: bool = False

    @classmethod
    def build(
        cls,
        items: Float[Tensor, "B N D"],
        valid: Bool[Tensor, "B N"] | None = None,
        places: Float[Tensor, "B N P"] | None = None,
        edges: Edges | None = None,
        *,
        compact: bool = False,
    ) -> "Collection":
        """Fill padding with zeros (whatever stood there, NaN included).

        Args:
            items: (B, N, D).
            valid: which items exist; all, if not given. On the CPU it is looked at, so that rows of one length, such
                as windows of a text, need no mask.
            places: where they are.
            edges: for graphs; their indices count within a row and must already count the compacted items.
            compact: move the valid items of each row to its front, in their order. Needed when they are not there
                already, and a sort's cost otherwise.

        Example:
            >>> c = Collection.build(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[False, True]]), compact=True)
            >>> c.items.tolist(), c.valid.tolist()
            ([[[2.0], [0.0]]], [[True, False]])
        """
        if valid is None:
            return cls(items, items.new_ones(items.shape[:2], dtype=torch.bool), places, edges, full=True)
        if not compact and _all(valid):
            return cls(items, valid, places, edges, full=True)
        if compact:
            order = (~valid).to(torch.uint8).argsort(dim=1, stable=True)
            valid = valid.gather(1, order)
            items = items.gather(1, order[..., None].expand_as(items))
            places = None if places is None else places.gather(1, order[..., None].expand_as(places))
        hole = ~valid[..., None]
        items = items.masked_fill(hole, 0)
        places = None if places is None else places.masked_fill(hole, 0)
        return cls(items, valid, places, edges)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; of another ``valid`` it is not known that all items exist."""
        return super().replace(**({"full": False, **changes} if "valid" in changes else changes))

    @property
    def mask(self) -> Bool[Tensor, "B N"] | None:
        """``valid``, or None where all items are known to exist: what attention is to be told."""
        return None if self.full else self.valid

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        """(B,) the number of items of each group."""
        return self.valid.sum(1)

    def total(self) -> Float[Tensor, "B 1 D"]:
        """Σ_i x_i over the items of each group that exist."""
        there = self.items if self.full else self.items.masked_fill(~self.valid[..., None], 0)
        return there if there.shape[1] == 1 else there.sum(1, keepdim=True)

    def __getitem__(self, rows: slice | Int[Tensor, " R"]) -> "Collection":
        """Some groups of the batch; every field goes along."""
        if isinstance(rows, slice):
            rows = torch.arange(self.valid.shape[0], device=self.valid.device)[rows]
        places = None if self.places is None else self.places[rows]
        edges = None if self.edges is None else self.edges.select(rows)
        return Collection(self.items[rows], self.valid[rows], places, edges, self.full)

    def pack(self, groups: int = 8) -> "Packed":
        """The same items without padding. Needs valid items first, as :meth:`build` leaves them."""
        lengths = self.lengths
        places = None if self.places is None else self.places[self.valid]
        return Packed.build(self.items[self.valid], lengths, places, groups=groups)


@_pytree_node
@dataclass(frozen=True)
class Packed(_Fields):
    """The twin of a Collection without padding: all items in one list, a group after the other.

    Position-wise modules act on (..., D) and need not know. Attention and pooling cut it into a few padded groups
    of rows of similar length (:attr:`plan`), made once and used by every layer.

    Attributes:
        items: (total, D).
        lengths: (B,).
        places: (total, P) or None.
        plan: for each padded group (rows (b,), index (b, n) into items, valid (b, n)).
    """

    items: Float[Tensor, "T D"]
    lengths: Int[Tensor, " B"]
    places: Float[Tensor, "T P"] | None
    plan: Any

    @classmethod
    def build(
        cls,
        items: Float[Tensor, "T D"],
        lengths: Int[Tensor, " B"],
        places: Float[Tensor, "T P"] | None = None,
        *,
        groups: int = 8,
    ) -> "Packed":
        """Items end to end with the length of each row; at most ``groups`` padded groups for attention."""
        ends = lengths.cumsum(0)
        order = lengths.argsort(stable=True)
        plan = []
        for rows in order.tensor_split(min(groups, max(1, len(order)))):
            if not len(rows):
                continue
            place = torch.arange(int(lengths[rows].max()), device=lengths.device)
            valid = place < lengths[rows, None]
            index = ((ends - lengths)[rows, None] + place).masked_fill(~valid, 0)
            plan.append((rows, index, valid))
        return cls(items, lengths, places, tuple(plan))

    def _map(self, change: Callable[[Any], Any]) -> "Packed":
        places = None if self.places is None else change(self.places)
        plan = tuple(tuple(change(t) for t in group) for group in self.plan)
        return Packed(change(self.items), change(self.lengths), places, plan)

    def group(self, index: Int[Tensor, "b n"], valid: Bool[Tensor, "b n"]) -> Collection:
        """One padded group of the plan, as a Collection."""
        places = None if self.places is None else self.places[index]
        return Collection.build(self.items[index], valid, places)

    def scatter(self, groups: Sequence[Float[Tensor, "b n V"]]) -> Float[Tensor, "T V"]:
        """Put per-group item outputs (in the order of the plan) back into one list."""
        flat = torch.cat([out[valid] for out, (_, _, valid) in zip(groups, self.plan, strict=True)])
        index = torch.cat([index[valid] for _, index, valid in self.plan])
        return flat.new_zeros(len(self.items), flat.shape[-1]).index_copy(0, index, flat)

    def unpack(self) -> Collection:
        """Pad again: the inverse of :meth:`Collection.pack`."""
        place = torch.arange(int(self.lengths.max()) if len(self.lengths) else 0, device=self.lengths.device)
        valid = place < self.lengths[:, None]
        index = ((self.lengths.cumsum(0) - self.lengths)[:, None] + place).masked_fill(~valid, 0)
        if not len(self.items):
            places = None if self.places is None else self.places.new_zeros(*valid.shape, self.places.shape[-1])
            return Collection(self.items.new_zeros(*valid.shape, self.items.shape[-1]), valid, places)
        return self.group(index, valid)


def join(parts: Sequence[Collection], marks: Sequence[Float[Tensor, " D"]]) -> Collection:
    """Put several collections of one batch into one: all items of a row side by side.

    Each part gets a learned mark (its kind vector), added to its items. Places stand side by side too: part i keeps
    its own coordinates and is zero in the others', so that a distance within a part is that part's own.

    Args:
        parts: collections of the same B and D.
        marks: one (D,) vector a part.
    """
    if len(parts) == 1:
        return parts[0]
    widths = [0 if c.places is None else c.places.shape[-1] for c in parts]
    places, before = [], 0
    for c, width in zip(parts, widths, strict=True):
        own = c.items.new_zeros(*c.valid.shape, sum(widths), dtype=torch.float32)
        if c.places is not None:
            own[..., before : before + width] = c.places
        before += width
        places.append(own)
    full = all(c.full for c in parts)
    return Collection.build(
        torch.cat([c.items + mark for c, mark in zip(parts, marks, strict=True)], 1),
        None if full else torch.cat([c.valid for c in parts], 1),
        torch.cat(places, 1) if sum(widths) else None,
        compact=not full,
    )
