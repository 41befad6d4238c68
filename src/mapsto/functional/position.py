"""Where an item is, as numbers a model can use: waves of its place, and rotations by its place."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from mapsto.errors import ConfigError

__all__ = ["rotate", "sinusoidal"]


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
