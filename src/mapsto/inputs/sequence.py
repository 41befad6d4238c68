"""Text, symbols, ids: a sequence of tokens at places 0, 1, 2 and so on."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.errors import ConfigError, DataError
from mapsto.inputs import Input
from mapsto.ngram import ngrams
from mapsto.ragged import Ragged, Rows
from mapsto.vocabulary import BEGIN, Characters, Vocabulary, learn_column

__all__ = ["SequenceInput"]

KEEP = ("first", "last", "ends")
BUCKETS = 1 << 15
PRIME = 0x9E3779B1


class SequenceInput(Input):
    """Tokens ↦ their embeddings, at the places of their ranks.

    Args:
        dim: D.
        vocabulary: turns a text (or list of symbols) into ids.
        limit: at most so many tokens a row; 0 is no limit.
        keep: which tokens of a longer row: its ``first``, its ``last``, or half from both ``ends``.
        stem: 0, or the width of a convolution over neighbouring tokens, added to their embeddings.
        ngrams: 0 or 1, or the largest n: the embeddings of the n-grams (2 to n) that end at a token are added to its
            own, from a table of 2¹⁵ hashed entries (Bojanowski et al., 2017, at every token).
    """

    kind = "sequence"

    def __init__(
        self, dim: int, *, vocabulary: Vocabulary, limit: int = 0, keep: str = "first", stem: int = 0, ngrams: int = 0
    ):
        super().__init__()
        if keep not in KEEP:
            raise ConfigError(f'input.keep: "{keep}" is not one of {", ".join(KEEP)}')
        if stem and stem % 2 == 0:
            raise ConfigError(f"input.stem={stem}: the width of a convolution over tokens is odd, such as 3 or 5")
        self.vocabulary, self.limit, self.keep, self.stem = vocabulary, limit, keep, stem
        self.embedding = nn.Embedding(vocabulary.size, dim)
        self.convolution = nn.Conv1d(dim, dim, stem, padding=stem // 2) if stem else None
        self.ngrams = ngrams
        self.grams = nn.Embedding(BUCKETS, dim) if ngrams > 1 else None

    @classmethod
    def measure(
        cls,
        chunks: Iterable[Sequence[Any]],
        *,
        vocabulary: str = "auto",
        vocabulary_size: int = 8000,
        vocabulary_least: int = 1,
        columns: Sequence[tuple[str, str]] = (),
        limit: int = 512,
        keep: str = "first",
        stem: int = 0,
        ngrams: int = 0,
        **_: Any,
    ) -> dict[str, Any]:
        """Learn the vocabulary.

        ``auto`` is subwords for texts of several words, words where there are few of them, characters for strings
        without spaces, and symbols for lists.
        """
        values = chain.from_iterable(chunks)
        if [kind for _, kind in columns] == ["music"]:
            vocabulary = "music"
        learned = learn_column(vocabulary, values, size=vocabulary_size, least=vocabulary_least, few="words")
        return {"vocabulary": learned, "limit": limit, "keep": keep, "stem": stem, "ngrams": ngrams}

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but ``dim``."""
        return {
            "vocabulary": self.vocabulary,
            "limit": self.limit,
            "keep": self.keep,
            "stem": self.stem,
            "ngrams": self.ngrams,
        }

    def parse(self, value: Any) -> dict[str, NDArray]:
        """``ids``, cut to the limit."""
        music = self.vocabulary.kind == "music"
        if not music and not isinstance(value, str | list | tuple | np.ndarray):
            raise DataError(f"{value!r} is no text and no list of symbols")
        if not isinstance(value, str) and self.vocabulary.kind != "symbols" and not music:
            raise DataError(f"is a list, expected a text: this input reads {self.vocabulary.kind}")
        ids = self.vocabulary.encode(value)
        if not len(ids):
            raise DataError("is empty")
        if self.limit and len(ids) > self.limit:
            if self.keep == "first":
                ids = ids[: self.limit]
            elif self.keep == "last":
                ids = ids[-self.limit :]
            else:
                ids = np.concatenate([ids[: self.limit - self.limit // 2], ids[len(ids) - self.limit // 2 :]])
        return {"ids": ids}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``ids`` and ``valid``, (B, N)."""
        ids, valid = columns["ids"].pad()
        return {"ids": torch.from_numpy(ids), "valid": torch.from_numpy(valid)}

    def forward(self, batch: Mapping[str, Tensor]) -> Collection:
        """Embeddings at ranks."""
        ids, valid = batch["ids"], batch["valid"]
        items = self.embedding(ids)
        places = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32).expand(ids.shape)[..., None]
        if self.grams is not None:
            items = items + self._grams(ids)
        if self.convolution is not None and ids.shape[1]:  # torch has no convolution of nothing
            known = items.masked_fill(~valid[..., None], 0)
            items = items + nn.functional.gelu(self.convolution(known.transpose(1, 2))).transpose(1, 2)
        return Collection.build(items, valid, places)

    def _grams(self, ids: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
        """The sum over n of the embedding of (id_{l-n+1}, ..., id_l): it looks back only, so padding never matters."""
        assert self.grams is not None
        found = torch.zeros((), device=ids.device)
        key = ids.long()
        for n in range(1, self.ngrams):
            before = nn.functional.pad(ids, (n, 0), value=BEGIN)[:, : ids.shape[1]]
            key = key * PRIME + before + n
            found = found + self.grams((key ^ (key >> 17)) % BUCKETS)
        return found

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray:
        """Tokens."""
        return columns["ids"].lengths

    def plain(self, columns: Mapping[str, Rows]) -> Any:
        """Counts of n-grams: words and pairs; for characters one to three in a row."""
        values, lengths = columns["ids"].flat()
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        sizes = (1, 2, 3) if isinstance(self.vocabulary, Characters) else (1, 2)
        return ngrams(values, offsets, sizes=sizes, bound=self.vocabulary.size)

    def names(self, columns: Mapping[str, Rows]) -> list[list[str]]:
        """The tokens."""
        values, lengths = columns["ids"].flat()
        return [self.vocabulary.names(part) for part in np.split(values, np.cumsum(lengths)[:-1])]
