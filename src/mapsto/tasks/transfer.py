"""From the weights of one model to those of another with other attention, and how far their heads then differ."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mapsto.attention import Attention
from mapsto.attention.favor import FavorAttention
from mapsto.errors import ModelFileError
from mapsto.models.mapper import Batch, Mapper
from mapsto.nn.multihead import MultiheadAttention
from mapsto.tasks.build import load_model, tensors
from mapsto.tasks.dataset import Measured, fingerprint
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.honesty import place, some

__all__ = ["Shift", "shifts", "start_from", "transfer"]


@dataclass(frozen=True)
class Shift:
    """How far the answers of one head are from those of another model's, both given the same items.

    Attributes:
        layer: such as "encoder 1", counted from 1.
        head: counted from 1.
        error: rms(new − old) / rms(old).
    """

    layer: str
    head: int
    error: float


def start_from(model: Mapper, path: Path, train: StoreFeed, *, seed: int) -> None:
    """Give a model the weights of a run, as far as they fit.

    Args:
        model: changed in place.
        path: the run folder.
        train: rows for :func:`transfer` to look at, if both models read them alike.
        seed: of the choice of rows.

    Raises:
        ModelFileError: none fits, or the run's model cannot be read.
    """
    other, _, _ = load_model(path / "model")
    other.to(next(model.parameters()).device)
    batch = some(train, seed=seed) if _reads(model) == _reads(other) else None
    if not transfer(model, other, batch):
        raise ModelFileError(
            f"init={path}: no weight of that model fits this one.   Use the same --size and model settings"
        )


def _reads(model: Mapper) -> str:
    return fingerprint(Measured([part.settings() for part in model.sources.values()], model.output.settings()))


@torch.no_grad()
def transfer(model: Mapper, other: Mapper, batch: Batch | None) -> list[str]:
    """Copy all tensors of equal name and shape, and fit temperatures that the other model lacks; gives the names copied.

    Where only the new model normalises queries and keys, the temperature of a head is what its logits are on average
    scaled by in the other, τ = mean|q| · mean|k| / √K over the items of a batch; for favor attention not above what its
    features can carry.
    """
    own, theirs = tensors(model), tensors(other)
    fits = [n for n, p in own.items() if n in theirs and theirs[n].shape == p.shape]
    for name in fits:
        own[name].copy_(theirs[name])
    before = layers(other)
    new = {n: m for n, m in layers(model).items() if n in before and before[n].log_temperature is None}
    fitted = [name for name, layer in new.items() if layer.log_temperature is not None]
    if fitted and batch is not None:
        with _calls(other, [f"{name}.attention" for name in fitted]) as calls:
            other.eval().answers(batch)
        for name in fitted:
            layer, found = new[name], calls.get(f"{name}.attention")
            if found is not None and layer.log_temperature is not None:
                (q, k, *_), given, _ = found
                layer.log_temperature.copy_(_temperature(layer.attention, q, k, given.get("valid")).log())
    return fits


def _temperature(kind: Attention, q: Tensor, k: Tensor, valid: Tensor | None) -> Tensor:
    def length(x: Tensor) -> Tensor:
        norm, there = x.norm(dim=-1), x.new_ones(x.shape[0], 1, x.shape[2])
        if valid is not None and valid.shape[1] == x.shape[2]:
            there = valid[:, None].to(x.dtype)
        return (norm * there).sum((0, 2)) / there.sum().clamp(min=1)

    scale = (length(q) * length(k) * q.shape[-1] ** -0.5).clamp(min=1e-2)
    most = kind.sharpness(q.shape[-1]) if isinstance(kind, FavorAttention) else math.inf
    return scale.clamp(max=most)


@torch.no_grad()
def shifts(model: Mapper, other: Mapper, batch: Batch) -> list[Shift]:
    """How far each head of a model answers from the other's, where its layer gets what the other's layer got.

    Layers of the same kind in both (a pooling's) are left out.

    Args:
        model: the new one.
        other: the one before, with layers of the same names.
        batch: some rows.
    """
    before, new, found = layers(other), layers(model), []
    names = [name for name in before if name in new and _kind(before[name]) != _kind(new[name])]
    with _calls(other, names) as asked, _calls(other, [f"{n}.attention" for n in names]) as answered:
        other.eval().answers(batch)
    model.eval()
    for name in names:
        if name not in asked:
            continue
        inputs, given, _ = asked[name]
        with _calls(new[name], ["attention"]) as again:
            new[name](*inputs, **given)
        valid = getattr(inputs[0], "valid", None)
        was, now = (x.double() for x in (answered[f"{name}.attention"][2], again["attention"][2]))
        there = was.new_ones(was.shape[0], 1, was.shape[2], 1) if valid is None else valid[:, None, :, None].double()
        off, size = (((x * there) ** 2).sum((0, 2, 3)) for x in (now - was, was))
        error = (off / size.clamp(min=1e-300)).sqrt().tolist()
        found += [Shift(place(f"{name}.attention"), head, float(f"{e:.6g}")) for head, e in enumerate(error, 1)]
    return found


def _kind(layer: MultiheadAttention) -> tuple[Any, ...]:
    kind = layer.attention
    return type(kind), kind.settings(), layer.log_temperature is None


def layers(model: nn.Module) -> dict[str, MultiheadAttention]:
    """Every attention layer, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, MultiheadAttention)}


@contextmanager
def _calls(model: nn.Module, names: list[str]) -> Iterator[dict[str, tuple[Any, dict[str, Any], Tensor]]]:
    """The first call of each of these modules: arguments, named arguments, answer."""
    calls: dict[str, tuple[Any, dict[str, Any], Tensor]] = {}

    def hooked(name: str) -> Any:
        return lambda _, inputs, given, out: calls.setdefault(name, (inputs, given, out)) and None

    known = dict(model.named_modules())
    hooks = [known[name].register_forward_hook(hooked(name), with_kwargs=True) for name in names]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
