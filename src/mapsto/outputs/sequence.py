"""A sequence of tokens, written one after the other: translations, pronunciations, captions, texts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.nn.product import Products
from mapsto.nn.target import TokenTarget
from mapsto.outputs import TokenOutput
from mapsto.ragged import Ragged, Rows
from mapsto.vocabulary import BEGIN, Vocabulary

__all__ = ["SequenceOutput"]


class SequenceOutput(TokenOutput):
    """log p(y | memory) = Σ_l log p(y_l | y_<l, memory), y_1 … y_L the tokens and the end.

    Its queries are its own tokens, shifted by one: query l is the embedding of y_{l-1} (the first is that of the begin
    token), at place l - 1, and its answer is asked for y_l. In training all are asked at once (teacher forcing); later
    they are written one by one (:mod:`mapsto.models.search`). A row that goes on from another, such as a window of a
    longer text, brings the token ``before`` it, and is asked from that.

    Args:
        dim: D.
        name: what the target is called.
        vocabulary: turns a text (or list of symbols) into ids.
        limit: at most so many tokens a row, the end not counted; what is longer is cut, and then has no end. 0: no limit.
        longest: where writing ends at last: as many tokens as all but a thousandth of the training rows have, at most.
        window: a row of any length is learned from in windows of so many tokens (a language model); 0: whole.
        smoothing: share s of the loss that is spread over all tokens: (1 - s)·NLL + s·mean_c(-log p_c).
        tie: whether a token's row of the last layer is its embedding.

    Reference: Sutskever et al., Sequence to sequence learning, 2014; Vaswani et al., 2017; tied embeddings: Press &
    Wolf, 2017.
    """

    kind = "sequence"
    causal = True

    def __init__(
        self,
        dim: int,
        *,
        name: str,
        vocabulary: Vocabulary,
        limit: int = 0,
        longest: int = 256,
        window: int = 0,
        smoothing: float = 0.0,
        tie: bool = True,
    ):
        super().__init__()
        self.dim, self.name, self.vocabulary = dim, name, vocabulary
        self.limit, self.longest, self.window = limit, longest, window
        self.smoothing, self.tie = smoothing, tie
        self.embedding = nn.Embedding(vocabulary.size, dim)
        self.head = TokenTarget(dim, vocabulary=vocabulary)
        if tie:
            self.head.head.weight = self.embedding.weight

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
        window: int = 0,
        smoothing: float = 0.0,
        tie: bool = True,
        **_: Any,
    ) -> dict[str, Any]:
        """Learn the vocabulary of the one column."""
        told, lengths = cls.learned(chunks, columns, vocabulary, vocabulary_size, vocabulary_least)
        longest = 1 + int(np.quantile(lengths, 0.999, method="higher")) if lengths else 1
        longest = min(longest, window or (limit and limit + 1) or longest)  # what is cut has no end
        numbers = {"limit": limit, "longest": longest, "window": window, "smoothing": smoothing}
        return {**told, **numbers, "tie": tie}

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but ``dim``."""
        names = ("name", "vocabulary", "limit", "longest", "window", "smoothing", "tie")
        return {name: getattr(self, name) for name in names}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``ids`` and ``valid`` (B, L), and ``before`` (B,), the token before each row."""
        ids, valid = columns["ids"].pad()
        if "before" in columns:
            before = torch.from_numpy(columns["before"].dense()[:, 0])
        else:
            before = torch.full((len(ids),), BEGIN, dtype=torch.int32)
        return {"ids": torch.from_numpy(ids), "valid": torch.from_numpy(valid), "before": before}

    def queries(self, memory: Collection, target: Mapping[str, Tensor] | None = None, *, start: int = 0) -> Collection:
        """The embeddings of the target's tokens, shifted by one."""
        assert target is not None, "a sequence asks by its own tokens"
        known = target["ids"].masked_fill(~target["valid"], 0)
        ids = torch.cat([target["before"][:, None], known], 1)[:, : known.shape[1]]
        return self.ask(ids, start, target["valid"])

    def ask(
        self, ids: Int[Tensor, "B T"], first: int | Int[Tensor, " B"] = 0, valid: Bool[Tensor, "B T"] | None = None
    ) -> Collection:
        """The queries that follow these tokens, the first of each row at place ``first``."""
        rank = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
        places = rank.expand(ids.shape) + (first[:, None] if isinstance(first, Tensor) else first)
        return Collection.build(self.embedding(ids), valid, places[..., None])

    def asked(self, memory: Collection, target: Mapping[str, Tensor]) -> Bool[Tensor, "B L"]:
        """The tokens that exist."""
        return target["valid"]

    def step(self, answers: Float[Tensor, "B T D"], product: Products) -> Float[Tensor, "B T V"]:
        """The same log-odds of few answers, for decoding."""
        return product(answers, self.head.head.weight, self.head.head.bias)

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray:
        """Tokens, the end included."""
        return columns["ids"].lengths
