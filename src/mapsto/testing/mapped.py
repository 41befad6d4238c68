"""A model on trial: its copies without noise, and what they answer to rows of its own."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mapsto.models.mapper import Batch, Mapper
from mapsto.outputs import Theta
from mapsto.testing.silence import silent
from mapsto.testing.trial import TYPES

__all__ = ["Mapped"]


@dataclass
class Mapped:
    """A model, and some gathered rows that it maps.

    Attributes:
        model: as it was given.
        batch: the rows.
        quiet: copies without noise, one a type.
    """

    model: Mapper
    batch: Batch
    quiet: dict[torch.dtype, Mapper] = field(init=False)

    def __post_init__(self) -> None:
        self.quiet = {dtype: silent(self.model).to(dtype).requires_grad_() for dtype in TYPES}

    def of(self, dtype: torch.dtype, mode: str = "eval") -> Mapper:
        """The copy of a type."""
        return self.quiet[dtype].train(mode == "train")

    @property
    def size(self) -> int:
        """How many rows."""
        return len(next(iter(next(iter(self.batch.values())).values())))

    @property
    def losses(self) -> int:
        """How many losses :meth:`answer` gives before the gradients."""
        return 3 if "target" in self.batch else 0

    def answer(self, dtype: torch.dtype, mode: str, batch: Batch) -> tuple[Theta, list[Tensor]]:
        """Real θ (zeros at padding), the losses of the rows, and in train mode the gradients of their sum."""
        model = self.of(dtype, mode)
        with torch.set_grad_enabled(mode == "train"):
            theta = model(batch)
            real = {n: self.real(t, batch) for n, t in theta.items()}
            losses = []
            if "target" in batch:
                loss = model.output.loss(theta, batch["target"])
                losses = [loss.per_example(), loss.count, model.output.log_likelihood(theta, batch["target"])]
            if mode == "eval":
                return real, losses
            total = losses[0].sum() if losses else torch.stack([t.square().sum() for t in real.values()]).sum()
            gradients = torch.autograd.grad(total, list(model.parameters()), materialize_grads=True)
            return real, [*losses, *gradients]

    def real(self, theta: Tensor, batch: Batch) -> Tensor:
        """Answers of items that do not exist mean nothing."""
        valid = batch["target"].get("valid") if "target" in batch else None
        if valid is None:
            return theta
        places = min(theta.shape[1], valid.shape[1])  # an output may ask for no more places than it ever says
        return theta[:, :places].masked_fill(~valid[:, :places, None], 0)
