"""Exact attention: every key a query may see is weighed by the exponential of their product."""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils import _pytree

from mapsto.attention import Attention, Bias, State
from mapsto.errors import ConfigError
from mapsto.functional.attention import attend

__all__ = ["SoftmaxAttention", "SoftmaxState"]


@dataclass(frozen=True)
class SoftmaxState(State):
    """The keys and values written so far, in room kept for all that are to come.

    Attributes:
        keys: (B, H, C + 1, K): what is written, then zeros. The last place takes what is not valid, and is never read.
        values: (B, H, C + 1, V) likewise.
        length: how many places of each row are written.
        filled: the longest a row can be by now. A Python number, so that no step waits for the device.
        even: whether all rows are ``filled`` long, so that nothing needs a mask.
    """

    keys: Float[Tensor, "B H C K"]
    values: Float[Tensor, "B H C V"]
    length: Int[Tensor, " B"]
    filled: int = 0
    even: bool = True

    @property
    def capacity(self) -> int:
        """C, the most places a row can have."""
        return self.keys.shape[2] - 1

    def select(self, rows: Int[Tensor, " R"]) -> "SoftmaxState":
        """The state of some rows, in a new order; a row may be taken several times."""
        return SoftmaxState(self.keys[rows], self.values[rows], self.length[rows], self.filled, self.even)


_pytree.register_pytree_node(
    SoftmaxState,
    lambda s: ([s.keys, s.values, s.length], (s.filled, s.even)),
    lambda tensors, rest: SoftmaxState(*tensors, *cast(Any, rest)),
    serialized_type_name="mapsto.SoftmaxState",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
)


class SoftmaxAttention(Attention):
    """Out_l = Σ_m softargmax_m(β q_l·k_m + bias_lm + Σ_{m<j<=l} decay_j) v_m over the keys that l may see.

    Time O(L·M), memory O(L + M) beside blocks; a step costs O(T · length). Honours every argument of the contract.

    Args:
        beta: inverse temperature; 1/√K by default. Towards ∞ it becomes hard attention, 0 is the mean.

    Example:
        >>> q = k = torch.eye(2)[None, None]
        >>> SoftmaxAttention(beta=100.0)(q, k, torch.tensor([[[[3.0], [5.0]]]])).flatten()
        tensor([3., 5.])

    Reference: Vaswani et al., Attention is all you need, 2017.
    """

    honours: ClassVar[frozenset[str]] = frozenset({"allowed", "bias", "decay", "segment"})

    def __init__(self, beta: float | None = None):
        super().__init__()
        if beta is not None and not 0 <= beta < float("inf"):
            raise ConfigError(f"attention.beta={beta}: expected a finite number, 0 or more. Leave it out for 1/√K")
        self.beta = beta

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"beta": self.beta}

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
        """Answer every query; see :func:`mapsto.functional.attention.attend`."""
        seen: dict[str, Any] = {"valid": valid, "segment": segment, "allowed": allowed, "bias": bias, "decay": decay}
        return attend(q, k, v, causal=causal, beta=self.beta, **seen)

    def start(self, like: Tensor, capacity: int, *, batch: int, heads: int, key: int, value: int) -> SoftmaxState:
        """An empty cache for up to ``capacity`` places a row."""
        if capacity < 0:
            raise ConfigError(f"attention: a cache of {capacity} places; expected 0 or more")
        return SoftmaxState(
            like.new_zeros(batch, heads, capacity + 1, key),
            like.new_zeros(batch, heads, capacity + 1, value),
            torch.zeros(batch, dtype=torch.int64, device=like.device),
        )

    def write(
        self,
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: SoftmaxState,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
    ) -> SoftmaxState:
        """Write T places; what is not valid is left out. Consumes the state.

        Raises:
            ConfigError: a row would grow beyond the capacity.
        """
        places, filled = k.shape[2], state.filled
        even = state.even and valid is None
        added = valid.sum(1) if valid is not None else torch.full_like(state.length, places)
        length = state.length + added
        if filled + places > state.capacity:
            # Ragged pieces may be shorter than they look: only now is it worth waiting for the device.
            longest = int(length.max()) if len(length) else 0
            if longest > state.capacity:
                raise ConfigError(
                    f"attention: the cache holds {state.capacity} places a row, {int(state.length.max())} are written "
                    f"and {int(added.max())} more came. Start it with a capacity of at least {longest}"
                )
            filled = longest
        else:
            filled += places
        if even:
            state.keys[:, :, state.filled : filled] = k.to(state.keys.dtype)
            state.values[:, :, state.filled : filled] = v.to(state.values.dtype)
        else:
            target = state.length[:, None] + torch.arange(places, device=k.device)
            if valid is not None:
                target = torch.where(valid, target, state.capacity)
            row = torch.arange(len(target), device=k.device)[:, None]
            state.keys[row, :, target] = k.transpose(1, 2).to(state.keys.dtype)
            state.values[row, :, target] = v.transpose(1, 2).to(state.values.dtype)
        return SoftmaxState(state.keys, state.values, length, filled, even)

    def step(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: SoftmaxState,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        bias: Bias | None = None,
    ) -> tuple[Float[Tensor, "B H T V"], SoftmaxState]:
        """Write T new places and answer them causally, from all that is written up to each."""
        count, before = q.shape[2], state
        state = self.write(k, v, state, valid=valid)
        keys, values = state.keys[:, :, : state.filled], state.values[:, :, : state.filled]
        allowed, causal = None, state.even and before.filled == 0
        if not causal and not (state.even and count == 1):
            rank = before.length[:, None] + torch.arange(count, device=q.device)
            place = torch.arange(state.filled, device=q.device)
            allowed = place <= rank[:, None, :, None]
            if valid is not None:
                # A place that is not valid is not written: it sees what its row holds, and nobody uses its answer.
                allowed = allowed & (place < state.length[:, None, None, None])
        ranked = self._ranked(bias, before)
        out = attend(q, keys, values, allowed=allowed, causal=causal, bias=ranked, beta=self.beta)
        return out, state

    def read(self, q: Float[Tensor, "B H L K"], state: SoftmaxState) -> Float[Tensor, "B H L V"]:
        """Answer queries from all that was written."""
        keys, values = state.keys[:, :, : state.filled], state.values[:, :, : state.filled]
        valid = None
        if not state.even:
            valid = torch.arange(state.filled, device=q.device) < state.length[:, None]
        return attend(q, keys, values, valid=valid, beta=self.beta)

    @staticmethod
    def _ranked(bias: Bias | None, state: SoftmaxState) -> Bias | None:
        """The bias of the new places, whose ranks may differ from row to row."""
        if bias is None:
            return None
        if state.even:
            return lambda queries, keys: bias(slice(queries.start + state.filled, queries.stop + state.filled), keys)
        first = int(state.length.min()) if len(state.length) else 0
        last = int(state.length.max()) if len(state.length) else 0
        row = torch.arange(len(state.length), device=state.length.device)[:, None]

        def ranked(queries: slice, keys: slice) -> Tensor:
            block = bias(slice(first + queries.start, last + queries.stop), keys)
            block = block.expand(len(row), *block.shape[1:])
            place = torch.arange(queries.stop - queries.start, device=row.device)
            return block[row, :, state.length[:, None] - first + place].transpose(1, 2)

        return ranked
