"""Distributions made sharper or cut short before a token is drawn from them, and the draw.

All take log-probabilities log p(v), −∞ for what can never be, and give log-probabilities that add up to one again. Each
keeps at least the likeliest token; of equally likely ones the lowest id goes first, so that nothing depends on chance.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["draw", "likeliest", "min_p", "nucleus", "temper", "top_k"]

SHORT = 256
"""Tokens looked at first for the nucleus of a large vocabulary; all are sorted where these have too little mass."""


def temper(log_p: Float[Tensor, "... V"], temperature: float) -> Float[Tensor, "... V"]:
    """p'(v) ∝ p(v)^(1/T); T = 0 is the limit T → 0, the likeliest token alone (the lowest id of equal ones).

    Example:
        >>> temper(torch.tensor([0.25, 0.75]).log(), 0.5).exp()
        tensor([0.1000, 0.9000])
    """
    if temperature == 0:
        return top_k(log_p, 1)
    # Below the largest, so that dividing by a tiny T overflows to −∞ and never to NaN.
    below = log_p - log_p.amax(-1, keepdim=True)
    return torch.log_softmax(below / temperature, -1)


def top_k(log_p: Float[Tensor, "... V"], k: int) -> Float[Tensor, "... V"]:
    """p'(v) ∝ p(v) for the k likeliest tokens, else 0.

    Reference: Fan et al., Hierarchical neural story generation, 2018.
    """
    if k >= log_p.shape[-1]:
        return log_p
    return _kept(log_p, torch.zeros_like(log_p, dtype=torch.bool).scatter(-1, likeliest(log_p, k)[1], True))


def nucleus(log_p: Float[Tensor, "... V"], mass: float) -> Float[Tensor, "... V"]:
    """p'(v) ∝ p(v) for the fewest likeliest tokens whose probabilities add up to at least ``mass``, else 0.

    Token v stays iff the likelier ones have less than ``mass`` together. Time O(V) where few tokens have the mass, else
    O(V log V).

    Example:
        >>> nucleus(torch.tensor([0.2, 0.5, 0.3]).log(), 0.6).exp()
        tensor([0.0000, 0.6250, 0.3750])

    Reference: Holtzman et al., The curious case of neural text degeneration, 2020.
    """
    if mass >= 1:
        return log_p
    size = log_p.shape[-1]
    for count in (SHORT, size) if size > 16 * SHORT else (size,):
        falling, order = likeliest(log_p, count)
        sums = falling.exp().cumsum(-1)
        if bool((sums[..., -1] >= mass).all()):
            break
    stays = F.pad(sums[..., :-1], (1, 0)) < mass
    stays[..., 0] = True
    return _kept(log_p, torch.zeros_like(log_p, dtype=torch.bool).scatter(-1, order, stays))


def min_p(log_p: Float[Tensor, "... V"], ratio: float) -> Float[Tensor, "... V"]:
    """p'(v) ∝ p(v) where p(v) >= ratio · max_w p(w), else 0.

    Reference: Nguyen et al., Turning up the heat: min-p sampling for creative and coherent LLM outputs, 2024.
    """
    if ratio == 0:
        return log_p
    return _kept(log_p, log_p >= log_p.amax(-1, keepdim=True) + math.log(ratio))


def likeliest(x: Float[Tensor, "... V"], k: int) -> tuple[Float[Tensor, "... k"], Int[Tensor, "... k"]]:
    """The k largest numbers, falling, and where they stand; of equal ones the first (``torch.topk`` leaves it open)."""
    size = x.shape[-1]
    if k >= size:
        return x.sort(dim=-1, descending=True, stable=True)
    values, index = x.topk(k)
    # Only what equals the last may be the wrong choice: the first places that do, in their order.
    least = values[..., -1:]
    last = torch.arange(size, 0, -1, dtype=torch.int32, device=x.device)
    tied = size - torch.where(x == least, last, 0).topk(k).values.long()
    rank = torch.arange(k, device=x.device) - (values > least).sum(-1, keepdim=True)
    index = torch.where(values > least, index, tied.gather(-1, rank.clamp(min=0)))
    index = index.clamp(max=size - 1).sort(-1).values  # NaN equals nothing
    values, order = x.gather(-1, index).sort(dim=-1, descending=True, stable=True)
    return values, index.gather(-1, order)


def draw(log_p: Float[Tensor, "... V"], uniform: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The first v with p(0) + … + p(v) > u, for u in [0, 1): distributed as p if u is uniform. Never a v with p(v) = 0.

    Example:
        >>> draw(torch.tensor([0.5, 0.0, 0.5]).log().expand(2, 3), torch.tensor([0.4, 0.6]))
        tensor([0, 2])
    """
    p = log_p.exp()
    # Only where p > 0, and below the last sum even after rounding: on some devices running sums may step back.
    sums = p.cumsum(-1).masked_fill(p <= 0, -1)
    most = sums.amax(-1)
    u = torch.minimum(uniform.to(most) * most, torch.nextafter(most, torch.zeros_like(most)))
    return (sums > u[..., None]).to(torch.uint8).argmax(-1)


def _kept(log_p: Tensor, stays: Tensor) -> Tensor:
    return torch.log_softmax(log_p.masked_fill(~stays, -torch.inf), -1)
