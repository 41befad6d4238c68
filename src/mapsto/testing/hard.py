"""Law H: hard attention picks one key, and learns as if the choice had been soft."""

from typing import Any

import torch
from torch import Tensor

from mapsto.functional.attention import attend
from mapsto.stream import Clock, stream
from mapsto.testing.formula import formula, visible
from mapsto.testing.silence import at
from mapsto.testing.subject import N, Seen, Subject, differentiate
from mapsto.testing.trial import MODES, TYPES, draw
from mapsto.testing.verdict import Report

__all__ = ["law_hard"]


def law_hard(subject: Subject, report: Report) -> None:
    """Hold a kind with an ``estimator`` to law H.

    Args:
        subject: the kind.
        report: where the verdicts go.
    """
    _picks(subject, report)
    _limit(subject, report)
    _learns(subject, report)
    _draws(subject, report)


def _tied(subject: Subject, dtype: torch.dtype) -> list[Tensor]:
    """Queries and keys of whole numbers, so that many logits are equal in any type."""
    source = stream(12, "law")
    q, k = (torch.randint(-1, 2, (3, subject.heads, N, subject.width), generator=source).to(dtype) for _ in range(2))
    return [q, k, draw(3, subject.heads, N, subject.width, seed=3, dtype=dtype)]


def _picks(subject: Subject, report: Report) -> None:
    statement = "it gives the value of the best key, of equal ones the first, exactly"
    for dtype in (*TYPES, torch.bfloat16):
        q, k, v = _tied(subject, dtype)
        for name, seen in subject.cases(N, dtype).items():
            if {"bias", "decay"} & set(seen):
                continue  # these are no whole numbers; law M has them
            sees = visible(seen, 3, subject.heads, N)
            logits = (q.double() @ k.double().mT).masked_fill(~sees, -torch.inf)
            best = (logits == logits.amax(-1, keepdim=True)) & sees
            wanted = (best & (best.cumsum(-1) == 1)).to(dtype) @ v
            for mode in MODES:
                with report.case("H", statement, f"{name}, {mode}, {str(dtype)[6:]}") as case:
                    case.exactly(subject.answer(dtype, mode, [q, k, v], seen)[0], wanted)
    with report.case("H", statement, "keys a rounding of bfloat16 apart, bfloat16") as case:
        # The products 256 and 257 are one in bfloat16, where the first would win.
        q = torch.ones(1, 1, 1, 2, dtype=torch.bfloat16)
        k = torch.tensor([[[[256.0, 0.0], [256.0, 1.0]]]], dtype=torch.bfloat16)
        v = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]], dtype=torch.bfloat16)
        case.exactly(subject.layer(torch.bfloat16)(q, k, v), v[:, :, 1:])


@torch.no_grad()
def _limit(subject: Subject, report: Report) -> None:
    q, k, v = subject.qkv(3, N)
    for name, seen in subject.cases(N, torch.float64).items():
        if {"bias", "decay"} & set(seen):
            continue  # beta does not scale these
        with report.case("H", "exact attention tends to it as beta grows", name) as case:
            sees = visible(seen, 3, subject.heads, N)
            top = (q @ k.mT).masked_fill(~sees, -1e9).topk(2, -1).values
            clear = top[..., 0] - top[..., 1] > 1e-4
            found = subject.layer(torch.float64)(q, k, v, **seen)
            case.agree(found[clear], attend(q, k, v, beta=1e7, **seen)[clear], 1e-10)


def _learns(subject: Subject, report: Report) -> None:
    statement = "its gradient is that of its reference, and no zero"
    layer, x = subject.layer(torch.float64, "train"), subject.qkv(3, N)
    for name, seen in subject.cases(N, torch.float64).items():
        with report.case("H", statement, name) as case:
            _, *found = differentiate(layer, x, seen)
            _, *wanted = differentiate(lambda *x, **seen: formula(layer, *x, **seen), x, seen)
            case.agree(found, wanted, 1e-10, "gradients")
            for gradient in found:
                case.that(bool(gradient.any()), "a gradient is zero")


def _draws(subject: Subject, report: Report) -> None:
    """Of a layer that is not at rest: its noise, if it has any, is on."""
    layer: Any = subject.make().bind(subject.heads, subject.width, stream(0, "law bind")).double()
    q, k, v = subject.qkv(3, N)
    seen: Seen = {"causal": True}
    before = torch.random.get_rng_state()
    with report.case("H", "nothing is random in eval") as case:
        case.exactly(layer.eval()(q, k, v, **seen), subject.layer(torch.float64)(q, k, v, **seen))
    with report.case("H", "in training each choice is one key that may be seen, drawn by the clock alone") as case:
        first, again = (at(layer.train(), Clock(3, step=5))(q, k, v, **seen) for _ in range(2))
        case.exactly(first, again, "the same clock's answers")
        same = (first[:, :, :, None] == v[:, :, None]).all(-1) & visible(seen, 3, subject.heads, N)
        case.that(bool(same.any(-1).all()), "an answer is no key's value")
        case.exactly(torch.random.get_rng_state(), before, "the global generator")
