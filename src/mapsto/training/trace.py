"""Where a step went wrong: the first module, in the order of computation, that gave something not finite."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["trace"]


def trace(model: nn.Module, batch: Mapping[str, Mapping[str, Tensor]], loss: Callable[[], Tensor]) -> str:
    """What first became NaN or infinite; empty if nothing does.

    Looks at the batch, then at every module's output in the order they finish, then at the loss, then at the gradients
    of the parameters from the last module to the first. Leaves no gradient behind.

    Args:
        model: whose loss it is.
        batch: what it was given.
        loss: computes it again, with the same noise.
    """
    for name, columns in batch.items():
        for column, tensor in columns.items():
            if not finite(tensor):
                return f"{name}.{column}, in the batch itself"
    order: list[str] = []
    first: list[str] = []
    hooks = []
    for name, module in model.named_modules():

        def note(module: nn.Module, given: Any, answer: Any, name: str = name) -> None:
            order.append(name)
            if not first and not all(map(finite, tensors(answer))):
                first.append(name or "the model")

        hooks.append(module.register_forward_hook(note))
    try:
        value = loss()
    finally:
        for hook in hooks:
            hook.remove()
    if first:
        return f"the output of {first[0]}"
    if not finite(value):
        return "the loss, from finite outputs"
    value.backward()
    try:
        last = {name: place for place, name in enumerate(order)}
        broken = [n for n, p in model.named_parameters() if p.grad is not None and not finite(p.grad)]
        broken.sort(key=lambda n: last.get(n.rpartition(".")[0], -1), reverse=True)
        return f"the gradient of {broken[0]}" if broken else ""
    finally:
        model.zero_grad(set_to_none=True)


def finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))
