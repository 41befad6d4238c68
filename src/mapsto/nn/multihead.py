"""Several heads of any kind of attention side by side, on padded or packed collections."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mapsto.attention import Attention, Bias
from mapsto.attention.softmax import SoftmaxAttention
from mapsto.collection import Collection, Packed
from mapsto.errors import ConfigError
from mapsto.functional.state import State
from mapsto.nn.draft import Now
from mapsto.nn.position import Position
from mapsto.nn.product import Products

__all__ = ["MultiheadAttention"]


class MultiheadAttention(nn.Module):
    """H heads of width D/H, concatenated, and one output projection.

    q_h = W_q,h x + b_q,h and k_h, v_h likewise from the memory (x itself, if none is given);
    out = W_o [attention(q_1, k_1, v_1) … attention(q_H, k_H, v_H)] + b_o.
    W_q, W_k, W_v are stacked in one (3D, D) weight.

    Args:
        dim: D, a multiple of ``heads``.
        heads: H.
        attention: an unbound kind; exact softmax attention by default.
        normalise: queries and keys of each head are scaled to one length, and the logits become τ_h cos(q, k) with a
            learned temperature τ_h > 0 a head (starting at √K, or what the kind of attention can carry).
        bias: with bias vectors.

    Reference: Vaswani et al., Attention is all you need, 2017; normalisation: Henry et al., 2020.
    """

    def __init__(
        self, dim: int, heads: int, *, attention: Attention | None = None, normalise: bool = False, bias: bool = True
    ):
        super().__init__()
        if heads < 1 or dim % heads:
            raise ConfigError(f"model.dim={dim} is no multiple of model.heads={heads}")
        self.dim, self.heads = dim, heads
        self.attention = (attention or SoftmaxAttention()).bind(heads, dim // heads)
        self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.out = nn.Linear(dim, dim, bias=bias)
        start = math.log(self.attention.sharpness(dim // heads))
        self.log_temperature = nn.Parameter(torch.full((heads,), start)) if normalise else None

    def project(
        self, x: Float[Tensor, "... N D"], memory: Float[Tensor, "... M D"] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, not yet cut into heads."""
        if memory is None:
            q, k, v = self.qkv(x).chunk(3, -1)
            return q, k, v
        weight, bias, dim = self.qkv.weight, self.qkv.bias, self.dim
        q = F.linear(x, weight[:dim], None if bias is None else bias[:dim])
        k, v = F.linear(memory, weight[dim:], None if bias is None else bias[dim:]).chunk(2, -1)
        return q, k, v

    def forward(
        self,
        x: Collection | Packed,
        memory: Collection | Packed | None = None,
        *,
        causal: bool = False,
        position: Position | None = None,
        segment: Int[Tensor, "B M"] | None = None,
        allowed: Bool[Tensor, "B H L M"] | None = None,
        decay: Float[Tensor, "B H M"] | None = None,
    ) -> Tensor:
        """Self-attention, or cross-attention into a memory; gives new items, of the shape of ``x.items``."""
        seen: dict[str, Any] = {"causal": causal, "segment": segment, "allowed": allowed, "decay": decay}
        if isinstance(memory, Packed):
            memory = memory.unpack()
        if isinstance(x, Collection):
            q, k, v = self.project(x.items, None if memory is None else memory.items)
            return self.out(self._attend(q, k, v, x, memory or x, position, seen))
        q, k, v = self.project(x.items, None if memory is None else memory.items)
        answers = []
        for rows, index, valid in x.plan:
            group = Collection(x.items.new_empty(*index.shape, 0), valid, None if x.places is None else x.places[index])
            if memory is None:
                keys, values, source = k[index], v[index], group
            else:
                keys, values, source = k[rows], v[rows], memory[rows]
            count = index.shape[1]
            there = count if memory is None else keys.shape[1]
            cut: dict[str, Callable[[Tensor], Tensor]] = {
                "decay": lambda t: t[rows, :, :there],  # noqa: B023
                "segment": lambda t: t[rows, :there],  # noqa: B023
                "allowed": lambda t: (t[rows] if len(t) > 1 else t)[..., :count, :there],  # noqa: B023
            }
            part = {n: None if seen[n] is None else take(seen[n]) for n, take in cut.items()}
            answers.append(self._attend(q[index], keys, values, group, source, position, {**part, "causal": causal}))
        return self.out(x.scatter(answers))

    def start(self, like: Tensor, capacity: int, *, batch: int) -> State:
        """An empty state of self-attention for up to ``capacity`` items a row, of the type and device of ``like``."""
        key = self.dim // self.heads
        state: State = self.attention.start(like, capacity, batch=batch, heads=self.heads, key=key, value=key)
        return state

    def step(self, items: Float[Tensor, "B T D"], state: State, now: Now) -> tuple[Float[Tensor, "B T D"], State]:
        """Causal self-attention of T more items a row: what :meth:`forward` would answer at their places.

        For decoding, not for learning. Consumes the state.

        Args:
            items: the new items, as this layer sees them.
            state: from :meth:`start`, or the last step.
            now: where they are, and what else all layers know of them.
        """
        parts = now.product(items, self.qkv.weight, self.qkv.bias).view(*items.shape[:2], 3, self.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        if self.log_temperature is not None:
            q, k = self._normalise(q), self._normalise(k)
        bias: Bias | None = None
        if (places := now.x.places) is not None:
            q, k = now.position.rotate(q, places), now.position.rotate(k, places)
            bias = None if now.known is None else now.position.between(now.x, now.known, q, first=now.first)
        answer, state = self.attention.step(q, k, v, state, valid=now.valid, bias=bias)
        return now.product(answer.transpose(1, 2).flatten(2), self.out.weight, self.out.bias), state

    def memorise(self, memory: Collection) -> State:
        """A memory as the state that :meth:`ask` reads: its keys and values, made once for all steps."""
        keys = memory.items.shape[1]
        state = self.start(memory.items, keys, batch=len(memory.valid))
        _, k, v = self._heads(*self.project(memory.items[:, :0], memory.items))
        state = self.attention.write(k, v, state, valid=memory.mask)
        return state

    def ask(self, x: Float[Tensor, "B L D"], state: State, product: Products) -> Float[Tensor, "B L D"]:
        """Cross-attention into what was memorised."""
        weight, bias = self.qkv.weight[: self.dim], None if self.qkv.bias is None else self.qkv.bias[: self.dim]
        (q,) = self._heads(product(x, weight, bias))
        return product(self.attention.read(q, state).transpose(1, 2).flatten(2), self.out.weight, self.out.bias)

    def weights(
        self,
        x: Collection,
        memory: Collection | None = None,
        *,
        causal: bool = False,
        position: Position | None = None,
    ) -> Float[Tensor, "B H L M"]:
        """What :meth:`forward` weighs the values of the M items by, for every head and query: a picture's content.

        It answers with one-hot values, so it holds for every kind, those that never make a weight included. O(L·M²).
        """
        source = memory or x
        q, k, _ = self.project(x.items, source.items)
        keys = source.items.shape[1]
        places = torch.eye(keys, dtype=k.dtype, device=k.device).repeat(1, self.heads).expand(len(k), -1, -1)
        seen = {"causal": causal}
        return self._attend(q, k, places, x, source, position, seen).unflatten(-1, (self.heads, keys)).transpose(1, 2)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, x: Collection, memory: Collection, position: Position | None, seen: Any
    ) -> Tensor:
        q, k, v = self._heads(q, k, v)
        bias: Bias | None = None
        if position is not None and x.places is not None and memory.places is not None:
            q, k = position.rotate(q, x.places), position.rotate(k, memory.places)
            bias = position.between(x, memory, q)
        answer = self.attention(q, k, v, valid=memory.mask, bias=bias, **seen)
        return answer.transpose(1, 2).flatten(2)

    def _heads(self, *parts: Float[Tensor, "B N D"]) -> tuple[Float[Tensor, "B H N K"], ...]:
        """Queries, keys and values (or the first ones of these) cut into heads; queries and keys normalised, if asked."""
        cut = [t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts]
        if self.log_temperature is not None:
            cut[:2] = [self._normalise(t) for t in cut[:2]]
        return tuple(cut)

    def _normalise(self, x: Float[Tensor, "B H N K"]) -> Float[Tensor, "B H N K"]:
        # Each of q and k gets length √τ · K^¼, so that β q·k = τ cos with β = 1/√K. Norms are taken in float32 at least.
        assert self.log_temperature is not None
        wide = x if x.dtype == torch.float64 else x.float()
        length = torch.exp(0.5 * self.log_temperature) * x.shape[-1] ** 0.25
        unit = wide * torch.rsqrt((wide * wide).sum(-1, keepdim=True) + 1e-12)
        return (unit * length[:, None, None]).to(x.dtype)
