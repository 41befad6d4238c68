"""Law T: step, write and read give what forward gives, however the places come."""

import random
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from mapsto.attention import Attention
from mapsto.errors import MapstoError
from mapsto.testing.subject import N, Subject, alibi
from mapsto.testing.trial import TYPES, prefix
from mapsto.testing.verdict import Report, tolerance

__all__ = ["law_step"]

LENGTHS = (N, 6, 0)


def law_step(subject: Subject, report: Report, chunk: int) -> None:
    """Hold ``start``, ``step``, ``select``, ``write`` and ``read`` to law T.

    Args:
        subject: the kind.
        report: where the verdicts go.
        chunk: how many places the kind takes at a time.
    """
    biases = (None, alibi) if "bias" in subject.make().honours else (None,)
    with torch.no_grad():
        for dtype in TYPES:
            for bias in biases:
                for cut in _cuts(chunk):
                    _whole(subject, report, dtype, bias, cut)
                    _ragged(subject, report, dtype, bias, cut)
                for name in MIXED:
                    _mixed(subject, report, dtype, bias, name)
            _beams(subject, report, dtype)
            (_refusal if subject.make().self_only else _memory)(subject, report, dtype)


def _cuts(chunk: int) -> list[list[int]]:
    def pieces(size: int) -> list[int]:
        size = max(1, min(size, N))
        return [size] * (N // size) + [N % size] * (N % size > 0)

    cuts = [[N], [1] * N, [5, N - 5], [N - 1, 1], [1, N - 1], *(pieces(chunk + d) for d in (-1, 0, 1))]
    return [list(cut) for cut in dict.fromkeys(map(tuple, cuts))]


def _start(layer: Attention, q: Tensor, v: Tensor, capacity: int) -> Any:
    return layer.start(q, capacity, batch=q.shape[0], heads=q.shape[1], key=q.shape[3], value=v.shape[3])


def _name(dtype: torch.dtype, bias: Any, cut: list[int]) -> str:
    return f"pieces {cut}, {'bias, ' if bias else ''}{str(dtype)[6:]}"


def _cast(bias: Any, dtype: torch.dtype) -> Any:
    return None if bias is None else lambda l, m: bias(l, m).to(dtype)


def _whole(subject: Subject, report: Report, dtype: torch.dtype, bias: Any, cut: list[int]) -> None:
    statement = "any cutting into steps gives what forward gives"
    with report.case("T", statement, _name(dtype, bias, cut)) as case:
        layer, (q, k, v) = subject.layer(dtype), subject.qkv(3, N, dtype=dtype)
        wanted = layer(q, k, v, causal=True, bias=_cast(bias, dtype))
        state, parts, place = _start(layer, q, v, N), [], 0
        for size in cut:
            piece = slice(place, place + size)
            out, state = layer.step(q[:, :, piece], k[:, :, piece], v[:, :, piece], state, bias=_cast(bias, dtype))
            parts.append(out)
            place += size
        case.agree(torch.cat(parts, 2), wanted, tolerance(dtype))
        case.exactly(state.length, torch.full((3,), N), "the lengths written")


def _ragged(subject: Subject, report: Report, dtype: torch.dtype, bias: Any, cut: list[int]) -> None:
    """Each piece holds the next places of each row, fewer for some, and NaN behind them."""
    statement = "ragged rows step as if alone, whatever stands behind them"
    with report.case("T", statement, _name(dtype, bias, cut)) as case:
        layer, given = subject.layer(dtype), subject.qkv(3, N, dtype=dtype)
        state, done = _start(layer, given[0], given[2], N), [0, 0, 0]
        answers: list[list[Tensor]] = [[], [], []]
        for size in cut:
            taken = [min(most, n - d) for most, n, d in zip((size, (size + 1) // 2, size), LENGTHS, done, strict=True)]
            piece = [t.new_full((*t.shape[:2], size, t.shape[3]), torch.nan) for t in given]
            for b, n in enumerate(taken):
                for mine, theirs in zip(piece, given, strict=True):
                    mine[b, :, :n] = theirs[b, :, done[b] : done[b] + n]
            exists = prefix(taken, size)
            out, state = layer.step(piece[0], piece[1], piece[2], state, valid=exists, bias=_cast(bias, dtype))
            for b, n in enumerate(taken):
                answers[b].append(out[b, :, :n])
                done[b] += n
        case.exactly(state.length, torch.tensor(done), "the lengths written")
        for b, n in enumerate(done):
            alone = layer(*(t[b : b + 1, :, :n] for t in given), causal=True, bias=_cast(bias, dtype))
            case.agree(torch.cat(answers[b], 1), alone[0], tolerance(dtype), f"row {b} of {n} places")


MIXED = {
    "even, then one row stands still": [(4, None), (1, (0, 1)), (6, (2, 6)), (80, None)],
    "one row begins later": [(5, (5, 0)), (80, None), (3, (0, 3))],
}
"""Sizes of pieces, and how many places of each row are real: all, where none is said."""


def _mixed(subject: Subject, report: Report, dtype: torch.dtype, bias: Any, name: str) -> None:
    """Pieces with and without ``valid`` take turns, and rows may be of any length by then."""
    with report.case("T", "pieces with and without padding take turns", f"{name}, {_name(dtype, bias, [])}") as case:
        layer, given, pieces = subject.layer(dtype), subject.qkv(2, 100, dtype=dtype), MIXED[name]
        state, done, answers = _start(layer, given[0], given[2], 100), [0, 0], ([], [])  # type: ignore[var-annotated]
        for size, taken in pieces:
            piece = [t.new_full((*t.shape[:2], size, t.shape[3]), torch.nan) for t in given]
            real = (size, size) if taken is None else taken
            for b, n in enumerate(real):
                for mine, theirs in zip(piece, given, strict=True):
                    mine[b, :, :n] = theirs[b, :, done[b] : done[b] + n]
            exists = None if taken is None else prefix(list(taken), size)
            out, state = layer.step(piece[0], piece[1], piece[2], state, valid=exists, bias=_cast(bias, dtype))
            for b, n in enumerate(real):
                answers[b].append(out[b, :, :n])
                done[b] += n
        for b, n in enumerate(done):
            alone = layer(*(t[b : b + 1, :, :n] for t in given), causal=True, bias=_cast(bias, dtype))
            case.agree(torch.cat(answers[b], 1), alone[0], tolerance(dtype), f"row {b} of {n} places")


def _beams(subject: Subject, report: Report, dtype: torch.dtype) -> None:
    with report.case("T", "steps go on after rows are reordered and repeated", str(dtype)[6:]) as case:
        layer, (q, k, v) = subject.layer(dtype), subject.qkv(3, N, dtype=dtype)
        order, lengths = torch.tensor([2, 0, 0, 1]), [7, 4, 6]
        state = _start(layer, q, v, N)
        _, state = layer.step(q[:, :, :7], k[:, :, :7], v[:, :, :7], state, valid=prefix(lengths, 7))
        state = state.select(order)
        # The state is a pytree: taken apart and put together it goes on as before.
        leaves, spec = _pytree.tree_flatten(state)
        state = _pytree.tree_unflatten([t.clone() for t in leaves], spec)
        out, state = layer.step(q[order, :, 7:9], k[order, :, 7:9], v[order, :, 7:9], state)
        for row, b in enumerate(order.tolist()):
            keep = [*range(lengths[b]), 7, 8]
            alone = layer(*(t[b : b + 1, :, keep] for t in (q, k, v)), causal=True)
            case.agree(out[row], alone[0, :, -2:], tolerance(dtype), f"row {row}")


def _refusal(subject: Subject, report: Report, dtype: torch.dtype) -> None:
    with report.case("T", "a kind for self-attention only refuses another's queries", str(dtype)[6:]) as case:
        layer, (q, k, v) = subject.layer(dtype), subject.qkv(3, 5, N, dtype=dtype)
        state = layer.write(k, v, _start(layer, q, v, N))
        for name, ask in {"forward": lambda: layer(q, k, v), "read": lambda: layer.read(q, state)}.items():
            try:
                ask()
                case.that(False, f"{name} answers")
            except MapstoError:
                pass


def _memory(subject: Subject, report: Report, dtype: torch.dtype) -> None:
    statement = "reading what was written is cross-attention"
    shuffled = random.Random(0).sample(range(N), N)
    for lengths in (None, LENGTHS):
        with report.case("T", statement, f"lengths {lengths}, {str(dtype)[6:]}") as case:
            layer, (q, k, v) = subject.layer(dtype), subject.qkv(3, 5, N, dtype=dtype)
            valid = None if lengths is None else prefix(list(lengths), N)
            state = _start(layer, q, v, N)
            for piece in (slice(0, 5), slice(5, N)):
                part = None if valid is None else valid[:, piece]
                state = layer.write(k[:, :, piece], v[:, :, piece], state, valid=part)
            wanted = layer(q, k, v, valid=valid)
            case.agree(layer.read(q, state), wanted, tolerance(dtype))
            case.agree(layer.read(q, state), wanted, tolerance(dtype), "read a second time")
            order = [i % 5 for i in shuffled]
            case.agree(
                layer.read(q[:, :, order], state), wanted[:, :, order], tolerance(dtype), "asked in another order"
            )
