"""How a head mixes values: an open set. A kind is one file here; ``softmax.py`` holds ``SoftmaxAttention``.

A kind as constructed holds settings only. :meth:`Attention.bind` gives a fresh module for one layer, with its own
buffers; an unbound kind called directly binds itself, so notebooks and tests need no layer.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mapsto import kinds
from mapsto.errors import ConfigError
from mapsto.functional.attention import weighted
from mapsto.functional.block import Bias
from mapsto.functional.state import State

__all__ = ["Attention", "Bias", "State"]


class Attention(nn.Module, ABC):
    """The contract of every kind of attention.

    A key m is seen by a query l iff ``valid[b, m]``, and ``segment[b, l] == segment[b, m]``, and
    ``allowed[b, h, l, m]``, and ``m <= l`` if causal, and the kind's own band lets it. A query that sees nothing
    gets zeros. All arguments that hide keys are True where a key *may be seen*.

    Attributes:
        honours: which of ``allowed``, ``bias``, ``decay``, ``segment`` the kind can honour. What it cannot is refused
            when a layer is built, never dropped.
        self_only: why the kind answers only queries that are its keys' own items, and refuses cross-attention and
            :meth:`read`; empty if it can do both.
    """

    honours: ClassVar[frozenset[str]] = frozenset()
    self_only: ClassVar[str] = ""

    def bind(self, heads: int, key: int, stream: torch.Generator | None = None) -> Self:
        """A fresh module of this kind and these settings for a layer of ``heads`` heads with ``key``-wide keys."""
        return type(self)(**self.settings())

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments, to make the same kind again."""
        return {}

    def renew(self, seed: int, layer: int, step: int) -> None:
        """Called before each training step: draw anew what a kind draws from time to time.

        A pure function of its arguments, so that ranks and resumed runs cannot differ. Nothing is drawn in eval.
        """

    def refuse(self, **given: Any) -> None:
        """Say no to what was given and cannot be honoured.

        Raises:
            ConfigError: names it, and the kinds that honour it.
        """
        for name, value in given.items():
            if value is not None and name not in self.honours:
                kind = type(self).__name__.removesuffix("Attention").lower()
                raise ConfigError(f"{kind} attention cannot honour {name}.   Use attention=softmax, which can")

    def sharpness(self, key: int) -> float:
        """The τ that the logits τ cos(q, k) of a layer with normalised queries and keys start from: √K."""
        return math.sqrt(key)

    @abstractmethod
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
        """Answer every query.

        Args:
            q: queries.
            k: keys.
            v: values.
            valid: which keys exist.
            segment: which packed document an item is of (then L == M).
            allowed: which keys a query may look at.
            causal: query l sees keys m <= l (then L == M).
            bias: added to the logits, block by block.
            decay: log of the forgetting γ_m in (0, 1], causal only: key m is weighed by Π_{m < j <= l} γ_j.
        """

    @abstractmethod
    def start(self, like: Tensor, capacity: int, *, batch: int, heads: int, key: int, value: int) -> Any:
        """An empty state for up to ``capacity`` places, of the type and device of ``like``."""

    @abstractmethod
    def step(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: Any,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        bias: Bias | None = None,
    ) -> tuple[Float[Tensor, "B H T V"], Any]:
        """Write T >= 1 new places (the valid ones, which come first in each row) and answer them causally.

        For decoding, not for learning: states are written in place, and gradients are not promised. Equals
        ``forward(causal=True)`` for any way of cutting a sequence into pieces. Consumes the state. ``bias``
        is asked for ranks counted from the start of each row's cache.
        """

    @abstractmethod
    def write(
        self,
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T V"],
        state: Any,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
    ) -> Any:
        """Write T places without asking anything: how a memory for :meth:`read` is filled. Consumes the state."""

    @abstractmethod
    def read(self, q: Float[Tensor, "B H L K"], state: Any) -> Float[Tensor, "B H L V"]:
        """Answer queries from all that was written; writes nothing (cross-attention, memories)."""

    def weights(
        self, q: Float[Tensor, "B H L K"], k: Float[Tensor, "B H M K"], **seen: Any
    ) -> Float[Tensor, "B H L M"]:
        """The weight of every key for every query: what :meth:`forward` answers when the values are one-hot places.

        Takes the same arguments as :meth:`forward`, and works for kinds that never make a weight.
        """
        keys = k.shape[2]
        places = torch.eye(keys, dtype=q.dtype, device=q.device).expand(*k.shape[:3], keys)
        return self(q, k, places, **seen)

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
        """What the kind means, written out over all L × M pairs: what the laws compare :meth:`forward` with.

        By default out_l = Σ_m W_lm s_lm v_m / Σ_m W_lm s_lm, every step rounded to the type of v, where W are
        :meth:`weights` in float64 when nothing is hidden, and s is 1 or 0 for what may be seen times e^extra. A kind
        whose weights depend on what is hidden (a band of ranks, a choice) overrides it.

        Args:
            q: queries.
            k: keys.
            v: values.
            seen: which keys the arguments of :meth:`forward` let a query see; the kind's own band is its own affair.
            extra: what is added to the logits, in float64: bias, and the decays between key and query.
            valid: which keys exist, for ranks.
        """
        return weighted((self.weights(q.double(), k.double()) * extra.exp() * seen).to(v.dtype), v)


__getattr__ = kinds.lazy("attention")
