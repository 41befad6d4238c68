"""Positions that add to the logits by how far apart two items are: fixed slopes, learned buckets, learned vectors."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mapsto.errors import ConfigError
from mapsto.functional.position import alibi, bucket, gathered, skewed
from mapsto.nn.position import Position

__all__ = ["T5", "ALiBi", "Relative"]


class _Distance(Position):
    """A bias a head."""

    name: str

    def __init__(self, heads: int):
        super().__init__()
        if heads < 1:
            raise ConfigError(f"{self.name} positions: heads={heads}; expected 1 or more")
        self.heads = heads

    def fit(self, dim: int, heads: int) -> None:
        """Refuse a model of another number of heads."""
        if heads != self.heads:
            raise ConfigError(
                f"{self.name} positions were made for {self.heads} heads, the model has model.heads={heads}. "
                f"Make them with heads={heads}"
            )


class ALiBi(_Distance):
    """Head h adds -2^(-8h/H) · |distance| to the logits: see :func:`~mapsto.functional.position.alibi`.

    Nothing is learned, and rows may be longer than any in training. Any real places; several coordinates add up. Both
    directions are alike: an encoder that sees both ways cannot tell a row from its mirror image by it.

    Args:
        heads: H of the model.

    Reference: Press et al., Train short, test long, 2022.
    """

    name = "alibi"

    def bias(
        self, places_q: Float[Tensor, "#B l P"], places_k: Float[Tensor, "#B m P"], q: Float[Tensor, "B H l K"]
    ) -> Float[Tensor, "#B H l m"]:
        """The farther, the less."""
        return alibi(places_q, places_k, self.heads)


class T5(_Distance):
    """Head h adds T[bucket(distance), h] to the logits, T learned: see :func:`~mapsto.functional.position.bucket`.

    One table for all layers. Places of one coordinate; distances are rounded to whole ones.

    Args:
        heads: H of the model.
        buckets: how many; half of them for each direction.
        longest: all that is at least so far away is alike.
        causal: all buckets are for the past: for models that never see the future.

    Reference: Raffel et al., Exploring the limits of transfer learning, 2020.
    """

    name = "t5"

    def __init__(self, heads: int, *, buckets: int = 32, longest: int = 128, causal: bool = False):
        super().__init__(heads)
        bucket(torch.zeros(1), buckets, longest, causal=causal)  # refuses what cannot be
        self.buckets, self.longest, self.causal = buckets, longest, causal
        self.table = nn.Parameter(torch.zeros(buckets, heads))

    def reset(self, stream: torch.Generator) -> None:
        """Draw the table anew: normal with standard deviation 0.3, so that directions differ from the start."""
        with torch.no_grad():
            self.table.copy_(0.3 * torch.randn(self.table.shape, generator=stream))

    def bias(
        self, places_q: Float[Tensor, "#B l 1"], places_k: Float[Tensor, "#B m 1"], q: Float[Tensor, "B H l K"]
    ) -> Float[Tensor, "#B H l m"]:
        """What was learned for the bucket of each distance."""
        _one(self.name, places_q)
        found = bucket(places_k.transpose(1, 2) - places_q, self.buckets, self.longest, causal=self.causal)
        return F.embedding(found, self.table).permute(0, 3, 1, 2)


class Relative(_Distance):
    """Head h adds q_h · E_h[distance] / √K to the logits, E learned: what a distance means depends on who asks.

    One E of (H, 2r + 1, K) for all layers, of the distances -r … r; what is farther counts as r. Where places are
    ranks, by the skew trick (:func:`~mapsto.functional.position.skewed`), else by
    :func:`~mapsto.functional.position.gathered`: memory O(r K) for the embeddings, never L × L × K. Places of one
    coordinate; distances are rounded to whole ones.

    Args:
        heads: H of the model.
        width: K, the model's dim / heads.
        longest: r.

    Reference: Shaw et al., Self-attention with relative position representations, 2018; Huang et al., Music
    Transformer, 2018.
    """

    name = "relative"

    def __init__(self, heads: int, width: int, *, longest: int = 128):
        super().__init__(heads)
        if width < 1 or longest < 1:
            raise ConfigError(f"relative positions: width={width}, longest={longest}; expected 1 or more of each")
        self.width, self.longest = width, longest
        self.table = nn.Parameter(torch.zeros(heads, 2 * longest + 1, width))

    def fit(self, dim: int, heads: int) -> None:
        """Refuse a model of another number of heads, or of heads of another width."""
        super().fit(dim, heads)
        if dim != heads * self.width:
            raise ConfigError(
                f"relative positions were made for heads {self.width} wide, those of model.dim={dim} are "
                f"{dim / heads:g} wide. Make them with width={dim // heads}"
            )

    def reset(self, stream: torch.Generator) -> None:
        """Draw the vectors anew, as the rows of a linear layer: normal with standard deviation 1/√K."""
        with torch.no_grad():
            self.table.copy_(torch.randn(self.table.shape, generator=stream) * self.width**-0.5)

    def bias(
        self, places_q: Float[Tensor, "#B l 1"], places_k: Float[Tensor, "#B m 1"], q: Float[Tensor, "B H l K"]
    ) -> Float[Tensor, "B H l m"]:
        """Each query's product with the vector of each distance."""
        _one(self.name, places_q)
        return gathered(q, self.table, places_q, places_k)

    def along(self, q: Float[Tensor, "B H l K"], rows: slice, columns: slice) -> Float[Tensor, "B H l m"]:
        """The same for ranks, by the skew trick."""
        return skewed(q, self.table, rows.start - columns.start, columns.stop - columns.start)


def _one(name: str, places: Tensor) -> None:
    if places.shape[-1] != 1:
        raise ConfigError(
            f"{name} positions count in one coordinate, these places have {places.shape[-1]}. "
            "Use model.position=alibi, sinusoidal or rotary"
        )
