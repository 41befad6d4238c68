"""All parameters of a model in one vector, so that clipping, averaging and the optimiser are a few large operations."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors

from mapsto.errors import ModelFileError
from mapsto.training.parallel import World

__all__ = ["Flat"]


class Flat:
    """One vector that holds every parameter: ``p.data`` of each is a view of it.

    Matrices come first (they get weight decay), then vectors (they get none).

    Args:
        model: changed in place.
        world: the processes, of which each holds the same vector.

    Attributes:
        weights: (P,) all parameters.
        split: how many of them get weight decay.
    """

    def __init__(self, model: nn.Module, world: World | None = None):
        self.world = world or World()
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

    def put(self) -> None:
        """Let the model compute with :attr:`weights` as they are now: it does, they are its own."""

    def gradient(self) -> Float[Tensor, " P"]:
        """All gradients in one new vector; a parameter without one has zeros. Frees the parameters' own."""
        parts = [torch.zeros_like(p) if (g := p.grad) is None else g for p in self.parameters]
        for p in self.parameters:
            p.grad = None
        return flatten(parts)

    def norm(self, gradient: Float[Tensor, " P"]) -> Tensor:
        """The norm of a gradient."""
        found: Tensor = torch.linalg.vector_norm(gradient)
        return found

    def full(self, vector: Float[Tensor, " P"]) -> dict[str, Tensor]:
        """The tensors of a vector, by name: its views."""
        return self.views(vector)

    def load(self, vector: Float[Tensor, " P"], tensors: Mapping[str, Tensor] | None) -> None:
        """Copy the first process's tensors into a vector of all parameters' size; the others call it with None.

        Raises:
            ModelFileError: names, shapes or types differ.
        """
        for name, view in self.views(vector).items() if tensors is not None else ():
            assert tensors is not None
            view.copy_(check(name, tensors, view))
        self.world.spread(vector)


def flatten(parts: list[Tensor]) -> Tensor:
    # A reshape of each and one torch.cat, all in C++: half the time of the same in Python for a small model.
    vector: Tensor = _flatten_dense_tensors(parts)
    return vector


def check(name: str, tensors: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """The tensor of a name, if it has the shape and type of another.

    Raises:
        ModelFileError: it is missing or another.
    """
    found = tensors.get(name)
    if found is None or found.shape != like.shape or found.dtype != like.dtype:
        shown = "nothing" if found is None else f"{tuple(found.shape)} of {found.dtype}"
        raise ModelFileError(f"{name}: expected {tuple(like.shape)} of {like.dtype}, found {shown}")
    return found
