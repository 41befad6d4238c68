"""Lines being written one token at a time: who writes them, what ends them, and what comes of them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mapsto.errors import ConfigError, NonFiniteError

__all__ = ["Lines", "Prompt", "Reason", "Rules", "Strategy", "Watch", "Writer", "Written", "finish", "log_p"]

Reason = Literal["end", "stop", "limit"]
"""Why a line ended: an end token was written, a stop sequence was, or there was room for no more."""

Watch = Callable[[int, int], None]
"""``watch(row, token)`` is told of every token as it is written, end tokens too."""

RUNNING = 0.75
"""Rows that have finished are dropped when no more than this share of the batch still runs: a copy of the draft costs
about as much as a step."""


class Writer(Protocol):
    """The side of the model: what comes next after all that is in the draft.

    A draft is what the model remembers of each row, with ``draft.select(rows)`` giving that of some rows in a new order,
    repeats allowed. It needs room for the prompt and ``limit`` more tokens a row.
    """

    def __call__(
        self, tokens: Int[Tensor, "R T"], draft: Any, *, valid: Bool[Tensor, "R T"] | None = None
    ) -> tuple[Float[Tensor, "R #T V"], Float[Tensor, "R T D"], Any]:
        """Append T >= 1 tokens to each row (the valid ones, which come first). Consumes the draft.

        Returns:
            Logits of what follows each token, or only of what follows each row's last valid one; the answers to all
            tokens, which logits are made from; and the new draft.
        """
        ...


@dataclass(frozen=True)
class Written:
    """A line that is done.

    Attributes:
        ids: the tokens, without the prompt and without the end token; a stop sequence is kept.
        score: what lines are ranked by: log_probability / length^penalty in beam search, else log_probability. The
            length counts the end token.
        log_probability: log p(ids and the end token, if there is one | prompt) in nats, under the model itself: before
            tokens were banned, and at temperature 1 without truncation, whatever was drawn from.
        reason: why it ended.
    """

    ids: list[int]
    score: float
    log_probability: float
    reason: Reason


@dataclass(frozen=True)
class Rules:
    """What ends a line, and what is never written.

    Attributes:
        ends: tokens that end a line.
        banned: tokens that are never written.
        stops: sequences of tokens that end a line once written; what stands in the prompt does not count, but for what
            a line has ``begun`` with.
    """

    ends: frozenset[int]
    banned: frozenset[int]
    stops: tuple[tuple[int, ...], ...] = ()

    def check(self, size: int) -> None:
        """Refuse rules that cannot be of a vocabulary of this size, or that leave nothing to write.

        Raises:
            ConfigError: saying what.
        """
        for name, ids in {
            "ends": self.ends,
            "banned": self.banned,
            "stops": {i for s in self.stops for i in s},
        }.items():
            wrong = sorted(i for i in ids if not 0 <= i < size)
            if wrong:
                raise ConfigError(f"search: {name} holds {wrong[0]}; expected ids from 0 to {size - 1}")
        if not all(self.stops):
            raise ConfigError("search: a stop sequence is empty; expected one token or more")
        if len(self.banned) == size:
            raise ConfigError(f"search: all {size} tokens are banned; leave one that may be written")

    @property
    def finals(self) -> set[int]:
        """Tokens that may be the last of a line."""
        return set(self.ends) | {stop[-1] for stop in self.stops}

    def reason(self, written: Sequence[int], limit: int, begun: Sequence[int] = ()) -> Reason | None:
        """Why a line ends with its last token, the end token included; None if it goes on.

        Args:
            written: since the prompt.
            limit: how many there may be.
            begun: what a stop sequence may begin in: the end of the prompt that was written before.
        """
        if written[-1] in self.ends:
            return "end"
        text = (*begun, *written) if self.stops and begun else written
        if any(tuple(text[-len(stop) :]) == stop for stop in self.stops):
            return "stop"
        return "limit" if len(written) >= limit else None


@dataclass(frozen=True)
class Prompt:
    """Prompts that the writer has read.

    Attributes:
        draft: what it remembers.
        logits: of the first token to write.
        answers: of every token of the prompt.
        valid: which of them exist.
        limits: how many tokens each row may write, the end token included.
        rows: each row's own number, which its draws depend on.
        begun: of each row, the last tokens of the prompt that count as written, for stop sequences.
        device: of tokens and drafts.
    """

    draft: Any
    logits: Float[Tensor, "R V"]
    answers: Float[Tensor, "R T D"]
    valid: Bool[Tensor, "R T"]
    limits: list[int]
    rows: list[int]
    begun: list[tuple[int, ...]]
    device: torch.device

    def repeat(self, times: int) -> "Prompt":
        """Each row several times, one after the other."""
        if times == 1:
            return self
        index = torch.arange(len(self.rows), device=self.device).repeat_interleave(times)
        return replace(
            self,
            draft=self.draft.select(index),
            logits=self.logits.repeat_interleave(times, 0),
            answers=self.answers.repeat_interleave(times, 0),
            valid=self.valid.repeat_interleave(times, 0),
            limits=[n for n in self.limits for _ in range(times)],
            rows=[n for n in self.rows for _ in range(times)],
            begun=[n for n in self.begun for _ in range(times)],
        )


class Strategy(ABC):
    """The contract: how lines are found."""

    @abstractmethod
    def write(
        self, writer: Writer, prompt: Prompt, rules: Rules, *, best: int, watch: Watch | None
    ) -> list[list[Written]]:
        """Up to ``best`` lines for each row of the prompt, the best first.

        Raises:
            ConfigError: it cannot give so many lines, or not be watched.
            NonFiniteError: the writer gave logits that are not finite.
        """


def log_p(logits: Float[Tensor, "N V"], rules: Rules) -> Float[Tensor, "N V"]:
    """The model's log p(v) = logit_v − log Σ_w exp logit_w in float64; −∞ where v is banned.

    A row that has a NaN, a logit of +∞, or no logit above −∞ is NaN all over.
    """
    # MPS has no float64.
    x = torch.log_softmax(logits.cpu() if logits.device.type == "mps" else logits, -1, dtype=torch.float64)
    if rules.banned:
        x[:, sorted(rules.banned)] += -torch.inf  # a NaN stays one
    return x


def finish(written: Sequence[int], log_probability: float, reason: Reason, penalty: float = 0.0) -> Written:
    """A line from its tokens, the end token included."""
    ids = list(written[:-1] if reason == "end" else written)
    return Written(ids, log_probability / len(written) ** penalty, log_probability, reason)


class Lines:
    """One line for each row of a prompt, and which of them the batch still carries.

    Attributes:
        carried: the line of each row of the batch.
    """

    def __init__(self, prompt: Prompt, rules: Rules, watch: Watch | None):
        self.prompt, self.rules, self.watch = prompt, rules, watch
        self.carried = list(range(len(prompt.rows)))
        self._ids: list[list[int]] = [[] for _ in self.carried]
        self._sums = [0.0] * len(self.carried)
        self._reasons: list[Reason | None] = [None] * len(self.carried)

    @property
    def running(self) -> list[int]:
        """The rows of the batch whose lines go on."""
        return [i for i, line in enumerate(self.carried) if self._reasons[line] is None]

    def write(self, ids: Int[Tensor, " N"], log_p: Float[Tensor, "N V"]) -> None:
        """Write one token on each line of the batch that still runs. Waits for the device, once.

        Raises:
            NonFiniteError: where log p is NaN, or all that may be written has probability zero.
        """
        chosen = log_p.gather(1, ids[:, None])[:, 0]
        tokens, gains = torch.stack([ids.to(chosen.dtype), chosen]).tolist()
        for i in self.running:
            line, token = self.carried[i], int(tokens[i])
            check_finite(gains[i], self.prompt.rows[line], len(self._ids[line]))
            self._ids[line].append(token)
            self._sums[line] += gains[i]
            self._reasons[line] = self.rules.reason(self._ids[line], self.prompt.limits[line], self.prompt.begun[line])
            if self.watch is not None:
                self.watch(self.prompt.rows[line], token)

    def drop(self) -> Int[Tensor, " N2"] | None:
        """Drop the lines that are done from the batch, if they are many: the rows to select; None if all stay."""
        running = self.running
        if len(running) > RUNNING * len(self.carried):
            return None
        self.carried = [self.carried[i] for i in running]
        return torch.tensor(running, device=self.prompt.device)

    def done(self, penalty: float = 0.0) -> list[Written]:
        """All lines, in the order of the prompt."""
        ended = zip(self._ids, self._sums, self._reasons, strict=True)
        return [finish(ids, total, reason, penalty) for ids, total, reason in ended if reason is not None]


def check_finite(log_probability: float, row: int, place: int) -> None:
    """Refuse what no finite logits give.

    Raises:
        NonFiniteError: naming the row.
    """
    if math.isfinite(log_probability):
        return
    cause = (
        "no token that may be written has any probability" if log_probability < 0 else "its logits are NaN or infinite"
    )
    raise NonFiniteError(
        f"search: row {row}, token {place + 1}: {cause}; expected finite logits. Check the model with `mapsto evaluate`"
    )
