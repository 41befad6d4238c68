"""Law F: random features estimate their kernel without bias, and attention by them tends to exact attention."""

import math

import torch
from torch import Tensor

from mapsto.functional.attention import attend
from mapsto.stream import stream
from mapsto.testing.subject import Subject
from mapsto.testing.verdict import Report

__all__ = ["law_features"]

ROWS = 500_000
"""Rows drawn in all for the bias: enough for the 15 % of rotations without their signs put right."""


def law_features(subject: Subject, report: Report) -> None:
    """Hold a kind with ``features`` to law F.

    Its ``kernel(q, k)`` is what its bound layers' ``estimate(q, k)`` must be in the mean over layers, within four
    standard errors; a kind whose kernel has no formula says None, and only its own laws hold.

    Args:
        subject: the kind.
        report: where the verdicts go.
    """
    kind, width = subject.make(), subject.width
    q, k = _pair(width)
    wanted = kind.kernel(q, k)  # type: ignore[operator]
    if wanted is None:
        return
    features = int(kind.features)  # type: ignore[arg-type]
    with report.case("F", "over many draws the estimate of the kernel is the kernel") as case, torch.no_grad():
        layers = (subject.fresh(seed).double() for seed in range(max(2, ROWS // features)))
        found = torch.stack([layer.estimate(q, k) for layer in layers])  # type: ignore[operator]
        far = (found.mean(0) - wanted) / (found.std(0) / math.sqrt(len(found)))
        case.that(
            bool((far.abs() < 4).all()), f"is {float(found.mean()):.6g} of {float(wanted):.6g}: {float(far):.1f} sd"
        )
    with report.case("F", "with more features answers come closer to exact attention") as case, torch.no_grad():
        x = [0.5 * t for t in subject.qkv(1, 64)]
        few, many = (_error(subject, features * more, x) for more in (1, 32))
        case.that(many < few / 8, f"have a mean-square error of {few:.3g}, with 32 times as many of {many:.3g}")


def _pair(width: int) -> tuple[Tensor, Tensor]:
    """Vectors with |q + k|² = √K, where no coordinate of q + k is negative: there careless rotations err."""
    z, apart = torch.randn(2, width, generator=stream(0, "law features"), dtype=torch.float64)
    z, apart = z.abs() / z.norm() * width**0.25, 0.5 * apart / apart.norm() * width**0.25
    return (z + apart) / 2, (z - apart) / 2


def _error(subject: Subject, features: int, x: list[Tensor]) -> float:
    kind = subject.make()
    exact, errors = attend(*x), []
    for seed in range(8):
        more = type(kind)(**{**kind.settings(), "features": features})
        layer = more.bind(subject.heads, subject.width, stream(seed, "law bind")).double()
        errors.append((layer(*x) - exact).square().mean())
    return float(torch.stack(errors).mean())
