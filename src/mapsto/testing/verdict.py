"""What a law check finds: one verdict a law and statement, and the error that a broken one raises."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from mapsto.errors import ConfigError

__all__ = ["Case", "LawError", "Report", "Verdict", "require", "tolerance"]

Subject = TypeVar("Subject")


class LawError(AssertionError):
    """A law is broken: names the law, the kind, the case and the size of the violation."""


@dataclass(frozen=True)
class Verdict:
    """What the cases of one statement of one law found.

    Attributes:
        law: its letter.
        statement: what must hold.
        passed: whether it held in every case.
        worst: the largest violation, max|a − b| / max(1, rms b) where values are compared; inf for a NaN or an error.
        note: how many cases were tried; or the kind, the case and what happened in the first that broke it.
    """

    law: str
    statement: str
    passed: bool
    worst: float
    note: str


def require(verdicts: Iterable[Verdict]) -> None:
    """Raise if a law is broken: the last step of a test.

    Raises:
        LawError: with a line for every broken statement.

    Example:
        >>> require([Verdict("P", "padding changes nothing", False, 0.5, "Mean, 3 padded items: differs by 0.5")])
        Traceback (most recent call last):
        ...
        mapsto.testing.verdict.LawError: law P, padding changes nothing: Mean, 3 padded items: differs by 0.5
    """
    broken = [f"law {v.law}, {v.statement}: {v.note}" for v in verdicts if not v.passed]
    if broken:
        raise LawError("\n".join(broken))


def tolerance(dtype: torch.dtype, *, model: bool = False) -> float:
    """How far apart two ways of computing the same may be: 1e-10 in float64; 1e-5 (a model: 1e-4) in float32."""
    if dtype == torch.float64:
        return 1e-10
    return 1e-4 if model else 1e-5


@dataclass
class Case:
    """One case of a statement: says what it compares, and keeps the worst.

    Attributes:
        worst: the largest violation so far.
        broken: what went wrong first, or nothing.
    """

    worst: float = 0.0
    broken: str = ""

    def exactly(self, found: Any, wanted: Any, what: str = "") -> None:
        """Two pytrees of tensors are equal bit for bit."""
        for a, b in _pairs(found, wanted):
            same = a.shape == b.shape and torch.equal(a, b)
            self._judge(same, 0.0 if same else _distance(a, b), f"{what} must be equal bit for bit, differs by".strip())

    def agree(self, found: Any, wanted: Any, tol: float, what: str = "") -> None:
        """max|a − b| <= tol · max(1, rms b) for every leaf of two pytrees of tensors."""
        for a, b in _pairs(found, wanted):
            size = _distance(a, b)
            self._judge(size <= tol, size, f"{what} may differ by {tol:g}, differs by".strip())

    def rival(self, found: Any, plain: Any, wanted: Any, what: str = "") -> None:
        """rms(a − b) <= 2 · rms(p − b) for every leaf of a pytree, where p is a plain way of computing the wanted b.

        Of rounding errors the largest is a matter of luck: two equally good ways differ in it by more than twice.
        """
        for (a, b), (p, _) in zip(_pairs(found, wanted), _pairs(plain, wanted), strict=True):
            size, most = _error(a, b), 2 * _error(p, b)
            text = f"{what} may err by {most:.3g}, twice what the plain formula does, err by".strip()
            self._judge(size <= most and math.isfinite(size), size, text)

    def near(self, found: Any, wanted: Any, tol: float, what: str = "") -> None:
        """|a − b| <= tol · max(1, |b|) for the norms of two pytrees of tensors, each taken as one vector: gradients."""
        pairs = _pairs(found, wanted)
        self.that(all(a.shape == b.shape for a, b in pairs), f"{what} have other shapes".strip())
        if not pairs or self.broken:
            return
        a, b = (torch.cat([t.detach().double().reshape(-1) for t in side]) for side in zip(*pairs, strict=True))
        size = _size((a - b).norm() / b.norm().clamp(min=1))
        self._judge(size <= tol, size, f"{what} may differ by {tol:g} of their norm, differ by".strip())

    def differ(self, found: Tensor, other: Tensor, least: float = 1e-6) -> None:
        """Two tensors are not the same."""
        size = _distance(found, other)
        self.that(size > least, f"must change, but differs by {size:.3g} only")

    def finite(self, found: Any, what: str) -> None:
        """No NaN and no infinity in a pytree of tensors."""
        bad = sum(int((~torch.isfinite(t)).sum()) for t in _leaves(found))
        self.that(bad == 0, f"{bad} numbers of {what} are not finite")

    def zero(self, found: Any, what: str) -> None:
        """Zeros, exactly."""
        for t in _leaves(found):
            size = _size(t)
            self._judge(size == 0, size, f"{what} must be zeros, found")

    def learns(self, module: nn.Module) -> None:
        """Every parameter has got a gradient."""
        idle = [name for name, p in module.named_parameters() if p.grad is None]
        self.that(not idle, f"no gradient reaches {', '.join(idle)}")

    def that(self, true: bool, otherwise: str) -> None:
        """Anything else."""
        if not true:
            self.worst = math.inf
            self.broken = self.broken or otherwise

    def _judge(self, passed: bool, size: float, text: str) -> None:
        self.worst = max(self.worst, size)
        if not passed:
            self.broken = self.broken or f"{text} {size:.3g}"


@dataclass
class _Entry:
    cases: int = 0
    worst: float = 0.0
    note: str = ""


@dataclass
class Report:
    """Collects the cases of all laws of one kind.

    Attributes:
        kind: who is held to the laws.
        exempt: laws the kind cannot obey, by letter, with the reason; its file says so, nobody else.
    """

    kind: str
    exempt: Mapping[str, str] = field(default_factory=dict)
    entries: dict[tuple[str, str], _Entry] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: object) -> Self:
        """A report on a kind, which names the laws it cannot obey in its class, under ``exempt``."""
        return cls(type(kind).__name__, getattr(kind, "exempt", {}))

    def hold(
        self,
        subject: Subject,
        trials: Mapping[str, Sequence[Callable[[Subject, "Report"], None]]],
        laws: Iterable[str],
    ) -> list[Verdict]:
        """Hold a subject to laws: run the trials of each, and give the verdicts.

        Args:
            subject: what every trial is given, beside this report.
            trials: of each law that can be tried, by its letter.
            laws: the letters of those to try.

        Raises:
            ConfigError: a letter without trials.
        """
        for law in laws:
            if law not in trials:
                raise ConfigError(f'laws: "{law}" is not tried of {self.kind}; expected letters of "{"".join(trials)}"')
            for trial in trials[law]:
                trial(subject, self)
        return self.verdicts()

    @contextmanager
    def case(self, law: str, statement: str, case: str = "") -> Iterator[Case]:
        """One case of a statement of a law. An error inside breaks the law, and the check goes on."""
        found = Case()
        try:
            yield found
        except Exception as error:
            text = str(error).strip().split("\n")[0]
            found.that(False, f"raised {type(error).__name__}: {text[:300]}")
        entry = self.entries.setdefault((law, statement), _Entry())
        entry.cases += 1
        entry.worst = max(entry.worst, found.worst)
        if found.broken and not entry.note:
            entry.note = ", ".join(part for part in (self.kind, case) if part) + f": {found.broken}"

    def verdicts(self) -> list[Verdict]:
        """One a statement, in the order they were tried."""
        made = []
        for (law, statement), entry in self.entries.items():
            if law in self.exempt:
                made.append(Verdict(law, statement, True, entry.worst, f"exempt: {self.exempt[law]}"))
            else:
                cases = f"{entry.cases} case{'s' * (entry.cases > 1)}"
                made.append(Verdict(law, statement, not entry.note, entry.worst, entry.note or cases))
        return made


def _leaves(tree: Any) -> list[Tensor]:
    return [t for t in _pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def _pairs(found: Any, wanted: Any) -> list[tuple[Tensor, Tensor]]:
    return list(zip(_leaves(found), _leaves(wanted), strict=True))


def _size(x: Tensor) -> float:
    if not x.numel():
        return 0.0
    size = float(x.detach().double().abs().max())
    return size if math.isfinite(size) else math.inf


def _error(a: Tensor, b: Tensor) -> float:
    """rms(a − b); infinite if a NaN or another shape is in the way."""
    if a.shape != b.shape:
        return math.inf
    return _size((a.detach().double() - b.detach().double()).norm()) / max(1, b.numel()) ** 0.5


def _distance(a: Tensor, b: Tensor) -> float:
    """max|a − b| / max(1, rms b); infinite if a NaN or another shape is in the way."""
    if a.shape != b.shape:
        return math.inf
    if not a.numel():
        return 0.0
    a, b = a.detach().double(), b.detach().double()
    return _size(a - b) / max(1.0, float(b.square().mean().sqrt()))
