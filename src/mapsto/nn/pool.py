"""Poolings: one answer from all items of a group, whatever their order and number.

Each gives query + pooled(memory), the query being the output's own learned vector. An empty group pools to zeros.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.errors import ConfigError, did_you_mean
from mapsto.nn.multihead import MultiheadAttention
from mapsto.nn.reader import Reader

__all__ = ["POOLS", "AttentionPool", "ClassPool", "LambdaPool", "MaxPool", "MeanPool", "SumPool", "pool"]


class SumPool(Reader):
    """Σ_i x_i over the valid items.

    Reference: Zaheer et al., Deep Sets, 2017.
    """

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """The same sum for every query, and the query."""
        return queries.items + memory.total()


class MeanPool(Reader):
    """1/N Σ_i x_i over the N valid items; an empty group gives zeros."""

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """The same mean for every query, and the query."""
        total, items = memory.total(), memory.valid.shape[1]
        if items == 1:  # perceptrons: there is one item, and nothing to divide by
            return queries.items + total
        if memory.full:
            return queries.items + total / max(1, items)
        return queries.items + total / memory.lengths.clamp(min=1)[:, None, None]


class MaxPool(Reader):
    """max_i x_i, coordinate by coordinate, over the valid items; an empty group gives zeros."""

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """The same maximum for every query, and the query."""
        if memory.valid.shape[1] == 0:
            return queries.items
        low = torch.finfo(memory.items.dtype).min
        top = memory.items.masked_fill(~memory.valid[..., None], low).amax(1, keepdim=True)
        return queries.items + top.masked_fill(~memory.valid.any(1)[:, None, None], 0)


class LambdaPool(Reader):
    """Attention without a query: Σ_i λ(x_i) θᵀx_i with λ from θ_λᵀx̄_i, x̄ = (x, 1).

    Args:
        dim: D.
        spread: ``sigmoid``: every λ(x_i) in (0, 1) by itself, so all may be attended to; ``softmax``: the λ of a
            group sum to one, so that attention is limited.
    """

    def __init__(self, dim: int, *, spread: str = "softmax"):
        super().__init__()
        if spread not in ("sigmoid", "softmax"):
            raise ConfigError(f'LambdaPool: spread "{spread}" is not one of sigmoid, softmax')
        self.spread = spread
        self.score = nn.Linear(dim, 1)
        self.value = nn.Linear(dim, dim, bias=False)

    def weights(self, memory: Collection) -> Float[Tensor, "B N"]:
        """λ of every item; 0 for padding."""
        score = self.score(memory.items).squeeze(-1)
        if self.spread == "sigmoid":
            return torch.sigmoid(score).masked_fill(~memory.valid, 0)
        if score.shape[1] == 0:
            return score
        score = score.masked_fill(~memory.valid, torch.finfo(score.dtype).min)
        return torch.softmax(score, 1).masked_fill(~memory.valid, 0)

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """The same weighted sum for every query, and the query."""
        items = memory.items.masked_fill(~memory.valid[..., None], 0)
        return queries.items + torch.einsum("BN,BNV->BV", self.weights(memory), self.value(items))[:, None]


class AttentionPool(Reader):
    """Each query looks at the memory by multi-head attention: query + attention(query, memory, memory).

    Reference: Lee et al., Set Transformer, 2019 (pooling by multi-head attention).
    """

    def __init__(self, dim: int, heads: int = 4):
        super().__init__()
        self.attention = MultiheadAttention(dim, heads)

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """One answer a query."""
        return queries.items + self.attention(queries, memory)


class ClassPool(Reader):
    """A learned item is put in front before the encoder, and is the answer after it (BERT, ViT).

    Its place is zero in every coordinate.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.item = nn.Parameter(torch.zeros(dim))

    def reset(self, stream: torch.Generator) -> None:
        """Normal with standard deviation 0.02."""
        with torch.no_grad():
            self.item.copy_(0.02 * torch.randn(self.item.shape, generator=stream))

    def enter(self, items: Collection) -> Collection:
        """Put the class item in front of every group."""
        size = items.valid.shape[0]
        places = items.places
        if places is not None:
            places = torch.cat([places.new_zeros(size, 1, places.shape[-1]), places], 1)
        return Collection(
            torch.cat([self.item.to(items.items.dtype).expand(size, 1, -1), items.items], 1),
            torch.cat([items.valid.new_ones(size, 1), items.valid], 1),
            places,
            full=items.full,
        )

    def forward(self, queries: Collection, memory: Collection, *, causal: bool = False) -> Float[Tensor, "B L D"]:
        """What the class item has become, and the query."""
        return queries.items + memory.items[:, :1]


POOLS = ("mean", "max", "sum", "attention", "class", "sigmoid", "softmax")


def pool(name: str, dim: int, heads: int) -> Reader:
    """The pooling of a name, as ``model.pool`` gives it."""
    made: dict[str, type[Reader]] = {"mean": MeanPool, "max": MaxPool, "sum": SumPool}
    if name in made:
        return made[name]()
    if name == "attention":
        return AttentionPool(dim, heads)
    if name == "class":
        return ClassPool(dim)
    if name in ("sigmoid", "softmax"):
        return LambdaPool(dim, spread=name)
    raise ConfigError(f'model.pool: "{name}" is not one of {", ".join(POOLS)}.{did_you_mean(name, POOLS)}')
