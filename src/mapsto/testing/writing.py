"""The laws of models that write sequences: no token knows of later ones, and writing step by step is the whole at once."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mapsto.models.mapper import Batch, Mapper
from mapsto.nn.draft import Draft
from mapsto.outputs import Theta
from mapsto.outputs.sequence import SequenceOutput
from mapsto.stream import stream
from mapsto.testing.batch import apply, pick, stretch
from mapsto.testing.mapped import Mapped
from mapsto.testing.trial import TYPES, ways
from mapsto.testing.verdict import Case, Report, tolerance

__all__ = ["causality", "nothing", "sources", "steps"]

LONGEST = 40
"""Tokens of a row that are tried."""

SCALES = (1.0, 10.0, 1000.0)
"""How much larger what comes later may become."""


def _writes(trial: Mapped) -> bool:
    """Whether there is a sequence with a place before its last."""
    return trial.model.output.causal and "target" in trial.batch and trial.batch["target"]["valid"].shape[1] > 1


def _places(length: int) -> list[int]:
    """Places that something comes after: the first ones, the middle, the last but one."""
    return sorted({0, 1, length // 2, length - 2} & set(range(length - 1)))


def causality(trial: Mapped, report: Report) -> None:
    """Law C of targets: tokens after place t, and their embeddings, change nothing that is asked up to t."""
    if not _writes(trial):
        return
    statement = "what comes after place t changes no answer up to t, exactly"
    length = trial.batch["target"]["valid"].shape[1]
    for name, dtype, mode in ways():
        with report.case("C", statement, name) as case, torch.set_grad_enabled(mode == "train"):
            model = trial.of(dtype, mode)
            wanted, last = model(trial.batch), {}
            for t in _places(length):
                for change in range(3):
                    last = model(_rewritten(trial, t, change))
                    _first(case, last, wanted, t + 1, f"with other tokens after place {t}")
                for scale in SCALES:
                    loud = _louder(model, trial.batch, t + 1, scale)
                    _first(case, loud, wanted, t + 1, f"with what is asked after place {t} {scale:g} times larger")
            for theta, before in zip(last.values(), wanted.values(), strict=True):
                case.differ(theta, before)


def _first(case: Case, found: Theta, wanted: Theta, count: int, what: str) -> None:
    """The first answers are the same."""
    first, same = ({n: x[:, :count] for n, x in theta.items()} for theta in (found, wanted))
    case.exactly(first, same, f"{what}, answers")


def _rewritten(trial: Mapped, t: int, change: int) -> Batch:
    """The batch with other tokens from place t on, which are asked about from place t + 1 on."""
    target = trial.batch["target"]
    ids, valid, size = target["ids"], target["valid"], _size(trial)
    new = torch.randint(size, ids.shape, generator=stream(change, "law tokens", t)).to(ids)
    if change == 0:
        new = (ids + 1) % size
    later = torch.arange(ids.shape[1]) >= t
    return {**trial.batch, "target": {**target, "ids": torch.where(later & valid, new, ids)}}


def _size(trial: Mapped) -> int:
    """Of the vocabulary."""
    output = trial.model.output
    return output.vocabulary.size if isinstance(output, SequenceOutput) else int(trial.batch["target"]["ids"].max()) + 1


def _louder(model: Mapper, batch: Batch, first: int, scale: float) -> Theta:
    """θ with louder questions from a place on."""
    memory = model.encoder(model.collect(batch))
    queries = model.output.queries(memory, batch["target"])
    later = (torch.arange(queries.items.shape[1]) >= first)[:, None] & queries.valid[..., None]
    loud = queries.replace(items=torch.where(later, scale * (queries.items + 1), queries.items))
    theta: Theta = model.output(model.reader(loud, memory, causal=True))
    return theta


def sources(trial: Mapped, report: Report) -> None:
    """Law C, the other way round: what is written depends on what is asked, and on all that was written before."""
    if not _writes(trial):
        return
    model, real, batch = trial.of(torch.float64), trial.batch["target"]["valid"], trial.batch
    if model.names and trial.size > 1:
        with report.case("C", "another source changes what is written") as case, torch.no_grad():
            turned = apply(_turned, {n: batch[n] for n in model.names})
            _differ(case, model({**batch, **turned}), model(batch), real, 0)
    with report.case("C", "another first token changes what is asked after it") as case, torch.no_grad():
        other = _rewritten(trial, 0, 0)["target"]["ids"]
        ids = torch.where(torch.arange(real.shape[1]) == 0, other, batch["target"]["ids"])
        _differ(case, model({**batch, "target": {**batch["target"], "ids": ids}}), model(batch), real, 1)


def _differ(case: Case, found: Theta, wanted: Theta, real: Tensor, first: int) -> None:
    """Some real answer from a place on is another."""
    for name, theta in wanted.items():
        a, b = (x.masked_fill(~real[..., None], 0)[:, first:] for x in (found[name], theta))
        case.differ(a, b)


def _turned(part: Any) -> dict[str, Tensor]:
    """Each row at the place of the next one."""
    return {n: t.roll(1, 0) for n, t in part.items()}


def nothing(trial: Mapped, report: Report) -> None:
    """Law M of sources: one that is empty has a sequence all the same."""
    if not _writes(trial) or not any("valid" in trial.batch[n] for n in trial.model.names):
        return
    statement = "a sequence of an empty source, or of one token, has finite answers and changes no other, exactly"
    parts = {n: p for n, p in trial.batch.items() if n != "target"}
    for name, dtype, mode in ways():
        with report.case("M", statement, name) as case:
            wanted, _ = trial.answer(dtype, mode, trial.batch)
            for kept, empty in ((0, True), (1, False), (1, True)):
                batch = {**({n: _cut(p, 0) for n, p in parts.items()} if empty else parts)}
                target = _cut(trial.batch["target"], kept) if kept else dict(trial.batch["target"])
                theta, rest = trial.answer(dtype, mode, {**batch, "target": target})
                case.finite((theta, rest), "answers, losses and gradients")
                case.exactly({n: t[1:] for n, t in theta.items()}, {n: t[1:] for n, t in wanted.items()}, "other rows")


def _cut(part: Any, length: int) -> dict[str, Tensor]:
    """The same part with so many items in its first row."""
    if "valid" not in part:
        return dict(part)
    valid = part["valid"].clone()
    valid[0, length:] = False
    return {**part, "valid": valid}


Piece = tuple[int, list[int] | None]
"""How many tokens come, and how many of them each row has; None if all of them."""


def _cuttings(lengths: list[int]) -> Iterator[tuple[str, list[Piece]]]:
    """Ways to cut rows of these lengths into pieces."""
    longest, rows = max(lengths), len(lengths)
    for name, size in {
        "one by one": 1,
        "at once": longest,
        "by threes": 3,
        "all but one, then one": longest - 1,
    }.items():
        if size:
            starts = range(0, longest, size)
            yield name, [(min(size, longest - s), [min(max(n - s, 0), size) for n in lengths]) for s in starts]
    if min(lengths) == longest:
        for name, sizes in {"even, one by one": [1] * longest, "even, 2 and the rest": [2, longest - 2]}.items():
            yield name, [(n, None) for n in sizes if n]
        if longest > 3:
            yield "even, then some rows wait", [(2, None), *_uneven([n - 2 for n in lengths])]
    yield "each row at its own pace", _uneven(lengths)
    if rows > 1:
        late = [0] + [1] * (rows - 1)
        yield "one row begins later", [(1, late), *_uneven([n - d for n, d in zip(lengths, late, strict=True)])]


def _uneven(left: Sequence[int]) -> list[Piece]:
    """Pieces of which rows take turns to have one, two and none."""
    pieces: list[Piece] = []
    left, turn = list(left), 0
    while any(left):
        taken = [min(n, (row + turn) % 3) for row, n in enumerate(left)]
        left, turn = [n - t for n, t in zip(left, taken, strict=True)], turn + 1
        if any(taken):
            pieces.append((max(taken), taken))
    return pieces


def steps(trial: Mapped, report: Report) -> None:
    """Law T of models: what is written step by step is answered as in the whole."""
    if not _writes(trial) or not isinstance(trial.model.output, SequenceOutput):
        return
    whole = {n: dict(p) for n, p in trial.batch.items()}
    target = whole["target"]
    length = min(LONGEST, target["valid"].shape[1])
    whole["target"] = {n: t[:, :length] if t.dim() > 1 else t for n, t in target.items()}
    kept = whole["target"]["valid"].any(1).nonzero()[:, 0]
    ragged = apply(pick, whole, kept)
    even = {**ragged, "target": stretch(ragged["target"], ragged["target"]["valid"].shape[1])}
    for dtype in TYPES:
        for batch in (ragged, even):
            _pieces(trial.of(dtype), batch, report, dtype)
        for batch in (ragged, even):
            _beams(trial.of(dtype), batch, report, dtype)


class _Known:
    """What the whole forward says, and the tokens that were asked."""

    def __init__(self, model: Mapper, batch: Batch):
        self.model, target = model, batch["target"]
        self.inputs = {n: batch[n] for n in model.names}
        self.valid: Bool[Tensor, "R L"] = target["valid"]
        answers = model.answers(batch)[0]
        self.answers = answers
        self.logits = next(iter(model.output(answers).values()))
        self.ids: Int[Tensor, "R L"] = torch.cat([target["before"][:, None], target["ids"]], 1)[:, :-1].long()

    @property
    def lengths(self) -> list[int]:
        return self.valid.sum(1).tolist()

    def begin(self, more: int = 0) -> Draft:
        draft = self.model.begin(self.inputs, len(self.valid), self.valid.shape[1] + more)
        assert isinstance(draft, Draft)
        return draft

    def write(self, draft: Draft, rows: list[int], done: list[int], piece: Piece) -> tuple[Tensor, Tensor, Draft]:
        """Write the next tokens of some rows, and nonsense behind them."""
        size, taken = piece
        real = [size] * len(rows) if taken is None else taken
        tokens = torch.zeros(len(rows), size, dtype=torch.long)
        for b, (row, n) in enumerate(zip(rows, real, strict=True)):
            tokens[b, :n] = self.ids[row, done[b] : done[b] + n]
            tokens[b, n:] = self.ids.max()
        exists = None if taken is None else torch.arange(size) < torch.tensor(taken)[:, None]
        last, answers, draft = self.model.write(tokens, draft, valid=exists)
        return last, answers, draft


def _pieces(model: Mapper, batch: Batch, report: Report, dtype: torch.dtype) -> None:
    tol, lengths = tolerance(dtype, model=True), batch["target"]["valid"].sum(1).tolist()
    for name, pieces in _cuttings(lengths):
        with report.case("T", "steps of any size give what the whole gives", f"{name}, {str(dtype)[6:]}") as case:
            with torch.no_grad():
                known = _Known(model, batch)
            rows, done, draft = list(range(len(lengths))), [0] * len(lengths), known.begin()
            for piece in pieces:
                logits, answers, draft = known.write(draft, rows, done, piece)
                _compare(case, known, rows, done, piece, logits, answers, tol)
                done = [d + n for d, n in zip(done, piece[1] or [piece[0]] * len(rows), strict=True)]
            case.that(done == lengths, "the tokens of a row were not all asked")
            case.exactly(draft.length, torch.tensor(done), "the lengths written")


def _compare(
    case: Case,
    known: _Known,
    rows: list[int],
    done: list[int],
    piece: Piece,
    logits: Tensor,
    answers: Tensor,
    tol: float,
) -> None:
    for b, (row, n) in enumerate(zip(rows, piece[1] or [piece[0]] * len(rows), strict=True)):
        place = slice(done[b], done[b] + n)
        if n:
            true = known.logits[row, place.stop - 1].to(logits)
            case.agree(logits[b, -1], true, tol, f"row {row}, place {place.stop - 1}, logits")
        case.agree(answers[b, :n], known.answers[row, place], tol, f"row {row}, places {place}, answers")


def _beams(model: Mapper, batch: Batch, report: Report, dtype: torch.dtype) -> None:
    """Rows repeat first, as beams do, then change places among themselves and across, and last some are dropped."""
    with report.case("T", "steps go on after rows are repeated, reordered and dropped", str(dtype)[6:]) as case:
        with torch.no_grad():
            known = _Known(model, batch)
        tol, count = tolerance(dtype, model=True), len(known.valid)
        rows, done, draft = list(range(count)), [0] * count, known.begin()
        shuffled = torch.randperm(2 * count, generator=stream(1, "law rows")).tolist()
        orders = [
            sorted([*range(count)] * 2),
            [i ^ 1 for i in range(2 * count)],
            shuffled,
            [0, 0, *range(count)],
        ]
        longest = max(known.lengths)
        for turn in range(longest):
            left = [known.lengths[row] - d for row, d in zip(rows, done, strict=True)]
            whole = min(left) > 0 and len(set(done)) == 1
            piece: Piece = (1, None) if whole else (1, [min(1, n) for n in left])
            logits, answers, draft = known.write(draft, rows, done, piece)
            _compare(case, known, rows, done, piece, logits, answers, tol)
            done = [d + n for d, n in zip(done, piece[1] or [1] * len(rows), strict=True)]
            if turn < len(orders):
                draft = draft.select(torch.tensor(orders[turn]))
                rows, done = [rows[i] for i in orders[turn]], [done[i] for i in orders[turn]]
        case.exactly(draft.length, torch.tensor(done), "the lengths written")
