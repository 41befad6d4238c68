"""What is done to a batch in training, before an autoencoder reads it: drawn anew in every step."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mapsto.errors import ConfigError
from mapsto.inputs.vector import VectorInput
from mapsto.models.mapper import Batch
from mapsto.noise import Random
from mapsto.outputs.vector import KNOWN, VectorOutput

__all__ = ["Binarise", "Corrupt", "Hide", "Rework", "spared"]


class Rework(Random, ABC):
    """The contract: a batch in training becomes another; in eval mode it stays as it is."""

    @abstractmethod
    def forward(self, batch: Batch) -> Batch:
        """The batch to learn from."""


class Binarise(Rework):
    """Pixels drawn black or white, with their grey value as the probability of white, anew at every step.

    Input and target get the same bits. In eval mode nothing is drawn: give :meth:`at` numbers of your own.

    Reference: Salakhutdinov and Murray, On the quantitative analysis of deep belief networks, 2008.
    """

    purpose = "binarise"

    def forward(self, batch: Batch) -> Batch:
        """A batch whose pixels are 0 or 255."""
        if not self.training:
            return batch
        grey = batch["target"]["pixels"]
        source, words = self.draw(grey.device), (grey.numel() + 3) // 4
        drawn = torch.empty(words, dtype=torch.int64, device=grey.device).random_(-(2**63), None, generator=source)
        # Four numbers of 16 bits a draw: white with probability grey / 255, rounded up to a multiple of 2⁻¹⁶.
        u = drawn.view(torch.int16)[: grey.numel()].view(grey.shape).int().add_(32768).mul_(255)
        return self.put(batch, u < grey.int().mul_(65536))

    def at(self, batch: Batch, uniform: Float[Tensor, "B h w C"]) -> Batch:
        """White where u · 255 < the grey value."""
        return self.put(batch, 255 * uniform < batch["target"]["pixels"])

    def put(self, batch: Batch, white: Bool[Tensor, "B h w C"]) -> Batch:
        """The batch with pixels of these colours, wherever it has pixels."""
        bits = white.to(torch.uint8).mul_(255)
        return {name: {**part, "pixels": bits} if "pixels" in part else part for name, part in batch.items()}


def spared(hidden: Bool[Tensor, "B C"], known: Bool[Tensor, "B C"]) -> Bool[Tensor, "B C"]:
    """Known cells to be hidden: none of a row that would lose all it has."""
    hidden = hidden & known
    return hidden & ~(hidden.sum(1) == known.sum(1))[:, None]


class Hide(Rework):
    """Cells of a table hidden, in what is read and in what is said: log p(x_known) of any cells is learned, and q of any.

    A row is left whole with probability 1 − share; else each of its cells is hidden with a probability drawn uniformly, and
    one that is known stays.

    Args:
        name: of the input.
        source: the input.
        output: what is said.
        share: of the rows, those that lose cells.

    Reference: Ivanov, Figurnov and Vetrov, Variational autoencoder with arbitrary conditioning, 2019.
    """

    purpose = "hide"

    def __init__(self, name: str, source: VectorInput, output: VectorOutput, share: float):
        super().__init__(share)
        self.name, self.parts = name, (source, output)  # no modules of this one, too

    def forward(self, batch: Batch) -> Batch:
        """A batch with holes."""
        if not self.training or not self.rate:
            return batch
        known = batch["target"][KNOWN]
        source = self.draw(known.device)
        u = torch.rand(known.shape[0], known.shape[1] + 2, generator=source, device=known.device)
        whole, rate = u[:, :1] >= self.rate, u[:, 1:2]
        return self.without(batch, spared((u[:, 2:] < rate) & ~whole, known))

    def without(self, batch: Batch, hidden: Bool[Tensor, "B C"]) -> Batch:
        """The batch without these cells."""
        source, output = self.parts
        return {self.name: source.hide(batch[self.name], hidden), "target": output.hide(batch["target"], hidden)}


class Corrupt(Rework):
    """Normal noise on what is read and not on what is said: a denoising autoencoder.

    Of pixels in units of the grey scale, from 0 to 1, and rounded to 8 bits; of the numbers of a table in deviations.

    Args:
        sigma: the deviation of the noise, below 1.

    Reference: Vincent, Larochelle, Bengio and Manzagol, Extracting and composing robust features with denoising autoencoders,
    2008.
    """

    purpose = "corrupt"

    def __init__(self, sigma: float):
        super().__init__(sigma)

    def forward(self, batch: Batch) -> Batch:
        """A batch whose inputs are noisy."""
        if not self.training or not self.rate:
            return batch
        return {name: part if name == "target" else self.noisy(part) for name, part in batch.items()}

    def noisy(self, part: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One input with noise.

        Raises:
            ConfigError: it has neither pixels nor numbers.
        """
        name = next((n for n in ("pixels", "numbers") if n in part), "")
        if not name:
            raise ConfigError("train.noise is for pictures and numbers.   Of texts, model.masking hides tokens")
        x = part[name]
        noise = self.rate * torch.randn(x.shape, generator=self.draw(x.device), device=x.device)
        if name == "pixels":
            return {**part, name: (x + 255 * noise).round().clamp(0, 255).to(x.dtype)}
        return {**part, name: x + noise}
