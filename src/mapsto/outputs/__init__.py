"""What goes out: an open set. A kind is one file here; ``vector.py`` holds ``VectorOutput``."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto import kinds
from mapsto.collection import Collection
from mapsto.errors import DataError
from mapsto.nn.channel import Frame
from mapsto.nn.loss import Loss
from mapsto.nn.target import Target, TokenTarget
from mapsto.ragged import Ragged, Rows
from mapsto.vocabulary import END, Vocabulary, learn

__all__ = ["Output", "Theta", "TokenOutput"]

Theta = dict[str, Tensor]
"""(B, L, width) by target: the parameters of its likelihood at every query."""


class Output(nn.Module, ABC):
    """The contract of every output: the queries it asks, and what the answers mean.

    Attributes:
        kind: its name in files and on the command line.
        causal: whether query l may see queries up to l only.
        dim: D, the width of an answer.
        source: the number of the input that θ is relative to (:meth:`relate`); -1 for most outputs, which need none.
        past: how many of its last samples are wanted.
    """

    kind: ClassVar[str]
    causal: ClassVar[bool] = False
    dim: int
    source: int = -1
    past: int = 0

    @classmethod
    @abstractmethod
    def measure(cls, chunks: Iterable[Sequence[Any]], **options: Any) -> dict[str, Any]:
        """The constructor's arguments but ``dim``, as JSON, from the values of the training rows, streamed once."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What :meth:`measure` gave."""

    @property
    @abstractmethod
    def targets(self) -> dict[str, Target]:
        """What is asked, by name."""

    @abstractmethod
    def parse(self, value: Any) -> dict[str, NDArray]:
        """One row's value as named arrays.

        Raises:
            DataError: the value cannot be read; the caller adds file, row and column.
        """

    @abstractmethod
    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """A batch of the stored rows, all at once: the target of :meth:`loss`."""

    def asked(self, memory: Collection, target: Mapping[str, Tensor]) -> Bool[Tensor, "B L"] | None:
        """Which queries exist; None if all do, one a row."""
        return None

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray | int:
        """(rows,) how many items the queries of each stored row add to a batch; what batches are measured by."""
        return 0

    @abstractmethod
    def queries(self, memory: Collection, target: Mapping[str, Tensor] | None = None, *, start: int = 0) -> Collection:
        """What is asked of the memory. A causal output asks by its own target, shifted by one."""

    def event(self, name: str, target: Mapping[str, Tensor]) -> Tensor:
        """What is true of each query of one of the targets, (B, L, ...)."""
        return target[name]

    @abstractmethod
    def forward(self, answers: Float[Tensor, "B L D"]) -> Theta:
        """The likelihoods' parameters."""

    def relate(self, theta: Theta, frame: Frame) -> Theta:
        """θ in units of all rows, from θ in units of each row's own source."""
        return theta

    @abstractmethod
    def log_likelihood(self, theta: Theta, target: Mapping[str, Tensor]) -> Float[Tensor, " B"]:
        """Log p(target | θ) in nats a row: exact, unweighted, unsmoothed."""

    @abstractmethod
    def loss(self, theta: Theta, target: Mapping[str, Tensor]) -> Loss:
        """What training minimises."""

    def count(self, target: Mapping[str, Tensor], like: Tensor) -> Float[Tensor, " B"]:
        """How many numbers or tokens each row's target has, as numbers like others; one, where a row has one answer."""
        return like.new_ones(like.shape[-1])

    @abstractmethod
    def predict(self, theta: Theta) -> dict[str, dict[str, NDArray]]:
        """By target, named arrays (B, L, ...): see :mod:`mapsto.nn.target`."""


class TokenOutput(Output):
    """What all outputs that write tokens are: log p(y | memory) = Σ_l log p(y_l | …), y_1 … y_L the tokens and the end.

    Attributes:
        name: what the target is called.
        vocabulary: turns a text (or list of symbols) into ids.
        limit: at most so many tokens a row, the end not counted; what is longer is cut, and then has no end. 0: no limit.
        longest: where writing ends at last.
        window: of a language model, the tokens it sees at once; 0 of a map.
        smoothing: share s of the loss that is spread over all tokens: (1 - s)·NLL + s·mean_c(-log p_c).
        head: makes answers into the log-odds of tokens.
    """

    name: str
    vocabulary: Vocabulary
    limit: int
    longest: int
    window: int
    smoothing: float
    head: TokenTarget

    @property
    def targets(self) -> dict[str, Target]:
        """By name: the one there is."""
        return {self.name: self.head}

    @staticmethod
    def learned(
        chunks: Iterable[Sequence[Any]],
        columns: Sequence[tuple[str, str]],
        vocabulary: str,
        size: int,
        least: int,
    ) -> tuple[dict[str, Any], list[int]]:
        """``name`` and ``vocabulary`` of the one column, and the tokens of every row, of which texts have bytes."""
        ((name, kind),) = columns
        values = (value for chunk in chunks for (value,) in chunk)
        if kind == "music":
            music = learn("music", ())
            return {"name": name, "vocabulary": music}, [len(music.encode(value)) for value in values]
        lengths: list[int] = []
        told = TokenTarget.measure(_measured(values, lengths), vocabulary=vocabulary, size=size, least=least)
        return {"name": name, **told}, lengths

    def parse(self, value: Sequence[Any]) -> dict[str, NDArray]:
        """``ids``: the tokens and the end."""
        (written,) = value
        if not isinstance(written, str) and self.vocabulary.kind not in ("symbols", "music"):
            raise DataError(f"is a list, expected a text: this output writes {self.vocabulary.kind}")
        ids = self.vocabulary.encode(written)
        if not len(ids):
            raise DataError("is empty")
        if self.limit and len(ids) > self.limit:
            return {"ids": ids[: self.limit]}
        return {"ids": np.append(ids, np.int32(END))}

    def event(self, name: str, target: Mapping[str, Tensor]) -> Tensor:
        """The tokens."""
        return target["ids"].long()

    def forward(self, answers: Float[Tensor, "B L D"]) -> Theta:
        """The log-odds of every token at every query."""
        return {self.name: self.head(answers)}

    def log_likelihood(self, theta: Theta, target: Mapping[str, Tensor]) -> Float[Tensor, " B"]:
        """Log p of the whole sequence, its end included."""
        known, ids, hole = self._real(theta, target)
        return self.head.log_likelihood(known, ids).masked_fill(hole, 0).sum(1)

    def loss(self, theta: Theta, target: Mapping[str, Tensor]) -> Loss:
        """NLL summed over a row's tokens, counted by tokens; label smoothing is a term of its own."""
        known, ids, hole = self._real(theta, target)
        return self.head.loss(self.name, known, ids, hole, self.smoothing)

    def count(self, target: Mapping[str, Tensor], like: Tensor) -> Float[Tensor, " B"]:
        """Tokens, the end included."""
        return target["valid"].sum(1).to(like.dtype)

    def _real(self, theta: Theta, target: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """θ and ids with zeros at padding, since the gradient of what is masked afterwards is 0 · NaN; the padding."""
        hole = ~target["valid"]
        return theta[self.name].masked_fill(hole[..., None], 0), target["ids"].long().masked_fill(hole, 0), hole

    def predict(self, theta: Theta) -> dict[str, dict[str, NDArray]]:
        """``value`` (B, L): the likeliest next token at each place."""
        return {self.name: self.head.predict(theta[self.name])}


def _measured(values: Iterable[Any], lengths: list[int]) -> Iterator[Any]:
    """The values, and no less than their tokens: bytes of a text, symbols of a list."""
    for value in values:
        lengths.append(len(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value))
        yield value


__getattr__ = kinds.lazy("outputs")
