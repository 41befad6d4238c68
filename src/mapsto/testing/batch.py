"""Changing gathered batches without changing what they say: other padding, other rows, other lengths.

By convention a part of a batch tells its padding by ``valid`` (B, N) or by ``size`` (B, 2), a picture's height and
width; a part with neither has none.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

__all__ = ["Columns", "fill", "holes", "padded", "pick", "stretch", "widen"]

Columns = Mapping[str, Tensor]


def holes(part: Columns) -> dict[str, Bool[Tensor, "B N ..."]]:
    """Where the padding of each tensor of a part is; tensors without padding are left out."""
    if "valid" in part:
        valid = part["valid"]
        return {n: ~valid for n, t in part.items() if n != "valid" and t.shape[:2] == valid.shape}
    if "size" in part:
        size = part["size"].long()
        found = {}
        for name, t in part.items():
            if name != "size" and t.dim() >= 3:
                row = torch.arange(t.shape[1], device=t.device) >= size[:, :1]
                column = torch.arange(t.shape[2], device=t.device) >= size[:, 1:]
                found[name] = row[:, :, None] | column[:, None, :]
        return found
    return {}


def padded(part: Columns) -> bool:
    """Whether there is any padding in a part."""
    return any(bool(hole.any()) for hole in holes(part).values())


def fill(part: Columns, value: float) -> dict[str, Tensor]:
    """The same part with other padding: this value, or, where numbers are whole, one that stands in the part already.

    Whole numbers are ids, which index tables: a NaN cannot stand there, another id can.
    """
    filled = dict(part)
    for name, hole in holes(part).items():
        t = part[name]
        if t.dtype == torch.bool or not t.numel():
            continue
        if not t.is_floating_point():
            real = t[~hole].reshape(-1)
            value = float(real.max()) if len(real) else 0.0
        mask = hole.reshape(*hole.shape, *(1,) * (t.dim() - hole.dim()))
        filled[name] = t.masked_fill(mask, value)
    return filled


def pick(part: Columns, rows: Tensor) -> dict[str, Tensor]:
    """Some rows, as gathering them alone would give them: no longer than the longest of them."""
    picked = {n: t[rows] for n, t in part.items()}
    if not len(rows):
        return picked
    if "valid" in part:
        longest = int(picked["valid"].sum(1).max())
        return {n: t[:, :longest].contiguous() if n in holes(part) or n == "valid" else t for n, t in picked.items()}
    if "size" in part:
        height, width = (int(x) for x in picked["size"].amax(0))
        return {n: t[:, :height, :width].contiguous() if n in holes(part) else t for n, t in picked.items()}
    return picked


def widen(part: Columns, amount: int) -> dict[str, Tensor]:
    """The same rows with so many more padded items (or rows and columns of pixels)."""
    known = holes(part)

    def longer(t: Tensor, *dims: int) -> Tensor:
        for dim in dims:
            shape = list(t.shape)
            shape[dim] = amount
            t = torch.cat([t, t.new_zeros(shape)], dim)
        return t

    dims = (1,) if "valid" in part else (1, 2)
    return {n: longer(t, *dims) if n in known or n == "valid" else t for n, t in part.items()}


def stretch(part: Columns, length: int) -> dict[str, Tensor]:
    """Rows of a length of choice, made by repeating what is there; ``times`` go on rising. Pictures: that many pixels."""
    known = holes(part)
    if "valid" in part:
        rank = torch.arange(length, device=part["valid"].device)
        whole = {n: t[:, rank % max(1, t.shape[1])] if n in known else t for n, t in part.items()}
        if "times" in whole:
            whole["times"] = rank.to(whole["times"].dtype).repeat(len(part["valid"]), 1)
        return {**whole, "valid": torch.ones(len(part["valid"]), length, dtype=torch.bool, device=rank.device)}
    if "size" in part:
        side = torch.arange(length, device=part["size"].device)
        whole = {n: t[:, side % t.shape[1]][:, :, side % t.shape[2]] if n in known else t for n, t in part.items()}
        return {**whole, "size": torch.full_like(part["size"], length)}
    return dict(part)


def apply(change: Any, batch: Mapping[str, Columns], *more: Any) -> dict[str, dict[str, Tensor]]:
    """One of these changes made to every part of a batch, its target too."""
    return {name: change(part, *more) for name, part in batch.items()}
