"""Products of few rows with the same weights again and again, as decoding asks for them."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mapsto.process import has_avx512, slow_mkl

__all__ = ["Products"]

MOST = 32
"""Rows up to which other weights are worth their room: beyond, the plain product reaches the same speed."""

SMALL = 1 << 15
"""Entries of a weight that is left as it is: calling oneDNN takes 30 µs."""

TRIES = 3
"""Products of a weight until it is packed, so that no short prompt packs what is then unused."""

PARTS = 16
"""Parts that the weights of a single row are read in."""

PAYS = 16
"""Steps from which on it pays: packing takes as long as two to five of them."""


@dataclass
class _Made:
    source: Tensor  # kept, so that nothing else can come to stand where it is
    version: int = -1
    weight: Tensor | None = None
    tries: int = 0


class Products:
    """x Wᵀ + b for few rows, with weights packed for oneDNN once they are met again and again.

    With 2 to 32 rows of float32 this took 0.65 (4 rows) to 0.85 (16 rows) of the time of the plain product (Zen 3, AVX2);
    on Sapphire Rapids 0.85 (4 rows) to 0.65 (16 rows), but 1.2 with 2 rows.
    A single row waits for the memory only, and is packed where MKL is slow (:func:`mapsto.process.slow_mkl`). With
    Intel's AVX-512 its product is one of a matrix and a vector (0.89 of the time of the plain product, which packed
    weights take 1.4 times). Elsewhere, with several threads, its weights are read in parts, which threads share as they
    do not share the plain product of one row (0.69 of its time with two).
    Where torch has no such product, where it is not as exact as the plain one (CPUs with AMX, if told to round), and for
    all other types and devices: the plain product.

    A packed weight is never stale: it is kept with the version of what it was made of, which every change in place
    counts up, and only as long as this object, which belongs to one draft.

    Args:
        steps: how many to expect.

    Memory: a copy of each weight.
    """

    def __init__(self, steps: int):
        self._least = _fewest() if steps >= PAYS else MOST + 1
        self._known: dict[Any, _Made] = {}

    def __call__(
        self, x: Float[Tensor, "*N K"], weight: Float[Tensor, "M K"], bias: Float[Tensor, " M"] | None
    ) -> Float[Tensor, "*N M"]:
        """The product. Gradients are not promised."""
        rows = x.numel() // x.shape[-1]
        if rows > MOST or weight.numel() < SMALL or not _suits(x, weight):
            return F.linear(x, weight, bias)
        if rows == 1 < self._least:
            return _alone(x, weight, bias)
        if rows < self._least:
            return F.linear(x, weight, bias)
        key = (weight.data_ptr(), weight.shape, weight.stride())
        made = self._known.get(key)
        if made is None:
            made = self._known[key] = _Made(weight.detach())
        made.tries += 1
        if made.tries < TRIES:
            return F.linear(x, weight, bias)
        if made.weight is None or made.version != weight._version:
            made.version, made.weight = weight._version, _pack(made.source, rows)
        return _packed(x, made.weight, bias)


def _alone(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of one row."""
    if has_avx512():
        row = x.reshape(-1)
        out = torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)
        return out.view(x.shape[:-1] + out.shape)
    if torch.get_num_threads() > 1 and not weight.shape[0] % PARTS and weight.is_contiguous():
        return _parted(x, weight, bias)
    return F.linear(x, weight, bias)


def _parted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of one row: y_p = x W_pᵀ + b_p for each part p of the outputs."""
    row = x.reshape(1, 1, -1).expand(PARTS, -1, -1)
    parts = weight.view(PARTS, -1, weight.shape[1]).mT
    out = torch.bmm(row, parts) if bias is None else torch.baddbmm(bias.view(PARTS, 1, -1), row, parts)
    return out.view(*x.shape[:-1], weight.shape[0])


def _pack(weight: Tensor, rows: int) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return packed


def _packed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def _suits(x: Tensor, weight: Tensor) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and x.is_cpu
        and weight.is_cpu
        and not torch.is_grad_enabled()
        and not weight.is_inference()  # has no version
        and not torch.is_autocast_enabled("cpu")
    )


def _fewest() -> int:
    """The fewest rows for which packed weights are faster here; more than any if they cannot be used."""
    if not _packs():
        return MOST + 1
    if not has_avx512():
        return 2
    return 1 if slow_mkl() else 4


@functools.cache
def _packs() -> bool:
    """Whether torch has such a product here, and it is as exact as the plain one."""
    try:
        x, weight = torch.linspace(-1, 1, 128).view(2, 64).sin(), torch.linspace(-9, 9, 4096).view(64, 64).cos()
        found = _packed(x, _pack(weight, 2), None)
    except (AttributeError, RuntimeError, TypeError):  # private to torch: another version may have none, or other ones
        return False
    return torch.allclose(found.double(), x.double() @ weight.double().T, rtol=0, atol=1e-4)
