"""What goes out: an open set. A kind is one file here; ``vector.py`` holds ``VectorOutput``."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto import kinds
from mapsto.collection import Collection
from mapsto.nn.channel import Frame
from mapsto.nn.loss import Loss
from mapsto.nn.target import Target
from mapsto.ragged import Ragged, Rows

__all__ = ["Output", "Theta"]

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


__getattr__ = kinds.lazy("outputs")
