"""Recurrent relatives of attention: memories that take in one item after the other, in place of looking at all."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mapsto.collection import Collection, Packed
from mapsto.errors import ConfigError
from mapsto.functional.scan import scan
from mapsto.nn.position import Position

__all__ = ["CompositeMemory", "GatedMemory", "Memory", "Recall", "half_lives"]

LONGEST = 512
"""Items after which the slowest channel of a new memory has forgotten half."""


class Memory(nn.Module, ABC):
    """The contract: h_t = γ_t ⊙ h_{t-1} + w_t, where the kind says what an item writes, w, and what it leaves, γ.

    Only what exists is written, and only what exists makes forget: padding changes nothing. Items are taken in their
    order; places are not looked at. Time and memory O(N D²) for the projections and O(N W) for the rest, and a
    constant W numbers a row in steps.

    Args:
        dim: D, the width of an item.
        width: W, how many numbers are remembered.
    """

    def __init__(self, dim: int, width: int):
        super().__init__()
        if dim < 1 or width < 1:
            raise ConfigError(f"memory: dim={dim}, width={width}; expected 1 or more of each")
        self.dim, self.width = dim, width

    @abstractmethod
    def writes(self, items: Float[Tensor, "... D"]) -> tuple[Float[Tensor, "... W"], Float[Tensor, "..."]]:
        """What each item writes, and log γ <= 0 of what it leaves of all before it, (W,) or (…, W)."""

    def forward(self, x: Collection | Packed, *, reverse: bool = False) -> Float[Tensor, "... W"]:
        """What is remembered at every item: of it and all before it (behind it, if reverse). Zeros in empty rows."""
        written, log_forget = self.writes(x.items)
        if isinstance(x, Collection):
            return self._scan(written, log_forget, x.valid, reverse=reverse)
        answers = []
        for _, index, valid in x.plan:
            own = log_forget[index] if log_forget.dim() == written.dim() else log_forget
            answers.append(self._scan(written[index], own, valid, reverse=reverse))
        return x.scatter(answers)

    def start(self, like: Tensor, batch: int) -> Float[Tensor, "B W"]:
        """An empty state, of the device of ``like``: all that is kept between steps. Its rows may be picked (beams)."""
        return like.new_zeros(batch, self.width, dtype=torch.promote_types(like.dtype, torch.float32))

    def step(
        self, items: Float[Tensor, "B T D"], state: Float[Tensor, "B W"], *, valid: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], Float[Tensor, "B W"]]:
        """Take in T >= 1 new items (the valid ones, which come first): equals :meth:`forward` for any cutting."""
        written, log_forget = self.writes(items)
        wide = written.to(state.dtype)
        h = self._scan(wide, log_forget, valid, start=state)
        return h.to(written.dtype), h[:, -1]

    @staticmethod
    def _scan(
        written: Tensor, log_forget: Tensor, valid: Tensor | None, *, start: Tensor | None = None, reverse: bool = False
    ) -> Tensor:
        if valid is not None:
            hole = ~valid[..., None]
            written, log_forget = written.masked_fill(hole, 0), log_forget.masked_fill(hole, 0)
        return scan(written, log_forget, start=start, reverse=reverse)


class CompositeMemory(Memory):
    """h_t = Σ_{i<=t} γ^{t-i} θᵀx_i: the sum of what all items write, older ones faded.

    Args:
        dim: D.
        width: W; D if None.
        forget: γ in (0, 1] of every channel, fixed; 1 forgets nothing. If None, it is learned, one a channel, and
            starts with half-lives from 1 to 512 items.
    """

    def __init__(self, dim: int, width: int | None = None, *, forget: float | None = None):
        super().__init__(dim, dim if width is None else width)
        if forget is not None and not 0 < forget <= 1:
            raise ConfigError(f"memory: forget={forget}; expected a number above 0 and at most 1, or None to learn it")
        self.forget = forget
        self.linear = nn.Linear(dim, self.width, bias=False)
        self.keep = nn.Parameter(half_lives(self.width)) if forget is None else None

    def writes(self, items: Float[Tensor, "... D"]) -> tuple[Float[Tensor, "... W"], Float[Tensor, " W"]]:
        """θᵀx, and log γ of each channel."""
        if self.keep is not None:
            return self.linear(items), F.logsigmoid(self.keep)
        assert self.forget is not None
        return self.linear(items), self.linear.weight.new_full((self.width,), math.log(self.forget))


class GatedMemory(Memory):
    """h_t = σ(θ_λᵀ x̄_t) ⊙ h_{t-1} + θ_xᵀ x̄_t, x̄ with a bias entry: each item decides what it leaves of the past.

    The biases of the gates start where an item leaves half of the past after 1 to 512 items, a channel each.

    Args:
        dim: D.
        width: W; D if None.

    Reference: Martin and Cundy, Parallelizing linear recurrent neural nets over sequence length, 2018 (a gate that
    does not look at h).
    """

    def __init__(self, dim: int, width: int | None = None):
        super().__init__(dim, dim if width is None else width)
        self.linear = nn.Linear(dim, 2 * self.width, bias=False)
        # Not the linear layer's own bias, whose first value is zero.
        self.bias = nn.Parameter(F.pad(half_lives(self.width), (0, self.width)))

    def writes(self, items: Float[Tensor, "... D"]) -> tuple[Float[Tensor, "... W"], Float[Tensor, "... W"]]:
        """θ_xᵀ x̄, and log σ(θ_λᵀ x̄)."""
        gate, written = (self.linear(items) + self.bias).chunk(2, -1)
        return written, F.logsigmoid(gate)


def half_lives(width: int) -> Float[Tensor, " W"]:
    """Where log(γ / (1 - γ)) starts: γ = ½^(1/h), with half-lives h from 1 to 512 items, evenly in their logarithm."""
    half_life = LONGEST ** torch.linspace(0, 1, width, dtype=torch.float64)
    gamma = 0.5 ** (1 / half_life)
    return torch.logit(gamma).float()


class Recall(nn.Module):
    """The mixing layer of a block: W_o norm(h) + b_o, h what one memory, or one each way, remembers at every item.

    The norm makes the answer as large after 5,000 items as after 5. One way is causal by nature; two ways, each with
    half of the width, let every item know all others.

    Args:
        make: makes a memory of (dim, width), such as :class:`GatedMemory`.
        dim: D, even if both ways are read.
        both: whether a second memory reads from the last item to the first.
    """

    ordered = True
    """Items are told apart by their order, whether or not they have places."""

    def __init__(self, make: Callable[[int, int], Memory], dim: int, *, both: bool = True):
        super().__init__()
        if both and dim % 2:
            raise ConfigError(f"model.dim={dim}: a memory that reads both ways needs an even width")
        width = dim // 2 if both else dim
        self.ahead = make(dim, width)
        self.back = make(dim, width) if both else None
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim)

    def forward(
        self, x: Collection | Packed, *, causal: bool = False, position: Position | None = None
    ) -> Float[Tensor, "... D"]:
        """New items, of the shape of ``x.items``. A position has nothing to turn or to add to here.

        Raises:
            ConfigError: asked to be causal, but made to read both ways.
        """
        h = self.ahead(x)
        if self.back is not None:
            if causal:
                raise ConfigError(
                    "a memory that reads both ways has seen what comes later. Make it with both=False for causal use"
                )
            h = torch.cat([h, self.back(x, reverse=True)], -1)
        return self._answer(h)

    def start(self, like: Tensor, batch: int) -> Float[Tensor, "B W"]:
        """An empty state for :meth:`step`."""
        return self.ahead.start(like, batch)

    def step(
        self, items: Float[Tensor, "B T D"], state: Float[Tensor, "B W"], *, valid: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B W"]]:
        """Take in T new items and answer them: equals :meth:`forward` for any cutting.

        Raises:
            ConfigError: made to read both ways, so the answer to an item needs those still to come.
        """
        if self.back is not None:
            raise ConfigError("a memory that reads both ways cannot go step by step. Make it with both=False")
        h, state = self.ahead.step(items, state, valid=valid)
        return self._answer(h), state

    def _answer(self, h: Tensor) -> Tensor:
        return cast(Tensor, self.out(self.norm(h)))
