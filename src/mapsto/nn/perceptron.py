"""Layers that treat every item by itself: the networks of small autoencoders."""

from jaxtyping import Float
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.nn.transformer import activated

__all__ = ["Joined", "Perceptron"]


class Perceptron(nn.Module):
    """a(W_K … a(W_2 a(x))): the activation of what came in, then K − 1 layers of the same width; K = 0 changes nothing.

    Inputs and outputs are linear themselves, so that with an input in front and an output behind it is a network with K
    hidden layers. It stands where an encoder does, and lets items know nothing of each other.

    Args:
        dim: D.
        depth: K.
        activation: one of ``gelu``, ``relu``, ``silu``, ``tanh``, ``identity``, with which all is linear.
    """

    def __init__(self, dim: int, depth: int, *, activation: str = "gelu"):
        super().__init__()
        self.activation = activated(activation)
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth - 1))
        self.depth = depth

    def forward(self, x: Collection) -> Collection:
        """New items; masks and places stay."""
        return x.replace(items=self.run(x.items)) if self.depth else x

    def run(self, items: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        """The layers."""
        items = self.activation(items)
        for layer in self.layers:
            items = self.activation(layer(items))
        return items


class Joined(nn.Module):
    """All items as one, Σ_n x_n / √N over the N that are there, and then what is given.

    Of a table, whose items are w_c x_c + b_c, or a vector of its own where x_c is missing, that is the first layer of a
    perceptron that is told the numbers and which of them are missing.

    Args:
        then: what treats the one item.
    """

    def __init__(self, then: nn.Module):
        super().__init__()
        self.then = then

    def forward(self, x: Collection) -> Collection:
        """One item."""
        there = x.lengths.clamp(min=1).to(x.items.dtype)
        found: Collection = self.then(Collection.build(x.total() / there.sqrt()[:, None, None]))
        return found
