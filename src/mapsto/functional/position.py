"""Where an item is, as numbers a model can use: waves of its place, rotations by its place, logits by distance."""

import functools
import math
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mapsto.errors import ConfigError
from mapsto.functional.attention import HUGE

__all__ = ["alibi", "bucket", "gathered", "grid", "rotate", "sinusoidal", "skew", "skewed"]


def grid(height: int, width: int, device: torch.device) -> Float[Tensor, "1 N 2"]:
    """(row, column) of every place of a grid, row by row. Not to be written to: it is made once for all.

    Example:
        >>> grid(1, 3, torch.device("cpu")).tolist()
        [[[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]]
    """
    return _grid.__wrapped__(height, width, device) if torch.compiler.is_compiling() else _grid(height, width, device)


@functools.lru_cache(64)
@torch.inference_mode(mode=False)
def _grid(height: int, width: int, device: torch.device) -> Tensor:
    row, column = (torch.arange(n, device=device, dtype=torch.float32) for n in (height, width))
    return torch.cartesian_prod(row, column).view(1, height * width, 2)


def sinusoidal(places: Float[Tensor, "... P"], dim: int, theta: float = 10000.0) -> Float[Tensor, "... D"]:
    """PE(p, 2i) = sin(p / θ^(2i/D)), PE(p, 2i+1) = cos(p / θ^(2i/D)), at any real place p.

    P coordinates share the width equally: the first D/P entries tell the first coordinate, and so on. Computed in
    float32 (float64 from float64 places), whatever the model's type.

    Args:
        places: where the items are: ranks, seconds, (row, column).
        dim: D, a multiple of 2 P.
        theta: the longest wave is 2πθ places long; over a range far below it most waves hardly move.

    Raises:
        ConfigError: D cannot be shared by sines and cosines of P coordinates.

    Example:
        >>> sinusoidal(torch.tensor([[0.0], [1.0]]), 2)
        tensor([[0.0000, 1.0000],
                [0.8415, 0.5403]])

    Reference: Vaswani et al., Attention is all you need, 2017, section 3.5.
    """
    angles = _angles(places, dim, theta, "sinusoidal positions")
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def rotate(
    x: Float[Tensor, "B H N K"], places: Float[Tensor, "B N P"], theta: float = 10000.0
) -> Float[Tensor, "B H N K"]:
    """Rotate the pairs (x_2i, x_2i+1) by the angle p θ^(-2i/K): q·k then depends on the difference of places only.

    P coordinates share the width equally: the first K/P entries are turned by the first coordinate, and so on, each
    with θ^(-2iP/K). The angles are computed in float32 (float64 from float64 places): beyond places of about 10^5 the
    fastest of them lose digits.

    Args:
        x: queries or keys.
        places: where the items are.
        theta: the base of the wavelengths, which reach from 2π to nearly 2π θ.

    Raises:
        ConfigError: K is no multiple of 2 P.

    Reference: Su et al., RoFormer, 2021.
    """
    angles = _angles(places, x.shape[-1], theta, "rotary positions")[:, None]
    sin, cos = angles.sin(), angles.cos()
    even, odd = x.to(torch.promote_types(x.dtype, angles.dtype)).unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return turned.to(x.dtype)


def alibi(places_q: Float[Tensor, "B l P"], places_k: Float[Tensor, "B m P"], heads: int) -> Float[Tensor, "B H l m"]:
    """bias_h = -2^(-8h/H) · |p_q - p_k| for h = 1 … H, at any real places.

    Several coordinates add their distances up: |p - p'| = Σ_i |p_i - p'_i|, steps along the axes of a grid.

    Args:
        places_q: where the queries are.
        places_k: where the keys are.
        heads: H.

    Example:
        >>> places = torch.tensor([[[0.0], [1.0], [3.0]]])
        >>> alibi(places[:, 2:], places, heads=2)[0, :, 0]
        tensor([[-0.1875, -0.1250, -0.0000],
                [-0.0117, -0.0078, -0.0000]])

    Reference: Press et al., Train short, test long, 2022.
    """
    slope = torch.exp2(torch.arange(1, heads + 1, device=places_q.device, dtype=places_q.dtype) * (-8 / heads))
    axes = zip(places_q.unbind(-1), places_k.unbind(-1), strict=True)  # one by one: never a tensor of B l m P
    distance = reduce(torch.add, [(a[:, :, None] - b[:, None]).abs() for a, b in axes])
    return -slope[:, None, None] * distance[:, None]


def bucket(
    offset: Float[Tensor, "..."], count: int = 32, longest: int = 128, *, causal: bool = False
) -> Int[Tensor, "..."]:
    """The number of the bucket of an offset p_k - p_q: one a distance if near, wider and wider ones if far.

    Of C buckets (half of ``count`` for each direction; all of them for the past, if causal) the first E = C/2 hold one
    distance n each; bucket E + j begins at E (longest / E)^(j / (C - E)), and the last one has no end. If not causal,
    keys after the query have the second half of the buckets. If causal, they are as near as the query itself. Offsets
    are rounded to whole ones. The bounds are found in whole numbers, so that no rounding moves one.

    Args:
        offset: p_k - p_q.
        count: how many buckets, 4 or more; even, if not causal.
        longest: the distance from which on all are one.
        causal: whether only keys before the query count.

    Raises:
        ConfigError: too few buckets, or a longest distance within those that have a bucket of their own.

    Example:
        >>> bucket(torch.tensor([-1.0, 0.0, 1.0, -20.0, -500.0]))
        tensor([ 1,  0, 17, 10, 15])

    Reference: Raffel et al., Exploring the limits of transfer learning, 2020 (T5).
    """
    side = count if causal else count // 2
    exact = side // 2
    if exact < 1 or (count % 2 and not causal):
        raise ConfigError(f"t5 positions: {count} buckets; expected {2 if causal else 'an even number, 4'} or more")
    if longest <= exact:
        raise ConfigError(f"t5 positions: longest={longest}; expected more than the {exact} near buckets of {count}")
    whole = offset.round()
    distance = (-whole).clamp(min=0) if causal else whole.abs()
    bounds = torch.tensor(_bounds(side, exact, longest), dtype=offset.dtype, device=offset.device)
    found = torch.bucketize(distance, bounds, right=True)
    return found if causal else found + side * (whole > 0)


def _bounds(side: int, exact: int, longest: int) -> list[int]:
    """The first whole distance of every bucket but bucket 0."""
    bounds = list(range(1, exact + 1))
    wide = side - exact
    for j in range(1, wide):
        n = max(bounds[-1], int(exact * (longest / exact) ** (j / wide)) - 1)
        while n**wide * exact**j < longest**j * exact**wide:
            n += 1
        bounds.append(n)
    return bounds


def gathered(
    q: Float[Tensor, "B H l K"],
    table: Float[Tensor, "H R K"],
    places_q: Float[Tensor, "B l 1"],
    places_k: Float[Tensor, "B m 1"],
) -> Float[Tensor, "B H l m"]:
    """bias_lm = q_l · E[p_m - p_l] / √K for real places: offsets are rounded, and clipped to the table's longest.

    Memory O(l · (m + R)) a head: the products with the whole table, then the one of each pair.

    Args:
        q: queries; one that is not finite counts as zeros, so that it harms no gradient but its own.
        table: E, the vectors of the offsets -r … r, so R = 2r + 1.
        places_q: where the queries are.
        places_k: where the keys are.

    Reference: Shaw et al., Self-attention with relative position representations, 2018.
    """
    product = _product(q, table)
    far = table.shape[1] // 2
    offset = (places_k.transpose(1, 2) - places_q).round().clamp(-far, far) + far
    return product.gather(-1, offset.long()[:, None].expand(*product.shape[:3], -1))


def skewed(
    q: Float[Tensor, "B H l K"], table: Float[Tensor, "H R K"], first: int, keys: int
) -> Float[Tensor, "B H l m"]:
    """:func:`gathered` where places are ranks: query i is at rank ``first`` + i after the first of m keys in a row.

    No index is made: only the offsets that occur are multiplied, and :func:`skew` puts them where they belong.
    Memory O((l + m) K) for the embeddings and O(l (l + m)) for the logits of a head, never l · m · K.

    Args:
        q: queries.
        table: E, of the offsets -r … r.
        first: rank of the first query minus rank of the first key.
        keys: m.

    Reference: Huang et al., Music Transformer, 2018.
    """
    queries, far = q.shape[2], table.shape[1] // 2
    low, count = -first - (queries - 1), queries + keys
    high = low + count - 1
    a, b = (min(max(o, -far), far) for o in (low, high))
    product = _product(q, table[:, a + far : b + far + 1])
    before, after = (min(max(n, 0), count - 1) for n in (-far - low, high - far))
    ends = [product[..., :1].expand(-1, -1, -1, before), product, product[..., -1:].expand(-1, -1, -1, after)]
    return skew(torch.cat(ends, -1), keys)


def skew(x: Float[Tensor, "... l w"], keys: int) -> Float[Tensor, "... l m"]:
    """y[i, j] = x[i, l - 1 - i + j], where w = l + m: what stands by offset comes to stand by key.

    Read one after the other, row i begins l - 1 - i later than it stands: one cut and one reshape do it, without
    an index. The last column of x is never read.

    Example:
        >>> skew(torch.tensor([[-1, 0, 1, 2, 9], [-1, 0, 1, 2, 9]]), 3)
        tensor([[ 0,  1,  2],
                [-1,  0,  1]])
    """
    queries, width = x.shape[-2:]
    row = x.flatten(-2)[..., queries - 1 : queries - 1 + queries * (width - 1)]
    return row.unflatten(-1, (queries, width - 1))[..., :keys]


def _product(q: Tensor, table: Tensor) -> Tensor:
    """Q Eᵀ / √K in float32 at least."""
    wide = torch.promote_types(q.dtype, torch.float32)
    clean = q.masked_fill(~(q.detach().abs() < HUGE), 0)
    return torch.einsum("BHlK,HRK->BHlR", clean.to(wide), table.to(wide)) * q.shape[-1] ** -0.5


def _angles(places: Tensor, dim: int, theta: float, what: str) -> Float[Tensor, "... D/2"]:
    """The angle of each pair of entries."""
    count = places.shape[-1]
    if dim % (2 * count):
        raise ConfigError(
            f"{what} of {count} coordinate{'s' * (count > 1)} need a width that is a multiple of {2 * count}, got {dim}"
        )
    if places.dtype not in (torch.float32, torch.float64):
        places = places.float()
    pairs = dim // (2 * count)
    wave = torch.exp(
        torch.arange(pairs, device=places.device, dtype=torch.float64) * (-math.log(theta) / max(1, pairs))
    )
    return (places[..., None] * wave.to(places.dtype)).flatten(-2)
