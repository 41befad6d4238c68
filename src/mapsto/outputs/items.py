"""One answer an item: tags of words, labels of frames, numbers along a series, later nodes of graphs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from mapsto.collection import Collection
from mapsto.errors import DataError
from mapsto.nn.loss import Loss
from mapsto.nn.target import TARGETS, Target
from mapsto.outputs import Output, Theta
from mapsto.ragged import Rows

__all__ = ["ItemsOutput"]


class ItemsOutput(Output):
    """Every item of the memory is a query of its own and answers for itself.

    Args:
        dim: D.
        name: what the target is called.
        target: ``{"kind": "label", "classes": [...]}`` and so on (:mod:`mapsto.nn.target`).
        smoothing: see :class:`~mapsto.outputs.vector.VectorOutput`.
    """

    kind = "items"

    def __init__(self, dim: int, *, name: str, target: dict[str, Any], smoothing: float = 0.0):
        super().__init__()
        self.dim = dim
        self.name, self.smoothing = name, smoothing
        self.head: Target = TARGETS[target["kind"]](dim, **{n: v for n, v in target.items() if n != "kind"})

    @property
    def targets(self) -> dict[str, Target]:
        """By name: the one there is."""
        return {self.name: self.head}

    @classmethod
    def measure(
        cls,
        chunks: Iterable[Sequence[Any]],
        *,
        columns: Sequence[tuple[str, str]] = (),
        smoothing: float = 0.0,
        sigma: str = "dims",
        **_: Any,
    ) -> dict[str, Any]:
        """Measure the one (name, kind); a value is a tuple of one list, an entry an item."""
        ((name, kind),) = columns
        events = (event for chunk in chunks for (value,) in chunk for event in value)
        spread = {"sigma": sigma} if kind == "number" else {}
        target = {"kind": kind, **TARGETS[kind].measure(events), **spread}
        return {"name": name, "target": target, "smoothing": smoothing}

    def settings(self) -> dict[str, Any]:
        """Name, target and smoothing."""
        target = {"kind": self.head.kind, **self.head.settings()}
        return {"name": self.name, "target": target, "smoothing": self.smoothing}

    def parse(self, value: Sequence[Any]) -> dict[str, NDArray]:
        """``values``, one event an item."""
        (events,) = value
        if not len(events):
            raise DataError("is empty")
        return {"values": np.stack([self.head.encode(event) for event in events])}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``values`` (B, N, ...) and ``valid`` (B, N)."""
        values, valid = columns["values"].pad()
        return {"values": torch.from_numpy(values), "valid": torch.from_numpy(valid)}

    def queries(self, memory: Collection, target: Mapping[str, Tensor] | None = None, *, start: int = 0) -> Collection:
        """The memory itself."""
        return memory

    def asked(self, memory: Collection, target: Mapping[str, Tensor]) -> Bool[Tensor, "B L"]:
        """The items that exist."""
        return memory.valid

    def event(self, name: str, target: Mapping[str, Tensor]) -> Tensor:
        """An event an item."""
        return target["values"]

    def forward(self, answers: Float[Tensor, "B N D"]) -> Theta:
        """θ of every item."""
        return {self.name: self.head(answers)}

    def log_likelihood(self, theta: Theta, target: Mapping[str, Tensor]) -> Float[Tensor, " B"]:
        """Summed over the items."""
        known, values, hole = self._real(theta, target)
        return self.head.log_likelihood(known, values).masked_fill(hole, 0).sum(1)

    def loss(self, theta: Theta, target: Mapping[str, Tensor]) -> Loss:
        """NLL summed over a row's items; counted by items, so that long rows weigh as much as they hold."""
        known, values, hole = self._real(theta, target)
        return self.head.loss(self.name, known, values, hole, self.smoothing)

    def _real(self, theta: Theta, target: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """θ and values with zeros at padding, since the gradient of what is masked afterwards is 0 · NaN; the padding.

        There may be more θ than places in the target: pictures of several sizes leave padding that no row fills.
        """
        hole, values = ~target["valid"], target["values"]
        mask = hole.reshape(*hole.shape, *(1,) * (values.dim() - 2))
        return theta[self.name][:, : hole.shape[1]].masked_fill(hole[..., None], 0), values.masked_fill(mask, 0), hole

    def predict(self, theta: Theta) -> dict[str, dict[str, NDArray]]:
        """Arrays (B, N, ...); what stands at padding means nothing."""
        return {self.name: self.head.predict(theta[self.name])}
