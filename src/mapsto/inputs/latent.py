"""A latent variable as an input: what the decoder of a variational autoencoder maps from."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.errors import DataError
from mapsto.inputs import Input
from mapsto.ragged import Ragged, Rows

__all__ = ["LatentInput"]


class LatentInput(Input):
    """z ↦ T items W_t z + b_t, at the places 0 … T − 1.

    With one item, every query that looks at the memory is told the same; with several, queries may look at parts of z.

    Args:
        dim: D.
        latent: Z.
        items: T.
    """

    kind = "latent"

    def __init__(self, dim: int, *, latent: int, items: int = 1):
        super().__init__()
        self.latent, self.count = latent, items
        self.linear = nn.Linear(latent, items * dim)

    @classmethod
    def measure(cls, chunks: Iterable[Sequence[Any]], *, items: int = 1, **_: Any) -> dict[str, Any]:
        """How many numbers there are."""
        first = next((value for chunk in chunks for value in chunk), None)
        if first is None:
            raise DataError("no latent vector in the training rows")
        return {"latent": len(first), "items": items}

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments but ``dim``."""
        return {"latent": self.latent, "items": self.count}

    def parse(self, value: Any) -> dict[str, NDArray]:
        """``z`` (1, Z)."""
        z = np.asarray(value, np.float32).reshape(-1)
        if len(z) != self.latent or not np.isfinite(z).all():
            raise DataError(f"a latent vector has {self.latent} finite numbers, found {len(z)}")
        return {"z": z[None]}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``z`` (B, Z)."""
        return {"z": torch.from_numpy(columns["z"].dense()[:, 0])}

    def forward(self, batch: Mapping[str, Tensor]) -> Collection:
        """T items a row."""
        z: Float[Tensor, "B Z"] = batch["z"].to(self.linear.weight.dtype)
        items = self.linear(z).unflatten(-1, (self.count, -1))
        places = torch.arange(self.count, dtype=torch.float32, device=z.device)
        return Collection.build(items, places=places[None, :, None].expand(len(z), -1, -1))

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray:
        """T for every row."""
        return np.full(len(columns["z"]), self.count)

    def plain(self, columns: Mapping[str, Rows]) -> NDArray:
        """The numbers themselves."""
        return columns["z"].dense()[:, 0]

    def names(self, columns: Mapping[str, Rows]) -> list[list[str]]:
        """Numbers from 1."""
        return [[f"z {i + 1}" for i in range(self.count)]] * len(columns["z"].rows)
