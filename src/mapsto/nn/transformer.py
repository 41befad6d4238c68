"""Encoder and decoder: blocks of attention and feed-forward with residual connections."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from jaxtyping import Float
from torch import Tensor, nn

from mapsto.attention import Attention
from mapsto.attention.softmax import SoftmaxAttention
from mapsto.collection import Collection, Packed
from mapsto.errors import ConfigError, did_you_mean
from mapsto.nn.dropout import Dropout
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.position import NoPosition, Position
from mapsto.nn.reader import Reader

__all__ = ["ACTIVATIONS", "Decoder", "Encoder", "FeedForward", "Mixer", "Placement", "PostNorm", "PreNorm"]

Batch = TypeVar("Batch", Collection, Packed)

ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}


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
        cross: nn.Module | None,
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
        self.cross = cross
        self.cross_norm = nn.LayerNorm(dim, eps=eps) if cross is not None else None
        self.feedforward = FeedForward(dim, hidden, activation=activation, dropout=dropout)
        self.feedforward_norm = nn.LayerNorm(dim, eps=eps)
        self.dropout = Dropout(dropout)

    def forward(self, x: Batch, memory: Batch | None, position: Position, causal: bool) -> Batch:
        add, drop = self.placement.add, self.dropout

        def look(items: Tensor) -> Tensor:
            return drop(self.attention(x.replace(items=items), causal=causal, position=position))

        items = add(x.items, self.attention_norm, look)
        if self.cross is not None and memory is not None:
            cross, norm = self.cross, self.cross_norm
            assert norm is not None
            items = add(items, norm, lambda q: drop(cross(x.replace(items=q), memory)))
        items = add(items, self.feedforward_norm, lambda y: drop(self.feedforward(y)))
        return x.replace(items=items)


class Stack(nn.Module):
    """What encoder and decoder share: the entrance, the blocks and the last norm."""

    def __init__(
        self,
        dim: int,
        depth: int,
        heads: int,
        *,
        cross: bool,
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
        if activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ConfigError(
                f'model.activation: "{activation}" is not one of {known}.{did_you_mean(activation, ACTIVATIONS)}'
            )
        placement = norm or PreNorm()
        self.position = position or NoPosition()
        _agree(self.position, attention, mixer, normalise)
        self.dropout = Dropout(dropout)

        def attend() -> MultiheadAttention:
            return MultiheadAttention(dim, heads, attention=attention, normalise=normalise)

        self.blocks = nn.ModuleList(
            Block(
                dim,
                (mixer or attend)(),
                MultiheadAttention(dim, heads, normalise=normalise) if cross else None,
                norm=placement,
                hidden=hidden or 4 * dim,
                activation=ACTIVATIONS[activation](),
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

    def run(self, x: Batch, memory: Batch | None, causal: bool) -> Batch:
        """From the entrance to the last norm."""
        items = self.dropout(self.position.add(x.items, x.places))
        x = x.replace(items=items)
        for block in self.blocks:
            x = block(x, memory, self.position, causal)
        return x.replace(items=self.norm(x.items))


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
        activation: one of ``gelu``, ``relu``, ``silu``, ``tanh``.
        dropout: on the entrance and on every branch.
        eps: of the norms.
        normalise: see :class:`~mapsto.nn.multihead.MultiheadAttention`.
        mixer: makes what stands in the place of self-attention in each block, such as
            ``lambda: Recall(GatedMemory, dim)`` (:mod:`mapsto.nn.memory`).

    Cost: O(depth · (N D² + N² D)) with softmax attention, O(depth · N D²) with a memory.

    Reference: Vaswani et al., Attention is all you need, 2017.
    """

    def __init__(self, dim: int, depth: int, heads: int, **parts: object):
        super().__init__(dim, depth, heads, cross=False, **parts)  # type: ignore[arg-type]

    def forward(self, x: Batch, *, causal: bool = False) -> Batch:
        """New items for a padded or packed collection; its masks and places stay."""
        return self.run(x, None, causal)


class Decoder(Stack, Reader):
    """Queries look at each other and at a memory, in every block. Takes the arguments of :class:`Encoder`."""

    def __init__(self, dim: int, depth: int, heads: int, **parts: object):
        super().__init__(dim, depth, heads, cross=True, **parts)  # type: ignore[arg-type]

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """An answer a query."""
        return self.run(queries, memory, causal).items
