"""Beam search: the best of many lines written side by side."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mapsto.errors import ConfigError
from mapsto.functional.truncation import likeliest
from mapsto.models.line import Prompt, Reason, Rules, Strategy, Watch, Writer, Written, check_finite, finish, log_p
from mapsto.models.path import Greedy

__all__ = ["Beam"]


@dataclass(frozen=True)
class Beam(Strategy):
    """The lines with the best score = log p(x | prompt) / length^penalty that a beam finds.

    Each step ranks all continuations of the ``width`` running lines by log p, equal ones by the rank of their line and
    then by the lowest id. Those among the first ``width`` that end are set aside, and never extended; the first
    ``width`` that do not end run on. A row is done when no running line could still beat the worst of the ``best`` kept:
    since log p only falls, a line of n tokens can at most reach log p / m^penalty, with m = n + 1 if the penalty is not
    positive, else m = min(limit, n + 1 + ``reach``): as if so many more tokens were free.

    The greedy line of each row is carried along to its end (at the cost of a row only while it is in no beam), so that the best
    line never has a lower score than the greedy one; beam search alone does not promise that. Width 1 is greedy search.

    Cost: a step of width (+ 1) rows for each row of the prompt, and a ``select`` when lines change places.

    Args:
        width: lines side by side.
        penalty: of the length, which counts the end token. 0 ranks by log p and favours short lines, 1 by the mean a
            token; a negative one favours short lines more.
        reach: how many more tokens a running line is trusted to write. None is as many as the limit lets it: nothing
            that the beam could find is missed, but with a positive penalty most rows run to their limit.

    Reference: Graves, Sequence transduction with recurrent neural networks, 2012; Wu et al., Google's neural machine
    translation system, 2016 (length penalty).
    """

    width: int = 4
    penalty: float = 1.0
    reach: int | None = 8

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(f"beam search: a width of {self.width}; expected 1 or more")
        if not abs(self.penalty) <= 10:
            raise ConfigError(f"beam search: a length penalty of {self.penalty}; expected a number from -10 to 10")
        if self.reach is not None and self.reach < 0:
            raise ConfigError(f"beam search: reach={self.reach}; expected 0 or more tokens, or None for all")

    def write(
        self, writer: Writer, prompt: Prompt, rules: Rules, *, best: int, watch: Watch | None
    ) -> list[list[Written]]:
        """The ``best`` lines of each row, fewer if there are no more."""
        if best > self.width:
            raise ConfigError(f"beam search: best={best} lines of a beam of width {self.width}. Take width={best}")
        if watch is not None:
            raise ConfigError("beam search: lines change until the end, so none can be watched. Leave `watch` out")
        if self.width == 1:
            return Greedy(self.penalty).write(writer, prompt, rules, best=best, watch=watch)
        fans = [_Fan(self, rules, prompt, best, row) for row in range(len(prompt.rows))]
        running, logits, draft = list(fans), prompt.logits, prompt.draft
        while running:
            for fan, step in zip(running, self._rank(running, log_p(logits, rules), rules), strict=True):
                fan.advance(step)
            running = [fan for fan in running if not fan.done]
            if not running:
                break
            order, tokens = _layout(running)
            if order != list(range(len(logits))):
                draft = draft.select(torch.tensor(order, device=prompt.device))
            after, _, draft = writer(torch.tensor(tokens, device=prompt.device)[:, None], draft)
            logits = after[:, -1]
        return [fan.ranked for fan in fans]

    def _rank(self, running: list["_Fan"], now: Tensor, rules: Rules) -> list["_Step"]:
        """What could come next on each row of the prompt. Waits for the device, once."""
        rows, slots = len(running), len(running[0].beam)
        # Of each line at most so many continuations end, so that ``width`` of these go on.
        count = self.width * (1 + len(rules.finals - rules.banned))
        gains, ids = likeliest(now, count)
        sums = torch.tensor([[line.total for line in fan.beam] for fan in running], dtype=now.dtype, device=now.device)
        totals = (sums[..., None] + gains[: rows * slots].view(rows, slots, -1)).flatten(1)
        totals, order = (x[:, :count] for x in totals.sort(dim=-1, descending=True, stable=True))
        tokens = ids[: rows * slots].reshape(rows, -1).gather(1, order)
        ahead = torch.tensor([fan.greedy.row if fan.greedy else 0 for fan in running], device=now.device)
        parts = [totals, order // gains.shape[1], tokens, gains[ahead, :1], ids[ahead, :1]]
        table = torch.cat([part.to(now) for part in parts], 1).tolist()
        width = totals.shape[1]
        return [_Step(r[:width], r[width : 2 * width], r[2 * width : 3 * width], r[-2], int(r[-1])) for r in table]


@dataclass(frozen=True)
class _Line:
    """A line being written: its tokens, log p, and the row of the batch that holds it, or its parent."""

    ids: tuple[int, ...]
    total: float
    row: int

    def then(self, token: int, total: float) -> "_Line":
        return _Line((*self.ids, token), total, self.row)


@dataclass(frozen=True)
class _Step:
    """The best continuations of a row of the prompt, by falling log p, and that of the greedy line."""

    totals: list[float]
    slots: list[float]
    tokens: list[float]
    gain: float
    token: int


class _Fan:
    """The lines of one row of the prompt."""

    def __init__(self, search: Beam, rules: Rules, prompt: Prompt, best: int, row: int):
        self.search, self.rules, self.best = search, rules, best
        self.limit, self.number, self.begun = prompt.limits[row], prompt.rows[row], prompt.begun[row]
        self.beam = [_Line((), 0.0, row)]
        self.greedy: _Line | None = self.beam[0]
        self.kept: list[tuple[float, tuple[int, ...], Written]] = []
        self.done = False

    def advance(self, step: _Step) -> None:
        """Write one token on every line."""
        width = self.search.width
        running: list[_Line] = []
        if math.isnan(step.totals[0]):
            check_finite(math.nan, self.number, len(self.beam[0].ids))
        for rank, (total, slot, token) in enumerate(zip(step.totals, step.slots, step.tokens, strict=True)):
            if total == -math.inf or (rank >= width and len(running) == width):
                break
            line = self.beam[int(slot)].then(int(token), total)
            if (reason := self.rules.reason(line.ids, self.limit, self.begun)) is None:
                running.append(line)
            elif rank < width:
                self._keep(line, reason)
        if self.greedy is not None:
            self.greedy = self._go(self.greedy.then(step.token, self.greedy.total + step.gain))
        leader = running[0] if running else None
        self.done = self._decided(leader, self.search.reach) and self._decided(self.greedy)
        if not self.done:
            # Slots that hold nothing: copies that no continuation can come from.
            first = leader or self.greedy
            assert first is not None
            empty = _Line(first.ids, -math.inf, first.row)
            self.beam = running + [empty] * (width - len(running))
        elif not self.kept:
            check_finite(-math.inf, self.number, len(self.beam[0].ids))

    @property
    def ranked(self) -> list[Written]:
        """The best lines."""
        return [written for _, _, written in self.kept]

    def _go(self, line: _Line) -> _Line | None:
        """The line if it goes on."""
        if not math.isfinite(line.total):
            return None
        if (reason := self.rules.reason(line.ids, self.limit, self.begun)) is not None:
            self._keep(line, reason)
            return None
        return line

    def _keep(self, line: _Line, reason: Reason) -> None:
        written = finish(line.ids, line.total, reason, self.search.penalty)
        if all(line.ids != ids for _, ids, _ in self.kept):  # the greedy line may be in the beam too
            self.kept = sorted([*self.kept, (-written.score, line.ids, written)], key=lambda k: k[:2])[: self.best]

    def _decided(self, line: _Line | None, reach: int | None = None) -> bool:
        """Whether a line, if there is one, cannot beat the worst that is kept, with so many tokens more (None: any)."""
        if line is None:
            return True
        if len(self.kept) < self.best:
            return False
        soon = len(line.ids) + 1
        ends = (soon, self.limit if reach is None else min(self.limit, soon + reach))
        return max(line.total / length**self.search.penalty for length in ends) <= self.kept[-1][2].score


def _layout(running: list[_Fan]) -> tuple[list[int], list[int]]:
    """The rows of the next batch: where each comes from, and its last token. Greedy lines in no beam come last."""
    lines = [line for fan in running for line in fan.beam]
    for i, fan in enumerate(running):
        first = i * len(fan.beam)
        greedy, beam = fan.greedy, fan.beam
        fan.beam = [_Line(line.ids, line.total, first + slot) for slot, line in enumerate(beam)]
        if greedy is not None:
            held = [slot for slot, line in enumerate(beam) if line.ids == greedy.ids]
            fan.greedy = _Line(greedy.ids, greedy.total, first + held[0] if held else len(lines))
            lines += [] if held else [greedy]
    return [line.row for line in lines], [line.ids[-1] for line in lines]
