"""Encoder and decoder: blocks of attention and feed-forward with residual connections."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mapsto.attention import Attention
from mapsto.attention.softmax import SoftmaxAttention
from mapsto.collection import Collection, Packed
from mapsto.errors import ConfigError, did_you_mean
from mapsto.functional.state import State
from mapsto.nn.draft import Draft, Now
from mapsto.nn.dropout import Dropout
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.position import NoPosition, Position
from mapsto.nn.product import Products
from mapsto.nn.reader import Reader

__all__ = [
    "ACTIVATIONS",
    "Decoder",
    "Encoder",
    "FeedForward",
    "Mixer",
    "Placement",
    "PostNorm",
    "PreNorm",
    "Prior",
    "activated",
]

Batch = TypeVar("Batch", Collection, Packed)

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}


def activated(name: str) -> nn.Module:
    """The activation of a name, as ``model.activation`` gives it.

    Raises:
        ConfigError: no such activation; lists those there are.
    """
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigError(f'model.activation: "{name}" is not one of {known}.{did_you_mean(name, ACTIVATIONS)}')
    return ACTIVATIONS[name]()


class Branch(Protocol):
    """A residual branch: items in, items out."""

    def __call__(self, items: Tensor) -> Tensor:
        """Compute the branch."""


class Placement(Protocol):
    """Where the norm of a residual branch stands."""

    final: bool
    """Whether the whole stack needs one more norm at its end."""

    def add(self, x: Tensor, norm: nn.Module, branch: Branch) -> Tensor:
        """X with the branch added."""


class PreNorm:
    """x + branch(norm(x)), and one norm at the end of the stack. Trains without warm-up tricks; the default.

    Reference: Xiong et al., On layer normalization in the Transformer architecture, 2020.
    """

    final = True

    def add(self, x: Tensor, norm: nn.Module, branch: Branch) -> Tensor:
        """The residual stream itself is never normalised."""
        return x + branch(norm(x))


class PostNorm:
    """norm(x + branch(x)), as the original Transformer and most lectures draw it."""

    final = False

    def add(self, x: Tensor, norm: nn.Module, branch: Branch) -> Tensor:
        """Add and normalise."""
        return norm(x + branch(x))


class FeedForward(nn.Sequential):
    """W₂ activation(W₁ x + b₁) + b₂, the same for every item."""

    def __init__(self, dim: int, hidden: int, *, activation: nn.Module | None = None, dropout: float = 0.0):
        super().__init__(nn.Linear(dim, hidden), activation or nn.GELU(), Dropout(dropout), nn.Linear(hidden, dim))

    def step(self, x: Float[Tensor, "R T D"], product: Products) -> Float[Tensor, "R T D"]:
        """The same for few items, nothing dropped."""
        first, activation, _, last = self
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        return product(activation(product(x, first.weight, first.bias)), last.weight, last.bias)


class Mixer(Protocol):
    """What lets the items of a group know of each other: self-attention, or a memory in its place."""

    def __call__(self, x: Collection | Packed, *, causal: bool, position: Position | None) -> Tensor:
        """New items, of the shape of ``x.items``."""


class Block(nn.Module):
    """Self-attention (or a memory), then cross-attention if the block has one, then feed-forward: residual branches."""

    def __init__(
        self,
        dim: int,
        mixer: nn.Module,
        cross: MultiheadAttention | None,
        *,
        norm: Placement,
        hidden: int,
        activation: nn.Module,
        dropout: float,
        eps: float,
    ):
        super().__init__()
        self.placement = norm
        self.attention = mixer  # a Mixer; called attention, as it mostly is
        self.attention_norm = nn.LayerNorm(dim, eps=eps)
        self.cross: MultiheadAttention | None = cross
        self.cross_norm = nn.LayerNorm(dim, eps=eps) if cross is not None else None
        self.feedforward = FeedForward(dim, hidden, activation=activation, dropout=dropout)
        self.feedforward_norm = nn.LayerNorm(dim, eps=eps)
        self.dropout = Dropout(dropout)

    def forward(self, x: Batch, memory: Batch | None, position: Position, causal: bool) -> Batch:
        cross, drop = self.cross, self.dropout

        def look(items: Tensor) -> Tensor:
            return drop(self.attention(x.replace(items=items), causal=causal, position=position))

        ask = None if cross is None or memory is None else lambda q: drop(cross(x.replace(items=q), memory))
        return x.replace(items=self._run(x.items, look, ask, lambda y: drop(self.feedforward(y))))

    def step(
        self, items: Float[Tensor, "R T D"], own: State, memory: State | None, now: Now
    ) -> tuple[Float[Tensor, "R T D"], State]:
        """What a causal run answers at the places of the new items, and the state after them. Nothing is dropped."""
        attention, cross = self.attention, self.cross
        assert isinstance(attention, MultiheadAttention)

        def look(items: Tensor) -> Tensor:
            nonlocal own
            answer, own = attention.step(items, own, now)
            return answer

        ask = None if cross is None or memory is None else lambda y: cross.ask(y, memory, now.product)
        items = self._run(items, look, ask, lambda y: self.feedforward.step(y, now.product))
        return items, own

    def _run(self, items: Tensor, look: Branch, ask: Branch | None, feed: Branch) -> Tensor:
        """The residual branches in their order."""
        items = self.placement.add(items, self.attention_norm, look)
        if ask is not None:
            assert self.cross_norm is not None
            items = self.placement.add(items, self.cross_norm, ask)
        return self.placement.add(items, self.feedforward_norm, feed)


class Stack(nn.Module):
    """What encoder and decoder share: the entrance, the blocks and the last norm."""

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        *,
        cross: Attention | None = None,
        attention: Attention | None = None,
        position: Position | None = None,
        norm: Placement | None = None,
        hidden: int | None = None,
        activation: str = "gelu",
        dropout: float = 0.0,
        eps: float = 1e-5,
        normalise: bool = False,
        mixer: Callable[[], nn.Module] | None = None,
    ):
        super().__init__()
        activated(activation)
        placement = norm or PreNorm()
        self.position = position or NoPosition()
        _agree(self.position, attention, mixer, normalise)
        if cross is not None and cross.self_only:
            raise ConfigError(f"model.cross: {cross.self_only}. Use model.cross=softmax")
        self.dropout = Dropout(dropout)

        def attend() -> MultiheadAttention:
            return MultiheadAttention(dim, heads, attention=attention, normalise=normalise)

        self.blocks = nn.ModuleList(
            Block(
                dim,
                (mixer or attend)(),
                None if cross is None else MultiheadAttention(dim, heads, attention=cross, normalise=normalise),
                norm=placement,
                hidden=hidden or 4 * dim,
                activation=activated(activation),
                dropout=dropout,
                eps=eps,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=eps) if placement.final else nn.Identity()
        self.position.fit(dim, heads)

    @property
    def ordered(self) -> bool:
        """Whether items are told apart by their order, places or not: some block is a memory."""
        return any(getattr(block.attention, "ordered", False) for block in self.blocks)

    @property
    def _layers(self) -> "list[Block]":
        return [block for block in self.blocks if isinstance(block, Block)]

    def run(self, x: Batch, memory: Batch | None, causal: bool) -> Batch:
        """From the entrance to the last norm."""
        items = self.dropout(self.position.add(x.items, x.places))
        x = x.replace(items=items)
        for block in self.blocks:
            x = block(x, memory, self.position, causal)
        return x.replace(items=self.norm(x.items))

    def start(self, like: Tensor, capacity: int, *, batch: int, memory: Collection | None = None) -> Draft:
        """An empty draft of up to ``capacity`` items in each of ``batch`` rows, to be written by :meth:`step`.

        Args:
            like: the type and device of the items to come.
            capacity: the most items a row will have.
            batch: R.
            memory: what the blocks with cross-attention ask, a row for each.

        Raises:
            ConfigError: the blocks do not attend, so that there is nothing to step.
        """
        blocks, layers = self._layers, [block.attention for block in self._layers]
        attending = [layer for layer in layers if isinstance(layer, MultiheadAttention)]
        if len(attending) < len(layers):
            raise ConfigError("only attention is written step by step.   Use model.mixer=attention")
        places = like.new_zeros(batch, capacity + 1, 1, dtype=torch.float32) if self.position.biased else None
        return Draft(
            tuple(layer.start(like, capacity, batch=batch) for layer in attending),
            () if memory is None else tuple(b.cross.memorise(memory) for b in blocks if b.cross is not None),
            torch.arange(batch, device=like.device),
            Products(capacity),
            places,
            torch.zeros(batch, dtype=torch.int64, device=like.device),
        )

    def step(
        self, x: Collection, draft: Draft, *, valid: Bool[Tensor, "R T"] | None = None
    ) -> tuple[Float[Tensor, "R T D"], Draft]:
        """T >= 1 more items in each row: what a causal run over all so far answers at their places (law T).

        For decoding, not for learning. Consumes the draft.

        Args:
            x: the new items and their places.
            draft: from :meth:`start`, or the last step.
            valid: which of the new items exist, first in each row; None if all do.
        """
        after = draft.extended(x, valid)
        now = Now(x, valid, self.position, after.known, draft.first, draft.product)
        items = self.position.add(x.items, x.places)
        asked: Sequence[State | None] = draft.memory or [None] * len(self.blocks)
        own = []
        for block, state, memory in zip(self._layers, draft.own, asked, strict=True):
            items, state = block.step(items, state, memory, now)
            own.append(state)
        return self.norm(items), replace(after, own=tuple(own))


def _agree(
    position: Position, attention: Attention | None, mixer: Callable[[], nn.Module] | None, normalise: bool
) -> None:
    name = type(position).__name__
    if mixer is not None:
        if attention is not None or normalise:
            raise ConfigError("a stack with a mixer of its own has no use for attention= or normalise=. Leave them out")
        if position.biased or position.turns:
            raise ConfigError(
                f"{name} positions are for attention, and a memory goes by the order of items. Use model.position=none, "
                "sinusoidal or learned"
            )
    elif position.biased and "bias" not in (attention or SoftmaxAttention()).honours:
        raise ConfigError(
            f"{name} positions add to the logits, and {type(attention).__name__} has none to add to. Use "
            "model.attention=softmax, or model.position=sinusoidal or rotary"
        )


class Encoder(Stack):
    """A collection in, the same collection understood: every item has looked at the others.

    Args:
        dim: D.
        depth: number of blocks.
        heads: heads of each attention.
        attention: an unbound kind of attention, softmax by default.
        position: a position object; :class:`~mapsto.nn.position.NoPosition` by default (a set).
        norm: :class:`PreNorm` (default) or :class:`PostNorm`.
        hidden: width inside the feed-forward, 4 D by default.
        activation: one of ``gelu``, ``relu``, ``silu``, ``tanh``, ``identity``.
        dropout: on the entrance and on every branch.
        eps: of the norms.
        normalise: see :class:`~mapsto.nn.multihead.MultiheadAttention`.
        mixer: makes what stands in the place of self-attention in each block, such as
            ``lambda: Recall(GatedMemory, dim)`` (:mod:`mapsto.nn.memory`).

    Cost: O(depth · (N D² + N² D)) with softmax attention, O(depth · N D²) with a memory.

    Reference: Vaswani et al., Attention is all you need, 2017.
    """

    def __init__(self, dim: int, depth: int, heads: int, **parts: object):
        super().__init__(dim, depth, heads, **parts)  # type: ignore[arg-type]

    def forward(self, x: Batch, *, causal: bool = False) -> Batch:
        """New items for a padded or packed collection; its masks and places stay."""
        return self.run(x, None, causal)


class Decoder(Stack, Reader):
    """Queries look at each other and at a memory, in every block.

    Takes the arguments of :class:`Encoder`, and:

    Args:
        cross: an unbound kind of attention into the memory, softmax by default.
    """

    def __init__(self, dim: int, depth: int, heads: int, *, cross: Attention | None = None, **parts: object):
        super().__init__(dim, depth, heads, cross=cross or SoftmaxAttention(), **parts)  # type: ignore[arg-type]

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """An answer a query."""
        return self.run(queries, memory, causal).items


class Prior(Stack, Reader):
    """Queries look at each other only, and there is no memory to read: the reader of a language model."""

    def __init__(self, dim: int, depth: int, heads: int, **parts: object):
        super().__init__(dim, depth, heads, **parts)  # type: ignore[arg-type]

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """An answer a query."""
        return self.run(queries, None, causal).items
