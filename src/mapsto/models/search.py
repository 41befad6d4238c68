"""Writing sequences with a model, one token at a time: greedy, sampling, beam and contrastive search."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mapsto.errors import ConfigError
from mapsto.models.beam import Beam
from mapsto.models.line import Prompt, Reason, Rules, Strategy, Watch, Writer, Written
from mapsto.models.path import Contrastive, Greedy, Sample
from mapsto.vocabulary import BEGIN, END, UNKNOWN

__all__ = ["Beam", "Contrastive", "Greedy", "Reason", "Sample", "Strategy", "Watch", "Writer", "Written", "search"]


@torch.no_grad()
def search(
    writer: Writer,
    draft: Any,
    prompt: Int[Tensor, "R T"],
    *,
    strategy: Strategy,
    limit: int | Sequence[int],
    valid: Bool[Tensor, "R T"] | None = None,
    ends: Iterable[int] = (END,),
    banned: Iterable[int] = (UNKNOWN, BEGIN),
    stops: Iterable[Sequence[int]] = (),
    best: int = 1,
    rows: Sequence[int] | None = None,
    begun: Sequence[Sequence[int]] | None = None,
    watch: Watch | None = None,
) -> list[list[Written]]:
    """Write on from each row of a prompt.

    A line ends with an end token, with a stop sequence, or when it has ``limit`` tokens. All rows go through the writer
    together, and none depends on the others: rows that are done are dropped from the batch as it pays, and draws depend
    on the row's own number. What is written is chosen among the tokens that are not banned; log p is the model's own.
    A token whose logit is −∞ has probability zero and is never written.

    Args:
        writer: the model's side.
        draft: what it remembers before the prompt, such as the memory of an encoder. Consumed; it needs room for T and
            the largest limit.
        prompt: at least one token a row, BEGIN if there is nothing else.
        strategy: how lines are found: ``Greedy()``, ``Sample(...)``, ``Beam(...)`` or ``Contrastive(...)``.
        limit: how many tokens may be written, the end token included; for all rows, or for each.
        valid: which tokens of the prompt exist: the first ones of each row.
        ends: tokens that end a line.
        banned: tokens that are never written.
        stops: sequences of tokens that end a line. They are kept in it.
        best: lines a row: the best of a beam, or independent samples.
        rows: each row's own number, which its draws depend on and errors name; counted from 0 by default.
        begun: of each row, the last tokens of its prompt in which a stop sequence may begin: what a line has written in
            an earlier search, where a long text is written in several; none by default.
        watch: told ``(row's number, token)`` of every token as it is written; for strategies that never take one back.

    Returns:
        For each row ``best`` lines, the best first; fewer if a beam finds no more.

    Raises:
        ConfigError: what was asked cannot be.
        NonFiniteError: the logits of a row are not finite.

    Example:
        >>> class Parrot:  # always says 3, 4, end, whatever comes before
        ...     def __call__(self, tokens, draft, *, valid=None):
        ...         said = draft.said + 1
        ...         logits = torch.eye(5)[torch.tensor([3, 4, 2])[(said - 1).clamp(max=2)]][:, None] * 9
        ...         return logits, logits, Said(said)
        >>> class Said:
        ...     def __init__(self, said):
        ...         self.said = said
        ...     def select(self, rows):
        ...         return Said(self.said[rows])
        >>> begin = torch.tensor([[1]])
        >>> search(Parrot(), Said(torch.tensor([0])), begin, strategy=Greedy(), limit=10)[0][0].ids
        [3, 4]
    """
    rules = Rules(frozenset(ends), frozenset(banned), tuple(tuple(stop) for stop in stops))
    count = len(prompt)
    limits = [limit] * count if isinstance(limit, int) else list(limit)
    numbers = list(range(count)) if rows is None else list(rows)
    earlier: list[tuple[int, ...]] = [()] * count if begun is None else [tuple(one) for one in begun]
    lengths = _check(prompt, valid, limits, numbers, best)
    if len(earlier) != count:
        raise ConfigError(f"search: begun is of {len(earlier)} rows, the prompt of {count}; expected one each")
    if count == 0:
        return []
    uneven = min(lengths) < prompt.shape[1]
    logits, answers, draft = writer(prompt, draft, valid=valid if uneven else None)
    rules.check(logits.shape[-1])
    last = torch.tensor(lengths, device=logits.device).clamp(max=logits.shape[1]) - 1
    read = Prompt(
        draft=draft,
        logits=logits[torch.arange(count, device=logits.device), last],
        answers=answers,
        valid=torch.ones_like(prompt, dtype=torch.bool) if valid is None else valid,
        limits=limits,
        rows=numbers,
        begun=earlier,
        device=prompt.device,
    )
    return strategy.write(writer, read, rules, best=best, watch=watch)


def _check(prompt: Tensor, valid: Tensor | None, limits: list[int], rows: list[int], best: int) -> list[int]:
    """The length of each row of the prompt."""
    count, places = prompt.shape
    if len(limits) != count or len(rows) != count:
        raise ConfigError(
            f"search: {len(limits)} limits and {len(rows)} row numbers for a prompt of {count} rows; expected one each"
        )
    if min(limits, default=1) < 1:
        raise ConfigError(f"search: a limit of {min(limits)} tokens; expected 1 or more")
    if best < 1:
        raise ConfigError(f"search: best={best} lines a row; expected 1 or more")
    if valid is None:
        lengths = [places] * count
    else:
        if valid.shape != prompt.shape:
            raise ConfigError(
                f"search: valid is {tuple(valid.shape)} and the prompt {(count, places)}; expected one shape"
            )
        if bool((valid[:, 1:] & ~valid[:, :-1]).any()):
            raise ConfigError("search: a row of the prompt has a gap; expected its valid tokens first")
        lengths = valid.sum(1).tolist()
    if min(lengths, default=1) < 1:
        row = rows[lengths.index(min(lengths))]
        raise ConfigError(f"search: row {row} of the prompt is empty; expected at least the token BEGIN ({BEGIN})")
    return lengths
