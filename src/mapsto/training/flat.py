"""All parameters of a model in one vector, so that clipping, averaging and the optimiser are a few large operations."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

from mapsto.errors import ModelFileError

__all__ = ["Flat"]


class Flat:
    """One vector that holds every parameter: ``p.data`` of each is a view of it.

    Matrices come first (they get weight decay), then vectors (they get none).

    Attributes:
        weights: (P,) all parameters.
        split: how many of them get weight decay.
    """

    def __init__(self, model: nn.Module):
        named = sorted(model.named_parameters(), key=lambda item: item[1].ndim < 2)
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self.weights: Float[Tensor, " P"] = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.split = sum(p.numel() for p in self.parameters if p.ndim >= 2)
        for p, view in zip(self.parameters, self.views(self.weights).values(), strict=True):
            p.data = view

    def views(self, vector: Float[Tensor, " P"]) -> dict[str, Tensor]:
        """A vector of all parameters' size, cut into the parameters' shapes, by name."""
        parts = vector.split([p.numel() for p in self.parameters])
        return {n: part.view(p.shape) for n, p, part in zip(self.names, self.parameters, parts, strict=True)}

    def gradient(self) -> Float[Tensor, " P"]:
        """All gradients in one new vector; a parameter without one has zeros. Frees the parameters' own."""
        parts = [torch.zeros_like(p) if (g := p.grad) is None else g for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        # A reshape of each and one torch.cat, all in C++: half the time of the same in Python for a small model.
        vector: Tensor = _flatten_dense_tensors(parts)
        return vector

    def load(self, vector: Float[Tensor, " P"], tensors: Mapping[str, Tensor]) -> None:
        """Copy named tensors into a vector of all parameters' size.

        Raises:
            ModelFileError: names or shapes differ.
        """
        for name, view in self.views(vector).items():
            self.load_one(view, name, tensors)

    @staticmethod
    def load_one(view: Tensor, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensor of a name into one of the same shape and type.

        Raises:
            ModelFileError: it is missing or another.
        """
        found = tensors.get(name)
        if found is None or found.shape != view.shape or found.dtype != view.dtype:
            shown = "nothing" if found is None else f"{tuple(found.shape)} of {found.dtype}"
            raise ModelFileError(f"{name}: expected {tuple(view.shape)} of {view.dtype}, found {shown}")
        view.copy_(found)
