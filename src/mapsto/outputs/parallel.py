"""A sequence of tokens, all said at once: what texts are in a decoder that cannot copy from what it has just said."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from jaxtyping import Bool, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.nn.target import TokenTarget
from mapsto.outputs import Theta, TokenOutput
from mapsto.ragged import Ragged, Rows
from mapsto.vocabulary import Vocabulary

__all__ = ["ParallelOutput"]

KEPT = 256
"""Of the longest texts, how many are counted in tokens."""


class ParallelOutput(TokenOutput):
    """log p(y | memory) = Σ_l log p_l(y_l | memory), y_1 … y_L the tokens and the end: given the memory, independent.

    Query l is a learned vector at place l - 1, and all H are asked, however long the target is: what is said of a place
    cannot depend on how many are asked. Places after the end cost nothing, so that a text's probability is that of drawing
    its tokens one by one until the end is drawn. Such a decoder has nothing to go by but the memory, and cannot ignore it;
    tokens that hang together only by each other, it cannot say well.

    Args:
        dim: D.
        name: what the target is called.
        vocabulary: turns a text (or list of symbols) into ids.
        limit: at most so many tokens a row, the end not counted; H is one more.
        smoothing: as of a :class:`~mapsto.outputs.TokenOutput`.

    Reference: Gu et al., Non-autoregressive neural machine translation, 2018.
    """

    kind = "parallel"
    window = 0

    def __init__(self, dim: int, *, name: str, vocabulary: Vocabulary, limit: int, smoothing: float = 0.0):
        super().__init__()
        self.dim, self.name, self.vocabulary = dim, name, vocabulary
        self.limit, self.longest, self.smoothing = limit, limit + 1, smoothing
        self.query = nn.Parameter(torch.zeros(self.longest, dim))
        self.head = TokenTarget(dim, vocabulary=vocabulary)

    @torch.no_grad()
    def reset(self, stream: torch.Generator) -> None:
        """Draw the queries: places differ from the start, even where no position tells them apart."""
        self.query.copy_(0.1 * torch.randn(self.query.shape, generator=stream))

    @classmethod
    def measure(
        cls,
        chunks: Iterable[Sequence[Any]],
        *,
        columns: Sequence[tuple[str, str]] = (),
        vocabulary: str = "auto",
        vocabulary_size: int = 8000,
        vocabulary_least: int = 1,
        limit: int = 512,
        smoothing: float = 0.0,
        **_: Any,
    ) -> dict[str, Any]:
        """Learn the vocabulary of the one column, and how many tokens its longest row has; no more than ``limit``."""
        kept: list[tuple[int, int, str]] = []
        told, lengths = cls.learned(_kept(chunks, kept), columns, vocabulary, vocabulary_size, vocabulary_least)
        found = [len(told["vocabulary"].encode(text)) for *_, text in kept] or lengths
        longest = max([1, *found])
        return {**told, "limit": min(limit or longest, longest), "smoothing": smoothing}

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but ``dim``."""
        return {name: getattr(self, name) for name in ("name", "vocabulary", "limit", "smoothing")}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``ids`` and ``valid`` (B, L)."""
        ids, valid = columns["ids"].pad()
        return {"ids": torch.from_numpy(ids), "valid": torch.from_numpy(valid)}

    def queries(self, memory: Collection, target: Mapping[str, Tensor] | None = None, *, start: int = 0) -> Collection:
        """A learned vector a place."""
        size = memory.valid.shape[0]
        places = torch.arange(self.longest, device=self.query.device, dtype=torch.float32)
        query = self.query.to(memory.items.dtype).expand(size, -1, -1)
        return Collection.build(query, places=places[:, None].expand(size, -1, -1))

    def asked(self, memory: Collection, target: Mapping[str, Tensor]) -> Bool[Tensor, "B H"]:
        """The places whose tokens exist; all of them, where no token is known."""
        if "valid" in target:
            return self._fit(target["valid"])
        return memory.valid.new_ones(memory.valid.shape[0], self.longest)

    def event(self, name: str, target: Mapping[str, Tensor]) -> Tensor:
        """The tokens at all places."""
        return self._fit(target["ids"]).long()

    def _real(self, theta: Theta, target: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return super()._real(theta, {"ids": self._fit(target["ids"]), "valid": self._fit(target["valid"])})

    def _fit(self, told: Shaped[Tensor, "B L"]) -> Shaped[Tensor, "B H"]:
        """With as many places as there are queries: others hold nothing."""
        return nn.functional.pad(told, (0, self.longest - told.shape[1]))

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray | int:
        """H."""
        return self.longest


def _kept(chunks: Iterable[Sequence[Any]], kept: list[tuple[int, int, str]]) -> Iterator[Sequence[Any]]:
    """The chunks, and the longest texts of them all."""
    number = count()
    for chunk in chunks:
        for (value,) in chunk:
            if isinstance(value, str):
                entry = (len(value), next(number), value)
                (heapq.heappush if len(kept) < KEPT else heapq.heappushpop)(kept, entry)
        yield chunk
