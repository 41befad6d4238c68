"""One answer for the whole group: a label, several labels, numbers, or several of these at once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.nn.loss import Loss
from mapsto.nn.target import TARGETS, Target
from mapsto.outputs import Output, Theta
from mapsto.ragged import Rows

__all__ = ["VectorOutput"]


class VectorOutput(Output):
    """One learned query; its answer goes to the head of every target.

    Args:
        dim: D.
        targets: by name, ``{"kind": "label", "classes": [...]}`` and so on (:mod:`mapsto.nn.target`).
        smoothing: ε of label smoothing: the loss is (1 − ε)·NLL + ε·(mean NLL over all classes).
    """

    kind = "vector"

    def __init__(self, dim: int, *, targets: dict[str, dict[str, Any]], smoothing: float = 0.0):
        super().__init__()
        self.dim = dim
        self.smoothing = smoothing
        self.query = nn.Parameter(torch.zeros(dim))
        self.names = list(targets)
        self.heads = nn.ModuleList(
            TARGETS[t["kind"]](dim, **{n: v for n, v in t.items() if n != "kind"}) for t in targets.values()
        )

    @property
    def targets(self) -> dict[str, Target]:
        """By name."""
        return dict(zip(self.names, self.heads, strict=True))  # type: ignore[arg-type]

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
        """Measure every (name, kind); a value is a tuple of cells."""
        rows = [value for chunk in chunks for value in chunk]
        targets = {}
        for i, (name, kind) in enumerate(columns):
            spread = {"sigma": sigma} if kind == "number" else {}
            targets[name] = {"kind": kind, **TARGETS[kind].measure(row[i] for row in rows), **spread}
        return {"targets": targets, "smoothing": smoothing}

    def settings(self) -> dict[str, Any]:
        """The targets and the smoothing."""
        targets = {name: {"kind": t.kind, **t.settings()} for name, t in self.targets.items()}
        return {"targets": targets, "smoothing": self.smoothing}

    def parse(self, value: Sequence[Any]) -> dict[str, NDArray]:
        """One array a target."""
        return {
            name: target.encode(cell)[None] for (name, target), cell in zip(self.targets.items(), value, strict=True)
        }

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """(B, 1, ...) by target."""
        return {name: torch.from_numpy(columns[name].dense()) for name in self.names}

    def queries(self, memory: Collection, target: Mapping[str, Tensor] | None = None, *, start: int = 0) -> Collection:
        """The one query."""
        size = memory.valid.shape[0]
        return Collection.build(self.query.to(memory.items.dtype).expand(size, 1, -1))

    def forward(self, answers: Float[Tensor, "B 1 D"]) -> Theta:
        """θ by target."""
        return {name: target(answers) for name, target in self.targets.items()}

    def log_likelihood(self, theta: Theta, target: Mapping[str, Tensor]) -> Float[Tensor, " B"]:
        """Summed over the targets."""
        return torch.stack([t.log_likelihood(theta[n], target[n]).sum(1) for n, t in self.targets.items()]).sum(0)

    def loss(self, theta: Theta, target: Mapping[str, Tensor]) -> Loss:
        """NLL of the event (a number's in standardised units), by target."""
        terms: dict[str, Tensor] = {}
        weights: dict[str, float] = {}
        for name, head in self.targets.items():
            terms[name] = -head.likelihood.log_prob(theta[name], target[name]).sum(1)
            if self.smoothing:
                for extra, term in head.extra(theta[name]).items():
                    terms[f"{name}.{extra}"] = term.sum(1)
                    weights |= {name: 1 - self.smoothing, f"{name}.{extra}": self.smoothing}
        first = terms[self.names[0]]
        return Loss(terms, weights, torch.ones_like(first))

    def predict(self, theta: Theta) -> dict[str, dict[str, NDArray]]:
        """Arrays (B, ...): there is one answer a row."""
        return {n: {k: v[:, 0] for k, v in t.predict(theta[n]).items()} for n, t in self.targets.items()}
