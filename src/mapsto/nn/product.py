"""Products of few rows with the same weights again and again, as decoding asks for them."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

__all__ = ["Products"]

MOST = 32
"""Rows up to which packed weights are worth their room: beyond, the plain product reaches the same speed."""

SMALL = 1 << 15
"""Entries of a weight that is not worth packing: calling oneDNN takes 30 µs."""

PAYS = 16
"""Steps from which on packing pays: it takes as long as two to five of them."""


class Products:
    """x Wᵀ + b, with weights packed for oneDNN when they are first met, while x has few rows.

    With 2 to 32 rows of float32 this took 0.6 to 0.8 of the time of the plain product (Zen 3, AVX2). A single row waits
    for the memory only, which MKL reaches except with AVX-512 on AMD. Where torch has no such product, where it is not
    as exact as the plain one (CPUs with AMX, if told to round), and for all other types and devices: the plain product.

    A packed weight is never stale: it is kept with the version of what it was made of, which every change in place
    counts up, and only as long as this object, which belongs to one draft.

    Args:
        steps: how many to expect.

    Memory: a copy of each weight.
    """

    def __init__(self, steps: int):
        self._least = _fewest() if steps >= PAYS else MOST + 1
        self._packed: dict[Any, tuple[Tensor, int, Tensor]] = {}

    def __call__(
        self, x: Float[Tensor, "*N K"], weight: Float[Tensor, "M K"], bias: Float[Tensor, " M"] | None
    ) -> Float[Tensor, "*N M"]:
        """The product. Gradients are not promised."""
        rows = x.numel() // x.shape[-1]
        if not self._least <= rows <= MOST or weight.numel() < SMALL or not _suits(x, weight):
            return F.linear(x, weight, bias)
        key = (weight.data_ptr(), weight.shape, weight.stride())
        made = self._packed.get(key)
        if made is None or made[1] != weight._version:
            source = weight.detach()  # kept, so that nothing else can come to stand where it is
            made = self._packed[key] = (source, weight._version, torch.ops.mkldnn._reorder_linear_weight(source, rows))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, made[2], bias, "none", [], "")
        return out


def _suits(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not weight.is_inference()  # has no version
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


@functools.cache
def _fewest() -> int:
    """Rows from which on packed weights are faster here; more than any if they cannot be used."""
    try:
        x, weight = torch.linspace(-1, 1, 128).view(2, 64).sin(), torch.linspace(-9, 9, 4096).view(64, 64).cos()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2)
        found = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):  # private to torch: another version may have none, or other ones
        return MOST + 1
    exact = torch.allclose(found.double(), x.double() @ weight.double().T, rtol=0, atol=1e-4)
    if not exact:
        return MOST + 1
    return 1 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 2
