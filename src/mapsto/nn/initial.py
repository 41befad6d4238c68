"""First values of parameters: a pure function of (seed, name), whatever order modules were made in."""

import math

import torch
from torch import Tensor, nn

from mapsto.stream import stream

__all__ = ["initialise"]


def initialise(model: nn.Module, seed: int) -> None:
    """Draw every parameter of a model anew, each from the stream of its own name.

    Linear layers and convolutions: normal with standard deviation 1/√(inputs), biases zero; embeddings: normal with
    0.02·√(512/width); a module with a method ``reset(stream)`` draws its own; other vectors stay as constructed
    (norms one, biases zero).
    """
    for name, module in model.named_modules():
        source = stream(seed, "init", name)
        if hasattr(module, "reset"):
            module.reset(source)
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            fan = module.weight[0].numel()
            _normal(module.weight, 1 / math.sqrt(fan), source)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            _normal(module.weight, 0.02 * math.sqrt(512 / module.embedding_dim), source)


@torch.no_grad()
def _normal(weight: Tensor, sigma: float, source: torch.Generator) -> None:
    # Drawn on the CPU whatever the device, so that every device starts from the same values.
    weight.copy_(torch.randn(weight.shape, generator=source) * sigma)
