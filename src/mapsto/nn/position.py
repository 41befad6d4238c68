"""How a model is told where its items are: objects with three optional hooks, used by encoders and decoders only.

``add`` once at the entrance, ``rotate`` on queries and keys, ``bias`` on the logits. A set has no places, and none of
the hooks does anything to it.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mapsto.attention import Bias
from mapsto.errors import ConfigError
from mapsto.functional.position import rotate, sinusoidal

__all__ = ["Learned", "NoPosition", "Position", "Rotary", "Sinusoidal"]


class Position(nn.Module):
    """The contract: override the hooks a kind of position needs; by default each leaves everything as it is."""

    def add(self, items: Float[Tensor, "... N D"], places: Float[Tensor, "... N P"] | None) -> Float[Tensor, "... N D"]:
        """The items, told where they are. Called once, at the entrance."""
        return items

    def rotate(self, x: Float[Tensor, "B H N K"], places: Float[Tensor, "B N P"] | None) -> Float[Tensor, "B H N K"]:
        """Queries or keys, told where they are. Called in each layer, before keys enter a cache."""
        return x

    def bias(
        self, places_q: Float[Tensor, "B l P"], places_k: Float[Tensor, "B m P"]
    ) -> Float[Tensor, "#B H l m"] | None:
        """What to add to the logits of these queries and keys. Called block by block."""
        return None

    def between(self, places_q: Float[Tensor, "B L P"] | None, places_k: Float[Tensor, "B M P"] | None) -> Bias | None:
        """The bias of all queries and keys as attention asks for it: by ranks; None if this kind has none."""
        if places_q is None or places_k is None or type(self).bias is Position.bias:
            return None

        def block(queries: slice, keys: slice) -> Tensor:
            bias = self.bias(places_q[:, queries], places_k[:, keys])
            assert bias is not None
            return bias

        return block


class NoPosition(Position):
    """Items of a set: nobody is told where they are."""


class Sinusoidal(Position):
    """Waves of the place are added to the items: x̄ = x + a·PE(place), a learned, starting at ``amplitude``.

    See :func:`~mapsto.functional.position.sinusoidal`. What D leaves over after an equal width for every coordinate
    gets no wave.

    Args:
        dim: D.
        amplitude: a before training. Embeddings start small too, and waves of amplitude 1 would drown them.
        theta: some times the range of the places.
    """

    def __init__(self, dim: int, amplitude: float = 0.1, theta: float = 10000.0):
        super().__init__()
        self.dim, self.theta = dim, theta
        self.amplitude = nn.Parameter(torch.tensor([amplitude]))  # an axis, because fully_shard takes no scalars

    def add(self, items: Float[Tensor, "... N D"], places: Float[Tensor, "... N P"] | None) -> Float[Tensor, "... N D"]:
        """The items plus the waves of their places."""
        if places is None:
            return items
        left = self.dim % (2 * places.shape[-1])
        waves = torch.nn.functional.pad(sinusoidal(places, self.dim - left, self.theta), (0, left))
        return items + (self.amplitude * waves).to(items.dtype)


class Learned(Position):
    """A learned vector a rank is added to the items: x̄ = x + E[rank].

    Args:
        dim: D.
        length: how many ranks there are: 0 … length - 1. Places are rounded to them.
    """

    def __init__(self, dim: int, length: int):
        super().__init__()
        if length < 1:
            raise ConfigError(f"learned positions: a length of {length}; expected 1 or more")
        self.dim, self.length = dim, length
        self.table = nn.Parameter(torch.zeros(length, dim))

    def reset(self, stream: torch.Generator) -> None:
        """Draw the table anew, as embeddings are drawn: normal with standard deviation 0.02·√(512/D)."""
        drawn = torch.randn(self.length, self.dim, generator=stream) * (0.02 * math.sqrt(512 / self.dim))
        with torch.no_grad():
            self.table.copy_(drawn)

    def add(self, items: Float[Tensor, "... N D"], places: Float[Tensor, "... N P"] | None) -> Float[Tensor, "... N D"]:
        """The items plus the vectors of their ranks.

        Raises:
            ConfigError: a place beyond the table, or places of several coordinates. (Compiled, there is no error: the
                nearest rank of the table is taken, since looking would break the graph.)
        """
        if places is None:
            return items
        if places.shape[-1] != 1:
            raise ConfigError(
                f"learned positions count in one coordinate, these places have {places.shape[-1]}. "
                "Use model.position=sinusoidal or rotary"
            )
        rank = places[..., 0].round()
        if not torch.compiler.is_compiling() and rank.numel():
            low, high = (float(x) for x in torch.aminmax(rank.detach()))
            if not (low >= 0 and high < self.length):
                wrong = low if high < self.length else high
                raise ConfigError(
                    f"learned positions: an item is at place {wrong:g}, but {self.length} places were learned "
                    f"(0 … {self.length - 1}). Shorten the input, or train with a longer input.limit, or with "
                    "model.position=sinusoidal or rotary, which know no last place"
                )
        return items + self.table[rank.clamp(0, self.length - 1).long()].to(items.dtype)


class Rotary(Position):
    """Queries and keys are turned by their places: see :func:`~mapsto.functional.position.rotate`.

    Args:
        theta: the base of the wavelengths.
    """

    def __init__(self, theta: float = 10000.0):
        super().__init__()
        if not theta > 0:
            raise ConfigError(f"rotary positions: theta={theta}; expected a number above 0")
        self.theta = theta

    def rotate(self, x: Float[Tensor, "B H N K"], places: Float[Tensor, "B N P"] | None) -> Float[Tensor, "B H N K"]:
        """Queries or keys, turned by their places."""
        return x if places is None else rotate(x, places, self.theta)
