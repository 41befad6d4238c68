"""A kind of attention on trial: how it is made and asked."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mapsto.attention import Attention
from mapsto.stream import stream
from mapsto.testing.silence import silent
from mapsto.testing.trial import draw, prefix

__all__ = ["N", "Seen", "Subject", "alibi", "differentiate"]

N = 13
"""Items a row, mostly."""

Seen = dict[str, Any]
"""The arguments that hide or weigh keys."""


def alibi(queries: slice, keys: slice) -> Float[Tensor, "1 1 l m"]:
    """A bias by distance."""
    distance = torch.arange(queries.start, queries.stop)[:, None] - torch.arange(keys.start, keys.stop)
    return (-0.3 * distance.abs())[None, None]


def differentiate(
    attention: Callable[..., Tensor], x: list[Tensor], seen: Seen, upstream: Tensor | None = None
) -> list[Tensor]:
    """The outputs, and the gradients of q, k, v (and of decay)."""
    x = [t.detach().clone().requires_grad_() for t in x]
    if "decay" in seen:
        seen = {**seen, "decay": seen["decay"].detach().clone().requires_grad_()}
        x.append(seen["decay"])
    out = attention(*x[:3], **seen)
    if not out.requires_grad:  # nothing to see, so nothing to learn
        return [out, *(torch.zeros_like(t) for t in x)]
    upstream = draw(*out.shape, seed=9, dtype=out.dtype) if upstream is None else upstream
    return [out, *torch.autograd.grad(out, x, upstream, materialize_grads=True)]


@dataclass
class Subject:
    """Makes layers of the kind, and asks them.

    Attributes:
        make: gives an unbound kind.
        heads: H.
        width: K and V.
        bound: layers made so far, one a type.
    """

    make: Callable[[], Attention]
    heads: int
    width: int
    bound: dict[torch.dtype, Attention] = field(default_factory=dict)

    def layer(self, dtype: torch.dtype, mode: str = "eval") -> Attention:
        """The one layer of a type."""
        if dtype not in self.bound:
            self.bound[dtype] = self.fresh().to(dtype)
        return self.bound[dtype].train(mode == "train")

    def fresh(self, seed: int = 0) -> Attention:
        """Another layer, its random modules at rest; the same seed gives the same one."""
        return silent(self.make().bind(self.heads, self.width, stream(seed, "law bind")))

    def qkv(
        self, batch: int, queries: int, keys: int | None = None, *, dtype: torch.dtype = torch.float64, seed: int = 1
    ) -> list[Tensor]:
        """Queries, keys and values."""
        keys = queries if keys is None else keys
        sizes = (queries, keys, keys)
        return [draw(batch, self.heads, n, self.width, seed=seed + i, dtype=dtype) for i, n in enumerate(sizes)]

    def answer(
        self, dtype: torch.dtype, mode: str, x: list[Tensor], seen: Seen, upstream: Tensor | None = None
    ) -> list[Tensor]:
        """The outputs; in train mode also the gradients of q, k, v (and of decay)."""
        layer = self.layer(dtype, mode)
        if mode == "eval":
            with torch.no_grad():
                return [layer(*x, **seen)]
        return differentiate(layer, x, seen, upstream)

    def cases(self, length: int, dtype: torch.dtype) -> dict[str, Seen]:
        """Every way of hiding or weighing keys that the kind honours, for three rows of L = M."""
        honours = self.make().honours
        valid = prefix([length, length // 2 + 1, 0], length)
        scattered = torch.rand(3, length, generator=stream(6, "law")) > 0.5
        found: dict[str, Seen] = {
            "plain": {},
            "valid": {"valid": valid},
            "scattered valid": {"valid": scattered},
            "causal": {"causal": True},
            "causal valid": {"causal": True, "valid": valid},
        }
        if "segment" in honours:
            segment = torch.arange(length).div(max(2, length // 3), rounding_mode="floor").expand(3, length)
            found["segment"] = {"segment": segment, "causal": True, "valid": valid}
        if "allowed" in honours:
            allowed = torch.rand(3, 1, length, length, generator=stream(4, "law")) > 0.4
            allowed[0, 0, min(3, length - 1)] = False
            found["allowed"] = {"allowed": allowed, "valid": valid}
        if "bias" in honours:
            found["bias"] = {"bias": lambda l, m: alibi(l, m).to(dtype), "valid": valid}
        if "decay" in honours:
            decay = -draw(3, self.heads, length, seed=5, dtype=dtype).abs()
            found["decay"] = {"decay": decay, "causal": True, "valid": valid}
        return found
