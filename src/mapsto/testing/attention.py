"""The laws of attention, for every kind: ours and a user's own."""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mapsto.attention import Attention
from mapsto.stream import stream
from mapsto.testing.feature import law_features
from mapsto.testing.formula import both, law_meaning, law_rounding, visible
from mapsto.testing.graph import check_compile, check_export
from mapsto.testing.hard import law_hard
from mapsto.testing.silence import silent
from mapsto.testing.step import law_step
from mapsto.testing.subject import N, Seen, Subject
from mapsto.testing.trial import FILLINGS, MODES, TYPES, draw, prefix
from mapsto.testing.verdict import Report, Verdict, tolerance
from mapsto.testing.window import law_window

__all__ = ["check_attention"]

ALL = (*TYPES, torch.bfloat16)


def check_attention(
    make: Callable[[], Attention],
    *,
    heads: int = 2,
    width: int = 8,
    chunk: int = 4,
    longest: int = 1024,
    laws: Iterable[str] | None = None,
) -> list[Verdict]:
    """Hold a kind of attention to the laws, in float64 and float32 (P, C, M, K, D in bfloat16 too), training and not.

    A kind with a ``window`` is held to law W too, one with ``features`` to law F, one with an ``estimator`` to law H. A
    kind that cannot obey a law says so in its class: ``exempt = {"S": "ties go to the lowest rank"}``; one that cannot
    cross says why in ``self_only``, and must then refuse to. Random modules are at rest, but for law H.

    Args:
        make: gives an unbound kind, the same every time.
        heads: H.
        width: K and V.
        chunk: how many places the kind takes at a time, if it does: pieces of one less and one more are tried too.
        longest: L of the longest sequence whose numbers must stay finite.
        laws: the letters of those to try; all that apply by default.

    Example:
        >>> from mapsto.testing import require
        >>> from mapsto.attention.softmax import SoftmaxAttention
        >>> require(check_attention(SoftmaxAttention, laws="B"))
    """
    subject = Subject(make, heads, width)
    trials: dict[str, list[Callable[[Subject, Report], None]]] = {
        "P": [_contents, _amount],
        "B": [_company],
        "S": [_symmetry],
        "C": [_causality],
        "T": [partial(law_step, chunk=chunk)],
        "M": [_nothing, _empty, law_meaning],
        "K": [partial(_numbers, longest=longest), law_rounding],
        "D": [_determinism],
        "R": [_round_trip],
        "G": [_graphs],
    }
    kind = make()
    if hasattr(kind, "window"):
        trials["W"] = [law_window]
    if hasattr(kind, "features"):
        trials["F"] = [law_features]
    if hasattr(kind, "estimator"):
        trials["H"] = [law_hard]
    return Report.of(kind).hold(subject, trials, trials if laws is None else laws)


def _each(subject: Subject, types: Iterable[torch.dtype] = ALL) -> Iterable[tuple[str, torch.dtype, str, Seen]]:
    for dtype in types:
        for name, seen in subject.cases(N, dtype).items():
            for mode in MODES:
                yield f"{name}, {mode}, {str(dtype)[6:]}", dtype, mode, seen


def _contents(subject: Subject, report: Report) -> None:
    statement = "what stands at padding changes no real output and no gradient, exactly"
    for name, dtype, mode, seen in _each(subject):
        if "valid" not in seen:
            continue
        gone = ~seen["valid"][:, None, :, None]
        upstream = draw(3, subject.heads, N, subject.width, seed=9, dtype=dtype).masked_fill(gone, 0)

        def answer(value: float) -> list[Tensor]:
            x = [t.masked_fill(gone, value) for t in subject.qkv(3, N, dtype=dtype)]  # noqa: B023
            more = dict(seen)  # noqa: B023
            if "decay" in more:
                more["decay"] = more["decay"].masked_fill(gone[..., 0], value)  # noqa: B023
            out, *gradients = subject.answer(dtype, mode, x, more, upstream)  # noqa: B023
            return [out.masked_fill(gone, 0), *gradients]  # noqa: B023

        with report.case("P", statement, name) as case:
            wanted = answer(0.0)
            case.finite(wanted, "the results with zeros at padding")
            for value in FILLINGS:
                case.exactly(answer(value), wanted, f"with {value:g} at padding, results")


def _amount(subject: Subject, report: Report) -> None:
    statement = "0, 1, 10 or 500 padded items give the same"
    for dtype in ALL:
        with report.case("P", statement, str(dtype)[6:]) as case:
            x, small = subject.qkv(2, N, dtype=dtype), draw(2, subject.heads, N, subject.width, seed=9, dtype=dtype)
            alone = subject.answer(dtype, "train", x, {}, small)
            for amount in (1, 10, 500):
                wide = [torch.cat([t, t.new_full((2, subject.heads, amount, t.shape[-1]), torch.nan)], 2) for t in x]
                upstream = torch.zeros_like(wide[0])
                upstream[:, :, :N] = small
                seen = {"valid": prefix([N, N], N + amount)}
                found = subject.answer(dtype, "train", wide, seen, upstream)
                cut, what = [t[:, :, :N] for t in found], f"with {amount} padded items, results"
                if dtype in TYPES:
                    case.agree(cut, alone, tolerance(dtype), what)
                else:
                    wanted, plain = both(subject, dtype, x, {}, small)
                    case.rival(cut, plain, wanted, what)


def _company(subject: Subject, report: Report) -> None:
    statement = "a row alone is the row in any company and order"
    for name, dtype, mode, seen in _each(subject, TYPES):
        with report.case("B", statement, name) as case:
            x = subject.qkv(3, N, dtype=dtype)
            wanted = subject.answer(dtype, mode, x, seen)
            for rows in ([0], [1], [2], [2, 0, 1], [1, 1, 1, 0]):
                index = torch.tensor(rows)
                upstream = draw(*wanted[0].shape, seed=9, dtype=dtype)[index]
                found = subject.answer(dtype, mode, [t[index] for t in x], _rows(seen, index), upstream)
                case.agree(found, [t[index] for t in wanted], tolerance(dtype), f"rows {rows}")


def _rows(seen: Seen, index: Tensor) -> Seen:
    return {n: s[index] if isinstance(s, Tensor) and len(s) > 1 else s for n, s in seen.items()}


def _symmetry(subject: Subject, report: Report) -> None:
    order = torch.randperm(N, generator=stream(11, "law"))
    for dtype in TYPES:
        for name, seen in subject.cases(N, dtype).items():
            if {"causal", "segment", "bias"} & set(seen):
                continue  # these know the ranks
            with report.case("S", "permuting keys changes nothing, permuting queries permutes", name) as case:
                q, k, v = subject.qkv(3, N, dtype=dtype)
                wanted = subject.layer(dtype)(q, k, v, **seen)
                keys = {n: s[..., order] for n, s in seen.items()}
                found = subject.layer(dtype)(q, k[:, :, order], v[:, :, order], **keys)
                case.agree(found, wanted, tolerance(dtype), "with keys permuted, outputs")
                queries = {n: s[..., order, :] if n == "allowed" else s for n, s in seen.items()}
                found = subject.layer(dtype)(q[:, :, order], k, v, **queries)
                case.agree(found, wanted[:, :, order], tolerance(dtype), "with queries permuted, outputs")


def _causality(subject: Subject, report: Report) -> None:
    statement = "what comes later changes nothing, exactly, and gets no gradient"
    for name, dtype, mode, seen in _each(subject):
        if "causal" not in seen:
            continue
        with report.case("C", statement, name) as case:
            x = subject.qkv(3, N, dtype=dtype)
            for t in (1, 5, N - 1):
                upstream = draw(*x[2].shape, seed=9, dtype=dtype)
                upstream[:, :, t:] = 0
                out, *gradients = subject.answer(dtype, mode, x, seen, upstream)
                case.zero([g[:, :, t:] for g in gradients], f"gradients after place {t}")
                for size in (1, 10, 1000):
                    later, more = [y.clone() for y in x], dict(seen)
                    for i, y in enumerate(later):
                        y[:, :, t:] = size * draw(*y.shape, seed=20 + i, dtype=dtype)[:, :, t:]
                    if "decay" in seen:
                        more["decay"] = seen["decay"].clone()
                        more["decay"][:, :, t:] *= size
                    found = subject.answer(dtype, mode, later, more, upstream)[0]
                    case.exactly(
                        found[:, :, :t], out[:, :, :t], f"after a change x{size} from place {t}, outputs before"
                    )


def _nothing(subject: Subject, report: Report) -> None:
    statement = "a query with nothing to see gets zeros and gives finite, zero gradients"
    for name, dtype, mode, seen in _each(subject):
        if "valid" not in seen:
            continue
        with report.case("M", statement, name) as case:
            x = subject.qkv(3, N, dtype=dtype)
            blind = ~visible(seen, 3, subject.heads, N).any(-1)
            out, *gradients = subject.answer(dtype, mode, x, seen)
            case.zero(out[blind], "answers of blind queries")
            case.finite(gradients, "gradients")
            if gradients:
                case.zero(gradients[0][blind], "gradients of blind queries")
    if "allowed" not in subject.make().honours:
        return
    for dtype in ALL:
        with report.case("M", "a blind query does not change the others, exactly", str(dtype)[6:]) as case:
            x = subject.qkv(3, N, dtype=dtype)
            everything = torch.ones(3, 1, N, N, dtype=torch.bool)
            hidden = everything.clone()
            hidden[:, :, 6] = False
            others = torch.arange(N) != 6
            for mode in MODES:
                found = subject.answer(dtype, mode, x, {"allowed": hidden})[0]
                wanted = subject.answer(dtype, mode, x, {"allowed": everything})[0]
                case.exactly(found[:, :, others], wanted[:, :, others], "the other queries' answers")


def _empty(subject: Subject, report: Report) -> None:
    for batch, queries, keys in ((0, 4, 4), (2, 0, 4), (2, 4, 0), (2, 0, 0), (2, 1, 1)):
        if queries != keys and subject.make().self_only:
            continue
        name = f"B={batch}, L={queries}, M={keys}"
        for mode in MODES:
            with report.case(
                "M", "no rows, no queries, no keys or one item give finite answers", f"{name}, {mode}"
            ) as case:
                ways: list[Seen] = [{}, {"valid": torch.ones(batch, keys, dtype=torch.bool)}]
                if queries == keys:
                    ways.append({"causal": True})
                for seen in ways:
                    found = subject.answer(torch.float64, mode, subject.qkv(batch, queries, keys), seen)
                    case.that(found[0].shape == (batch, subject.heads, queries, subject.width), "has the wrong shape")
                    case.finite(found, "results")
                    if not keys:
                        case.zero(found[0], "answers without keys")


def _numbers(subject: Subject, report: Report, longest: int) -> None:
    statement = "finite inputs give finite outputs and gradients"
    for name, dtype, mode, seen in _each(subject):
        with report.case("K", statement, name) as case:
            for scale in (1e-4, 1.0, 1e4):
                x = [scale * t for t in subject.qkv(3, N, dtype=dtype)]
                case.finite(subject.answer(dtype, mode, x, seen), f"the results at scale {scale:g}")
    for dtype in (torch.float32, torch.bfloat16):
        for seen in ({}, {"causal": True}):
            with report.case("K", statement, f"L = {longest}, {str(dtype)[6:]}") as case:
                case.finite(subject.answer(dtype, "train", subject.qkv(1, longest, dtype=dtype), seen), "results")


def _determinism(subject: Subject, report: Report) -> None:
    before = torch.random.get_rng_state()
    for name, dtype, mode, seen in _each(subject):
        with report.case("D", "twice gives the same bits, and nothing is written to", name) as case:
            x = subject.qkv(3, N, dtype=dtype)
            layer = subject.layer(dtype, mode)
            given = [*x, *(s for s in seen.values() if isinstance(s, Tensor))]
            kept, held = [t.clone() for t in given], [t.clone() for t in layer.state_dict().values()]
            first = subject.answer(dtype, mode, x, seen)
            case.exactly(given, kept, "inputs before and after")
            case.exactly(list(layer.state_dict().values()), held, "buffers before and after")
            case.exactly(subject.answer(dtype, mode, x, seen), first, "the second answer")
    with report.case("D", "the same stream binds the same layer, and the global generator is untouched") as case:
        case.exactly(dict(subject.fresh(3).state_dict()), dict(subject.fresh(3).state_dict()), "buffers")
        case.exactly(torch.random.get_rng_state(), before, "the global generator")


def _round_trip(subject: Subject, report: Report) -> None:
    with report.case("R", "settings and state_dict make the same layer again") as case:
        kind, x = silent(subject.make()), subject.qkv(3, N, dtype=torch.float32)
        settings = json.loads(json.dumps(kind.settings()))
        again = silent(type(kind)(**settings).bind(subject.heads, subject.width, stream(8, "law bind")))
        layer = subject.fresh()
        again.load_state_dict(layer.state_dict())
        case.exactly(again(*x, causal=True), layer(*x, causal=True), "answers")
        if not layer.state_dict():  # nothing is drawn, so nothing but settings can differ
            case.exactly(layer(*x, causal=True), kind(*x, causal=True), "answers bound and unbound")
        case.that(again.settings() == kind.settings(), f"settings became {again.settings()}, were {kind.settings()}")


class _Whole(nn.Module):
    def __init__(self, layer: Attention, causal: bool):
        super().__init__()
        self.layer, self.causal = layer, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor) -> Tensor:
        """Answer with what varies: the tensors."""
        answer: Tensor = self.layer(q, k, v, valid=valid, causal=self.causal)
        return answer


def _graphs(subject: Subject, report: Report) -> None:
    def inputs(lengths: Iterable[int], *, learning: bool, batches: Sequence[int] = (2,)) -> Iterable[tuple[Any, ...]]:
        for n, batch in zip(lengths, itertools.cycle(batches), strict=False):
            x = [t.requires_grad_(learning) for t in subject.qkv(batch, n, dtype=torch.float32)]
            yield (*x, prefix([n - n * b // (2 * batch - 2) for b in range(batch)], n))

    causal, free = (_Whole(subject.layer(torch.float32), causal) for causal in (True, False))
    with torch.no_grad():
        check_compile(report, "causal, eval", causal, inputs((7, 1, 64, 300, 1000), learning=False), 1e-5)
    check_compile(report, "valid, train", free, inputs((7, 1, 64, 300), learning=True), 1e-5)
    auto = torch.export.Dim.AUTO
    shapes = (*[{0: auto, 2: auto}] * 3, {0: auto, 1: auto})
    check_export(report, "causal", causal, inputs((7, 30, 2), learning=False, batches=(2, 3, 5)), shapes, 1e-5)
    check_export(report, "valid", free, inputs((7, 30, 2), learning=False, batches=(2, 3, 5)), shapes, 1e-5)
