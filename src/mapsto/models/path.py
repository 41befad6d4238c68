"""Search that follows one line a row: greedy, sampling, and contrastive search."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from mapsto.errors import ConfigError
from mapsto.functional.truncation import draw, likeliest, min_p, nucleus, temper, top_k
from mapsto.models.line import Lines, Prompt, Rules, Strategy, Watch, Writer, Written, log_p
from mapsto.stream import stream_numpy

__all__ = ["Contrastive", "Greedy", "Sample"]

Pick = Callable[[Float[Tensor, "N V"]], Int[Tensor, " N"]]


@dataclass(frozen=True)
class Greedy(Strategy):
    """The likeliest token each time: x_t = argmax_v log p(v | x_<t). Of equal ones the lowest id.

    Args:
        penalty: of the length, in the score only.
    """

    penalty: float = 0.0

    def write(
        self, writer: Writer, prompt: Prompt, rules: Rules, *, best: int, watch: Watch | None
    ) -> list[list[Written]]:
        """One line a row."""
        _single(best, "greedy search")
        lines = Lines(prompt, rules, watch)
        _follow(writer, prompt, lines, lambda now: now.argmax(-1))
        return [[line] for line in lines.done(self.penalty)]


@dataclass(frozen=True)
class Sample(Strategy):
    """A token drawn from p, made sharper and cut short: temperature, then top-k, nucleus and min-p, in this order.

    What a row draws depends on the seed, the row's own number and the step: neither on its company nor on the device's
    random numbers. Several lines a row are independent draws, in the order of drawing.

    Args:
        temperature: p(v)^(1/T); 0 is greedy search.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the fewest tokens that have this mass together; 1 keeps all.
        min_p: keep what has at least this share of the likeliest token's probability; 0 keeps all.
        seed: of the draws.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ConfigError(f"sample: a temperature of {self.temperature}; expected a number of 0 or more")
        if self.top_k < 0:
            raise ConfigError(f"sample: top_k is {self.top_k}; expected 1 or more tokens, or 0 for all")
        for name, value in {"top_p": self.top_p, "min_p": self.min_p}.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"sample: {name} is {value}; expected a number from 0 to 1")

    def distribution(self, log_p: Float[Tensor, "... V"]) -> Float[Tensor, "... V"]:
        """What is drawn from, given log p of the model."""
        log_p = temper(log_p, self.temperature)
        if self.top_k:
            log_p = top_k(log_p, self.top_k)
        return min_p(nucleus(log_p, self.top_p), self.min_p)

    def write(
        self, writer: Writer, prompt: Prompt, rules: Rules, *, best: int, watch: Watch | None
    ) -> list[list[Written]]:
        """``best`` independent lines a row."""
        if watch is not None:
            _single(best, "watching a sample")
        copies = range(best)
        dice = [stream_numpy(self.seed, "sample", row, copy) for row in prompt.rows for copy in copies]
        lines = Lines(prompt.repeat(best), rules, watch)

        def pick(now: Tensor) -> Tensor:
            if self.temperature == 0:
                return now.argmax(-1)
            uniform = torch.tensor([dice[line].random() for line in lines.carried], dtype=now.dtype, device=now.device)
            return draw(self.distribution(now), uniform)

        _follow(writer, lines.prompt, lines, pick)
        done = lines.done()
        return [done[i * best : (i + 1) * best] for i in range(len(prompt.rows))]


@dataclass(frozen=True)
class Contrastive(Strategy):
    """A likely token that does not repeat what was said, by the answers h of the model.

    x_t = argmax over the k likeliest v of (1 − α) p(v | x_<t) − α max_{j<t} cos(h_v, h_j)

    j runs over the prompt and all that was written. Of equal ones the likelier, then the lowest id. A step asks the
    model about k candidates a row. α = 0 and k = 1 are greedy search.

    Args:
        k: candidates.
        alpha: α, from 0 to 1.

    Reference: Su et al., A contrastive framework for neural text generation, 2022.
    """

    k: int = 4
    alpha: float = 0.6

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"contrastive search: k is {self.k}; expected 1 or more candidates")
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"contrastive search: alpha is {self.alpha}; expected a number from 0 to 1")

    def write(
        self, writer: Writer, prompt: Prompt, rules: Rules, *, best: int, watch: Watch | None
    ) -> list[list[Written]]:
        """One line a row."""
        _single(best, "contrastive search")
        lines = Lines(prompt, rules, watch)
        logits, draft, valid = prompt.logits, prompt.draft, prompt.valid
        past = _unit(prompt.answers)
        while lines.running:
            now = log_p(logits, rules)
            gains, ids = likeliest(now, self.k)
            rows, k = ids.shape
            each = torch.arange(rows, device=prompt.device).repeat_interleave(k)
            after, answers, draft = writer(ids.reshape(-1, 1).to(prompt.device), draft.select(each))
            h = _unit(answers).view(rows, k, -1)
            alike = torch.einsum("nkd,njd->nkj", h, past).masked_fill(~valid[:, None], -torch.inf).amax(-1)
            value = (1 - self.alpha) * gains.exp() - self.alpha * alike.to(gains)
            which = value.masked_fill(gains.isneginf(), -torch.inf).argmax(-1)
            lines.write(ids.gather(1, which[:, None])[:, 0], now)
            keep = torch.tensor(lines.running, dtype=torch.int64, device=prompt.device)
            lines.carried = [lines.carried[i] for i in lines.running]
            which = which.to(prompt.device)[keep]
            logits = after[:, -1].view(rows, k, -1)[keep, which]
            draft = draft.select(keep * k + which)
            past = torch.cat([past[keep], h[keep, which][:, None]], 1)
            valid = F.pad(valid[keep], (0, 1), value=True)
        return [[line] for line in lines.done()]


def _unit(answers: Float[Tensor, "N T D"]) -> Float[Tensor, "N T D"]:
    return F.normalize(answers if answers.dtype == torch.float64 else answers.float(), dim=-1)


def _follow(writer: Writer, prompt: Prompt, lines: Lines, pick: Pick) -> None:
    """Write on each line what ``pick`` takes, until all have ended."""
    logits, draft = prompt.logits, prompt.draft
    while lines.running:
        now = log_p(logits, lines.rules)
        ids = pick(now)
        lines.write(ids, now)
        if not lines.running:
            return
        ids = ids.to(prompt.device)
        if (rows := lines.drop()) is not None:
            ids, draft = ids[rows], draft.select(rows)
        after, _, draft = writer(ids[:, None], draft)
        logits = after[:, -1]


def _single(best: int, name: str) -> None:
    if best != 1:
        raise ConfigError(
            f"search: best={best} lines a row, and {name} gives one. Take best=1, or Beam or Sample without watching"
        )
