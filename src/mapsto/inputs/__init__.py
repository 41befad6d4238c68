"""What comes in: an open set. A kind is one file here; ``sequence.py`` holds ``SequenceInput``."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto import kinds
from mapsto.collection import Collection
from mapsto.nn.channel import Frame
from mapsto.ragged import Ragged, Rows

__all__ = ["Input"]


class Input(nn.Module, ABC):
    """The contract of every input: raw values ↦ arrays in the store ↦ a batch ↦ a :class:`Collection`.

    An input gives items and places, and adds nothing to them: positions are the encoder's.

    Attributes:
        kind: its name in files and on the command line.
    """

    kind: ClassVar[str]

    @classmethod
    @abstractmethod
    def measure(cls, chunks: Iterable[Sequence[Any]], **options: Any) -> dict[str, Any]:
        """The constructor's arguments but ``dim``, from the values of the training rows, streamed once.

        JSON, but for vocabularies, which become files of their own.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What :meth:`measure` gave."""

    @abstractmethod
    def parse(self, value: Any) -> dict[str, NDArray]:
        """One row's value as named arrays, whose first axis may differ from row to row.

        Raises:
            DataError: the value cannot be read; the caller adds file, row and column.
        """

    @abstractmethod
    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """A batch of the stored rows, all at once."""

    @abstractmethod
    def forward(self, batch: Mapping[str, Tensor]) -> Collection:
        """The items and where they are."""

    def frame(self, batch: Mapping[str, Tensor], past: int = 0) -> Frame | None:
        """Where the numbers of each row end, how far they spread, and the last ``past`` of them; None if there are none."""
        return None

    @abstractmethod
    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray:
        """(rows,) how many items each stored row will have: what batches are measured by."""

    @abstractmethod
    def plain(self, columns: Mapping[str, Rows]) -> Any:
        """The rows as a matrix (dense, or scipy CSR) for the simple models that stand beside every result."""

    @abstractmethod
    def names(self, columns: Mapping[str, Rows]) -> list[list[str]]:
        """How to show each item of each row to a person."""


__getattr__ = kinds.lazy("inputs")
