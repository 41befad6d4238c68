"""How a model is told where its items are: objects with three optional hooks, used by encoders and decoders only.

``add`` once at the entrance, ``rotate`` on queries and keys, ``bias`` on the logits (its kinds are in
:mod:`mapsto.nn.distance`). A set has no places, and none of the hooks does anything to it.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from mapsto.attention import Bias
from mapsto.collection import Collection
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
        self,
        places_q: Float[Tensor, "#B l P"],
        places_k: Float[Tensor, "#B m P"],
        q: Float[Tensor, "B H l K"],
    ) -> Float[Tensor, "#B H l m"] | None:
        """What to add to the logits of these queries and keys. Called block by block.

        Args:
            places_q: where the queries are; for all rows at once, if they are at the same places.
            places_k: where the keys are, likewise.
            q: the queries themselves, turned and normalised as attention sees them.
        """
        return None

    @property
    def biased(self) -> bool:
        """Whether this kind has a bias, which attention must then honour."""
        return type(self).bias is not Position.bias

    @property
    def turns(self) -> bool:
        """Whether this kind turns queries and keys."""
        return type(self).rotate is not Position.rotate

    def fit(self, dim: int, heads: int) -> None:
        """Told for what it will be used, when a stack is built.

        Raises:
            ConfigError: it is for a model of another size.
        """

    def between(
        self, queries: Collection, keys: Collection, q: Float[Tensor, "B H L K"], *, first: int | Int[Tensor, " B"] = 0
    ) -> Bias | None:
        """The bias of all queries and keys as attention asks for it: by ranks; None if this kind has none.

        Args:
            queries: who asks: their places, and which exist.
            keys: who is asked. In steps, all that the cache will hold.
            q: the queries themselves.
            first: the rank of each row's first query: in steps, how many places were written before.
        """
        places_q, places_k = queries.places, keys.places
        if places_q is None or places_k is None or not self.biased:
            return None
        if isinstance(first, Tensor):
            return self._apart(places_q, places_k, q, first)
        ranks = _ranked(queries, keys, first)

        def block(rows: slice, columns: slice) -> Tensor:
            own = slice(rows.start - first, rows.stop - first)
            if ranks:
                return self.along(q[:, :, own], rows, columns)
            bias = self.bias(places_q[:, own], places_k[:, columns], q[:, :, own])
            assert bias is not None
            return bias

        return block

    def along(self, q: Float[Tensor, "B H l K"], rows: slice, columns: slice) -> Float[Tensor, "#B #H l m"]:
        """:meth:`bias` where all places are ranks, these ones: a kind may know a cheaper way. One block is for all rows."""
        places_q, places_k = (
            torch.arange(part.start, part.stop, device=q.device, dtype=torch.float32)[None, :, None]
            for part in (rows, columns)
        )
        bias = self.bias(places_q, places_k, q)
        assert bias is not None
        return bias

    def _apart(self, places_q: Tensor, places_k: Tensor, q: Tensor, first: Tensor) -> Bias:
        """Rows that stand at different ranks; a rank that is none of a row's queries gets the nearest one's bias."""

        def block(rows: slice, columns: slice) -> Tensor:
            rank = torch.arange(rows.start, rows.stop, device=q.device)
            own = (rank - first[:, None]).clamp(0, q.shape[2] - 1)
            row = torch.arange(len(own), device=q.device)[:, None]
            bias = self.bias(places_q[row, own], places_k[:, columns], q[row, :, own].transpose(1, 2))
            assert bias is not None
            return bias

        return block


def _ranked(queries: Collection, keys: Collection, first: int) -> bool:
    """Whether all that exists is at the place of its rank, where looking costs nothing: not compiled, on the CPU."""
    if torch.compiler.is_compiling() or queries.valid.device.type != "cpu":
        return False
    parts = [(queries, first)] if queries is keys and first == 0 else [(queries, first), (keys, 0)]
    for part, start in parts:
        if part.places is None or part.places.shape[-1] != 1:
            return False
        rank = torch.arange(start, start + part.places.shape[1], dtype=part.places.dtype)
        if not bool(((part.places[..., 0] == rank) | ~part.valid).all()):
            return False
    return True


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
        return items + F.embedding(rank.clamp(0, self.length - 1).long(), self.table).to(items.dtype)


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
