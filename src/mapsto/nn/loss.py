"""What a batch costs, by name and by example; reduced in the training loop only."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mapsto.errors import ConfigError

__all__ = ["Loss"]


@dataclass(frozen=True)
class Loss:
    """Terms of a loss for every example of a batch.

    The loop minimises Σ_b Σ_t w_t term_t[b] / Σ_b count[b] over the whole step: all micro-batches, all ranks.

    Attributes:
        terms: by name, each (B,). Only likelihood terms are in nats.
        weights: w by term name, 1 where none is given.
        count: (B,) what the loss is divided by: targets that exist (labels, tokens, numbers).
    """

    terms: dict[str, Float[Tensor, " B"]]
    weights: dict[str, float]
    count: Float[Tensor, " B"]

    def __post_init__(self) -> None:
        unknown = set(self.weights) - set(self.terms)
        if unknown:
            raise ConfigError(f"loss: weights for unknown terms {sorted(unknown)}; the terms are {sorted(self.terms)}")

    def per_example(self) -> Float[Tensor, " B"]:
        """Σ_t w_t term_t for each example."""
        parts = [term if (w := self.weights.get(name, 1.0)) == 1.0 else w * term for name, term in self.terms.items()]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
