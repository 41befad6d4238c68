"""One answer for the whole group: a label, several labels, numbers, or several of these at once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from mapsto.collection import Collection
from mapsto.errors import DataError
from mapsto.likelihoods import wide
from mapsto.likelihoods.gaussian import learned, normal
from mapsto.nn.counted import suits
from mapsto.nn.loss import Loss
from mapsto.nn.target import TARGETS, LabelTarget, NumberTarget, Target
from mapsto.outputs import Output, Theta
from mapsto.ragged import Rows

__all__ = ["KNOWN", "VectorOutput"]

KNOWN = "\tknown"
"""The column that says which cells are known: a name that no target has."""


class VectorOutput(Output):
    """One learned query; its answer goes to the head of every target.

    Args:
        dim: D.
        targets: by name, ``{"kind": "label", "classes": [...]}`` and so on (:mod:`mapsto.nn.target`).
        smoothing: ε of label smoothing: the loss is (1 − ε)·NLL + ε·(mean NLL over all classes).
        holes: whether a cell may be missing (None): it then costs nothing and counts as nothing.
    """

    kind = "vector"

    def __init__(self, dim: int, *, targets: dict[str, dict[str, Any]], smoothing: float = 0.0, holes: bool = False):
        super().__init__()
        self.dim, self.holes = dim, holes
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

    def _parted(self) -> tuple[dict[str, NumberTarget], dict[str, Target]]:
        """Single numbers with a σ for all rows, which are computed at once; and the others."""
        alike = {n: t for n, t in self.targets.items() if isinstance(t, NumberTarget) and t.spread is not None}
        return alike, {n: t for n, t in self.targets.items() if n not in alike}

    @classmethod
    def measure(
        cls,
        chunks: Iterable[Sequence[Any]],
        *,
        columns: Sequence[tuple[str, str]] = (),
        smoothing: float = 0.0,
        holes: bool = False,
        sigma: str = "dims",
        number: str = "auto",
        **_: Any,
    ) -> dict[str, Any]:
        """Measure every (name, kind); a value is a tuple of cells, of which some may be None where holes are allowed.

        Args:
            chunks: the values.
            columns: (name, kind).
            smoothing: see the constructor.
            holes: see the constructor.
            sigma: of numbers that are no counts.
            number: ``gaussian``; ``count``; or ``auto``: where holes are allowed, what fits the column better.
        """
        rows = [value for chunk in chunks for value in chunk]
        targets = {}
        for i, (name, kind) in enumerate(columns):
            known = [row[i] for row in rows if row[i] is not None or not holes]
            targets[name] = {"kind": kind, **TARGETS[kind].measure(known)}
            if kind == "number":
                counted = number == "count" or (number == "auto" and holes and _counts(rows, columns, i))
                targets[name] |= {"sigma": sigma, "counted": counted}
        return {"targets": targets, "smoothing": smoothing, "holes": holes}

    def settings(self) -> dict[str, Any]:
        """The targets, the smoothing, and whether cells may be missing."""
        targets = {name: {"kind": t.kind, **t.settings()} for name, t in self.targets.items()}
        return {"targets": targets, "smoothing": self.smoothing, "holes": self.holes}

    def parse(self, value: Sequence[Any]) -> dict[str, NDArray]:
        """One array a target; and ``known`` (1, targets), where cells may be missing."""
        if not self.holes:
            return {n: t.encode(cell)[None] for (n, t), cell in zip(self.targets.items(), value, strict=True)}
        # A label that was never seen has no likelihood: it counts as not known.
        known = [
            cell is not None and not (isinstance(t, LabelTarget) and cell not in t.classes)
            for t, cell in zip(self.targets.values(), value, strict=True)
        ]
        if not any(known):
            raise DataError("has no cell that is known")
        cells = zip(self.targets.items(), value, known, strict=True)
        arrays = {n: t.encode(cell if there else _some(t))[None] for (n, t), cell, there in cells}
        return {**arrays, KNOWN: np.array([known])}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """(B, 1, ...) by target; and ``known`` (B, targets)."""
        found = {name: torch.from_numpy(columns[name].dense()) for name in self.names}
        if self.holes:
            found[KNOWN] = torch.from_numpy(columns[KNOWN].dense()[:, 0])
        return found

    def hide(self, target: Mapping[str, Tensor], hidden: Bool[Tensor, "B C"]) -> dict[str, Tensor]:
        """The same rows without some cells, by their targets in order."""
        return {**target, KNOWN: target[KNOWN] & ~hidden}

    def queries(self, memory: Collection, target: Mapping[str, Tensor] | None = None, *, start: int = 0) -> Collection:
        """The one query."""
        size = memory.valid.shape[0]
        return Collection.build(self.query.to(memory.items.dtype).expand(size, 1, -1))

    def forward(self, answers: Float[Tensor, "B 1 D"]) -> Theta:
        """θ by target."""
        alike, others = self._parted()
        found = {name: target(answers) for name, target in others.items()}
        if alike:
            weight, bias = (torch.cat([getattr(t.head, n) for t in alike.values()]) for n in ("weight", "bias"))
            found |= dict(zip(alike, F.linear(answers, weight, bias).split(1, -1), strict=True))
        return {name: found[name] for name in self.names}

    def log_likelihood(self, theta: Theta, target: Mapping[str, Tensor]) -> Float[Tensor, " B"]:
        """Summed over the targets that are known."""
        alike, others = self._parted()
        found = {name: head.log_likelihood(theta[name], target[name]).sum(1) for name, head in others.items()}
        if alike:
            mu, x = (torch.cat([of[name] for name in alike], -1) for of in (theta, target))
            spread = learned(torch.cat([t.spread for t in alike.values() if t.spread is not None]))
            scale = torch.tensor([float(t.scale[0]) for t in alike.values()], dtype=torch.float64).log().to(spread)
            log_p = normal(wide(mu), spread.expand_as(mu), x) - scale
            found |= dict(zip(alike, log_p.sum(1).unbind(-1), strict=True))
        each = torch.stack([found[name] for name in self.names])
        return (each.masked_fill(~target[KNOWN].T, 0) if self.holes else each).sum(0)

    def count(self, target: Mapping[str, Tensor], like: Tensor) -> Float[Tensor, " B"]:
        """The cells that are known; without holes one, for there is one answer a row."""
        return target[KNOWN].sum(1).to(like.dtype) if self.holes else super().count(target, like)

    def loss(self, theta: Theta, target: Mapping[str, Tensor]) -> Loss:
        """NLL of the event (a number's in standardised units), by target."""
        terms: dict[str, Tensor] = {}
        weights: dict[str, float] = {}
        for i, (name, head) in enumerate(self.targets.items()):
            own = {name: -head.likelihood.log_prob(theta[name], target[name]).sum(1)}
            if self.smoothing:
                for extra, term in head.extra(theta[name]).items():
                    own[f"{name}.{extra}"] = term.sum(1)
                    weights |= {name: 1 - self.smoothing, f"{name}.{extra}": self.smoothing}
            terms |= {n: t.masked_fill(~target[KNOWN][:, i], 0) for n, t in own.items()} if self.holes else own
        return Loss(terms, weights, self.count(target, terms[self.names[0]]))

    def predict(self, theta: Theta) -> dict[str, dict[str, NDArray]]:
        """Arrays (B, ...): there is one answer a row."""
        return {n: {k: v[:, 0] for k, v in t.predict(theta[n]).items()} for n, t in self.targets.items()}


def _counts(rows: list[Any], columns: Sequence[tuple[str, str]], i: int) -> bool:
    """Whether column i is of counts; the other numbers of its rows say what is to be expected of it."""
    known = [row for row in rows if row[i] is not None]
    if np.ndim(known[0][i]):
        return False
    others = [j for j, (_, kind) in enumerate(columns) if kind == "number" and j != i and not np.ndim(known[0][j])]
    beside = np.array([[row[j] for j in others] for row in known], np.float64).reshape(len(known), len(others))
    return suits(np.array([row[i] for row in known], np.float64), beside)


def _some(target: Target) -> Any:
    """What stands where nothing is known, and is never looked at."""
    if isinstance(target, NumberTarget):
        return [0.0] if target.counted else target.mean.tolist()
    return target.settings()["classes"][0]
