"""What attention means, written out: the reference of every kind in float64, and the measure of its rounding."""

import copy
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mapsto.attention import Attention
from mapsto.errors import MapstoError
from mapsto.testing.subject import N, Seen, Subject, alibi, differentiate
from mapsto.testing.trial import MODES, draw
from mapsto.testing.verdict import Report

__all__ = ["both", "formula", "law_meaning", "law_rounding", "visible"]

LONG = 300
"""Keys enough for a sum in bfloat16 to stand still: beyond 256 times the terms nothing is added."""


def visible(seen: Seen, batch: int, heads: int, length: int) -> Bool[Tensor, "B H L M"]:
    """Which keys the contract lets a query see, written as the contract has it."""
    sees = torch.ones(batch, heads, length, length, dtype=torch.bool)
    if "valid" in seen:
        sees = sees & seen["valid"][:, None, None]
    if "segment" in seen:
        sees = sees & (seen["segment"][:, None, :, None] == seen["segment"][:, None, None])
    if "allowed" in seen:
        sees = sees & seen["allowed"]
    if "causal" in seen:
        sees = sees.tril()
    return sees


def formula(
    layer: Attention, q: Float[Tensor, "B H L K"], k: Float[Tensor, "B H L K"], v: Float[Tensor, "B H L V"], **seen: Any
) -> Float[Tensor, "B H L V"]:
    """The kind's own :meth:`~mapsto.attention.Attention.reference`, told what the contract lets each query see.

    Logits are rounded to the type of q as if they were q·k/√K, so that a type's unavoidable error is in it.
    """
    batch, heads, length, width = q.shape
    logits = q @ k.transpose(-1, -2) / width**0.5
    if "bias" in seen:
        logits = logits + seen["bias"](slice(0, length), slice(0, length))
    if "decay" in seen:
        decay = seen["decay"].double()
        fade = (decay.masked_fill(~seen["valid"][:, None], 0) if "valid" in seen else decay).cumsum(-1)
        logits = logits + (fade[..., None] - fade[..., None, :]).tril().to(v.dtype)
    extra = logits.double() - q.double() @ k.double().transpose(-1, -2) / width**0.5
    valid = seen.get("valid", torch.ones(batch, length, dtype=torch.bool))
    return layer.reference(q, k, v, seen=visible(seen, batch, heads, length), extra=extra, valid=valid)


def both(
    subject: Subject, dtype: torch.dtype, x: list[Tensor], seen: Seen, upstream: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and gradients by the layer of a type in float64, and by the plain formula in that type."""
    layer = copy.deepcopy(subject.layer(dtype, "train")).double()
    wide: Seen = {n: s.double() if isinstance(s, Tensor) and s.is_floating_point() else s for n, s in seen.items()}
    if "bias" in seen:
        wide["bias"] = lambda queries, keys: seen["bias"](queries, keys).double()
    exact = differentiate(layer, [t.double() for t in x], wide, upstream.double())
    return exact, differentiate(partial(formula, layer), x, seen, upstream)


def law_meaning(subject: Subject, report: Report) -> None:
    """Hold a kind to :func:`formula` in float64, and to what its ``honours`` says.

    Args:
        subject: the kind.
        report: where the verdicts go.
    """
    statement = "valid, segment, allowed, causal, bias and decay mean what the contract says"
    x = subject.qkv(3, N)
    for name, seen in subject.cases(N, torch.float64).items():
        with report.case("M", statement, name) as case:
            layer = subject.layer(torch.float64)
            wanted = formula(layer, *x, **seen)
            case.agree(layer(*x, **seen), wanted, 1e-10)
            case.agree(layer.weights(x[0], x[1], **seen) @ x[2], wanted, 1e-10, "weights times values")
    for name, value in {
        "segment": torch.zeros(3, N, dtype=torch.int64),
        "allowed": torch.ones(1, 1, N, N, dtype=torch.bool),
        "bias": lambda l, m: alibi(l, m).double(),
        "decay": torch.zeros(3, subject.heads, N).double(),
    }.items():
        if name not in subject.make().honours:
            with report.case("M", "what the kind cannot honour is refused, never dropped", name) as case:
                try:
                    subject.layer(torch.float64)(*x, causal=name in ("segment", "decay"), **{name: value})
                    case.that(False, f"{name} is taken, though it is not in honours")
                except (MapstoError, NotImplementedError):
                    pass


def law_rounding(subject: Subject, report: Report) -> None:
    """In bfloat16, hold a kind to twice the error of :func:`formula` there: its own sums must be in float32 at least.

    Args:
        subject: the kind.
        report: where the verdicts go.
    """
    narrow = torch.bfloat16
    statement = "in bfloat16 outputs and gradients err at most twice as much as those of the plain formula"
    for length in (N, LONG):
        x, upstream = subject.qkv(3, length, dtype=narrow), draw(3, subject.heads, length, subject.width, dtype=narrow)
        for name, seen in subject.cases(length, narrow).items():
            with report.case("K", statement, f"{name}, L = {length}") as case:
                wanted, plain = both(subject, narrow, x, seen, upstream)
                for mode in MODES:
                    found = subject.answer(narrow, mode, x, seen, upstream)
                    size = len(found)
                    case.rival(found, plain[:size], wanted[:size], f"in {mode}, results")
