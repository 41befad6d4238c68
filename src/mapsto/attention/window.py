"""Windowed attention: every item looks at those near it, in time and memory that grow with the length only."""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils import _pytree

from mapsto.attention import Attention, Bias, State
from mapsto.errors import ConfigError
from mapsto.functional.attention import attend, check_beta, weighted
from mapsto.functional.band import attend_band
from mapsto.functional.cache import longest
from mapsto.functional.rank import within

__all__ = ["WindowAttention", "WindowState"]

PIECE = 64
"""Places of a step that are answered at once: each looks at the whole ring and at the others of its piece."""


@dataclass(frozen=True)
class WindowState(State):
    """The first ``shared`` keys and values of each row, and behind them a ring of the last ones.

    Attributes:
        keys: (B, H, shared + ring + 1, K): rank r >= shared is at shared + (r − shared) mod ring. The last place takes
            what is not kept, and is never read.
        values: (B, H, shared + ring + 1, V) likewise.
        length: how many places of each row were written.
        shared: how many first ranks stay.
        capacity: the most places a row may have; None if the ring holds a whole window, so that there is no end.
        filled: the longest a row can be by now. A Python number, so that no step waits for the device.
        even: whether all rows are ``filled`` long.
    """

    keys: Float[Tensor, "B H R K"]
    values: Float[Tensor, "B H R V"]
    length: Int[Tensor, " B"]
    shared: int
    capacity: int | None
    filled: int = 0
    even: bool = True

    @property
    def ring(self) -> int:
        """How many last places are kept."""
        return self.keys.shape[2] - self.shared - 1

    def ranks(self) -> Int[Tensor, "B R-1"]:
        """The rank that stands at each place; -1 where nothing is written, and where a shared one stands already."""
        first = torch.arange(self.shared, device=self.length.device)
        place = torch.arange(self.ring, device=self.length.device)
        last = self.length[:, None] - 1
        turned = last - torch.remainder(last - self.shared - place, self.ring)
        return torch.cat([first.where(first <= last, -1), turned.where(turned >= self.shared, -1)], 1)

    def select(self, rows: Int[Tensor, " R"]) -> "WindowState":
        """The state of some rows, in a new order; a row may be taken several times."""
        rest = self.shared, self.capacity, self.filled, self.even
        return WindowState(self.keys[rows], self.values[rows], self.length[rows], *rest)


_pytree.register_pytree_node(
    WindowState,
    lambda s: ([s.keys, s.values, s.length], (s.shared, s.capacity, s.filled, s.even)),
    lambda tensors, rest: WindowState(*tensors, *cast(Any, rest)),
    serialized_type_name="mapsto.WindowState",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
)


class WindowAttention(Attention):
    """Out_l = Σ_m softargmax_m(β q_l·k_m + bias_lm + Σ_{m<j<=l} decay_j) v_m over the keys with |r(l) − r(m)| < w.

    r is the rank among the valid items of the row. Causal, a query sees w keys, oneself among them; else 2w − 1. The
    first ``shared`` items see all and are seen by all (causal: never ahead). A window as long as the row is exact
    attention. A query that is not valid has no rank, and gets zeros.

    Time O(L · (w + shared)), memory O(L) beside blocks; a step costs O(T · (w + shared)) and its state holds w + shared
    places, however many are written. It is for self-attention: two collections have no ranks in common, so
    cross-attention and ``read`` are refused; give cross-attention another kind, such as softmax. It honours every
    argument of the contract, but for ``segment`` beside shared items: those of one document are no other's first.

    Args:
        window: w, from 1.
        shared: how many first items see all and are seen by all.
        beta: inverse temperature; 1/√K by default.

    Example:
        >>> q = k = torch.zeros(1, 1, 3, 2)
        >>> WindowAttention(2)(q, k, torch.tensor([[[[0.0], [2.0], [4.0]]]]), causal=True).flatten()
        tensor([0., 1., 3.])

    Reference: Beltagy et al., Longformer: the long-document transformer, 2020.
    """

    exempt: ClassVar[dict[str, str]] = {"S": "a band knows the ranks of the items"}
    self_only: ClassVar[str] = "two collections have no ranks in common"

    def __init__(self, window: int = 256, shared: int = 0, beta: float | None = None):
        super().__init__()
        for name, value, least, most in (("window", window, 1, 1 << 24), ("shared", shared, 0, 1024)):
            if type(value) is not int or not least <= value <= most:
                raise ConfigError(
                    f"attention.{name}={value}: expected a whole number from {least} to {most:,}, such as window:256,shared=2"
                )
        check_beta(beta)
        self.window, self.shared, self.beta = window, shared, beta

    @property
    def honours(self) -> frozenset[str]:  # type: ignore[override]
        """Everything; shared items have no meaning in a row of several documents."""
        every = frozenset({"allowed", "bias", "decay", "segment"})
        return every - {"segment"} if self.shared else every

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"window": self.window, "shared": self.shared, "beta": self.beta}

    def forward(
        self,
        q: Float[Tensor, "B H L K"],
        k: Float[Tensor, "B H M K"],
        v: Float[Tensor, "B H M V"],
        *,
        valid: Bool[Tensor, "B M"] | None = None,
        segment: Int[Tensor, "B M"] | None = None,
        allowed: Bool[Tensor, "#B #H L M"] | None = None,
        causal: bool = False,
        bias: Bias | None = None,
        decay: Float[Tensor, "B H M"] | None = None,
    ) -> Float[Tensor, "B H L V"]:
        """Answer every query; see :func:`mapsto.functional.band.attend_band`."""
        if segment is not None and self.shared:
            raise ConfigError(
                f"attention: shared={self.shared} first items belong to one document, and this row holds several. "
                "Use shared=0, or a row for each document"
            )
        seen: dict[str, Any] = {"valid": valid, "segment": segment, "allowed": allowed, "bias": bias, "decay": decay}
        return attend_band(q, k, v, window=self.window, shared=self.shared, causal=causal, beta=self.beta, **seen)

    def start(self, like: Tensor, capacity: int, *, batch: int, heads: int, key: int, value: int) -> WindowState:
        """An empty ring of ``window`` places; of fewer only if ``capacity`` is less, which is then the end."""
        if capacity < 0:
            raise ConfigError(f"attention: a cache of {capacity} places; expected 0 or more")
        ring = min(self.window, max(1, capacity))
        places = self.shared + ring + 1
        return WindowState(
            like.new_zeros(batch, heads, places, key),
            like.new_zeros(batch, heads, places, value),
            torch.zeros(batch, dtype=torch.int64, device=like.device),
            self.shared,
            None if ring == self.window else capacity,
        )

    def write(
        self,
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: WindowState,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
    ) -> WindowState:
        """Write T places over the oldest ones; what is not valid is left out. Consumes the state.

        Raises:
            ConfigError: a row would grow beyond a capacity that is shorter than the window.
        """
        count, ring = k.shape[2], state.ring
        length = state.length + (count if valid is None else valid.sum(1))
        filled = state.filled + count
        if state.capacity is not None:
            filled = longest(state.length, length, filled, state.capacity)
        settled = not state.shared or (state.even and state.filled >= state.shared)  # no row lacks a shared key
        if valid is None and count > ring + state.shared and settled:
            k, v = k[:, :, -ring:], v[:, :, -ring:]  # the others are overwritten at once
        rank = state.length[:, None] + torch.arange(count - k.shape[2], count, device=k.device)
        kept = (rank >= length[:, None] - ring) | (rank < state.shared)
        if valid is not None:
            kept = kept & valid
        target = torch.where(rank < state.shared, rank, state.shared + torch.remainder(rank - state.shared, ring))
        target = target.where(kept, state.shared + ring)
        row = torch.arange(len(target), device=k.device)[:, None]
        state.keys[row, :, target] = k.transpose(1, 2).to(state.keys.dtype)
        state.values[row, :, target] = v.transpose(1, 2).to(state.values.dtype)
        even = state.even and valid is None
        return WindowState(state.keys, state.values, length, state.shared, state.capacity, filled, even)

    def step(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: WindowState,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        bias: Bias | None = None,
    ) -> tuple[Float[Tensor, "B H T V"], WindowState]:
        """Write T new places and answer them causally, from the window before each and the shared places."""
        if state.filled == 0:
            return self(q, k, v, valid=valid, causal=True, bias=bias), self.write(k, v, state, valid=valid)
        answers = []
        for i in range(0, q.shape[2], PIECE):
            piece = slice(i, i + PIECE)
            part = None if valid is None else valid[:, piece]
            out, state = self._piece(q[:, :, piece], k[:, :, piece], v[:, :, piece], state, part, bias)
            answers.append(out)
        return (answers[0] if len(answers) == 1 else torch.cat(answers, 2)), state

    def read(self, q: Float[Tensor, "B H L K"], state: WindowState) -> Float[Tensor, "B H L V"]:
        """Refused: a query of another collection has no rank among the keys.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"attention: a window cannot answer another collection's queries: {self.self_only}. "
            "Use attention=softmax for cross-attention and memories"
        )

    def reference(
        self,
        q: Float[Tensor, "B H L K"],
        k: Float[Tensor, "B H M K"],
        v: Float[Tensor, "B H M V"],
        *,
        seen: Bool[Tensor, "B H L M"],
        extra: Float[Tensor, "B H L M"],
        valid: Bool[Tensor, "B M"],
    ) -> Float[Tensor, "B H L V"]:
        """Exact attention over the band of ranks, written out over all pairs; see the contract."""
        rank = valid.cumsum(1) - 1
        band = within(rank[:, :, None], rank[:, None], self.window, self.shared) & valid[:, :, None]
        seen = seen & band[:, None]
        beta = q.shape[-1] ** -0.5 if self.beta is None else self.beta
        logits = (beta * q.double() @ k.double().mT).masked_fill(~seen, torch.finfo(torch.float64).min)
        return weighted((torch.softmax(logits, -1) * extra.exp() * seen).to(v.dtype), v)

    def _piece(
        self, q: Tensor, k: Tensor, v: Tensor, before: WindowState, valid: Tensor | None, bias: Bias | None
    ) -> tuple[Tensor, WindowState]:
        count = q.shape[2]
        rank = before.length[:, None] + torch.arange(count, device=q.device)
        if count == 1:  # the place it takes has just left the window
            state = self.write(k, v, before, valid=valid)
            keys, values, ranks = state.keys[:, :, :-1], state.values[:, :, :-1], state.ranks()
            if state.even and state.filled >= self.shared + state.ring and bias is None:
                return attend(q, keys, values, beta=self.beta), state
        else:
            new, ranks = rank, before.ranks()
            if valid is not None:
                new = rank.where(valid, -1)
                k, v = (x.masked_fill(~valid[:, None, :, None], 0) for x in (k, v))
            keys = torch.cat([before.keys[:, :, :-1], k.to(before.keys.dtype)], 2)
            values = torch.cat([before.values[:, :, :-1], v.to(before.values.dtype)], 2)
            ranks = torch.cat([ranks, new], 1)
            state = self.write(k, v, before, valid=valid)
        row, column = rank[:, :, None], ranks[:, None]
        allowed = within(row, column, self.window, self.shared) & (column >= 0) & (column <= row)
        added: Bias | None = None
        if bias is not None:
            block = self._block(bias, before, count, ranks, even=before.even and valid is None)
            added = lambda queries, keys: block[:, :, queries, keys]  # noqa: E731
        return attend(q, keys, values, allowed=allowed[:, None], bias=added, beta=self.beta), state

    def _block(
        self, bias: Bias, before: WindowState, count: int, ranks: Tensor, *, even: bool
    ) -> Float[Tensor, "#B #H T m"]:
        """The bias of the new places to the ranks kept, asked for the shared ones and for the window before them."""
        lengths = [before.filled] if even else before.length.tolist()
        blocks = []
        for b, n in enumerate(lengths):
            low, queries = max(0, n - self.window + 1), slice(n, n + count)
            near = bias(queries, slice(low, n + count))
            whole, index = near, (ranks[b] - low).clamp(0, count + n - low - 1)
            if self.shared and low:
                first = bias(queries, slice(0, min(self.shared, n)))
                whole = torch.cat([first, near], -1)
                index = torch.where(ranks[b] < min(self.shared, n), ranks[b].clamp(min=0), index + first.shape[-1])
            whole = whole if even or len(whole) == 1 else whole[b : b + 1]
            blocks.append(whole[..., index])
        return blocks[0] if len(blocks) == 1 else torch.cat([x.expand(1, *x.shape[1:]) for x in blocks])
