"""START HERE: a map between collections. Every model of the library is one of these, put together differently."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mapsto.collection import Collection, join
from mapsto.errors import ConfigError
from mapsto.inputs import Input
from mapsto.likelihoods import wide
from mapsto.nn.draft import Draft, Foreseen
from mapsto.nn.dropout import ItemMasking
from mapsto.nn.loss import Loss
from mapsto.nn.reader import Reader
from mapsto.nn.transformer import Decoder, Prior
from mapsto.outputs import Output, Theta
from mapsto.outputs.parallel import ParallelOutput
from mapsto.outputs.sequence import SequenceOutput

__all__ = ["Batch", "Mapper"]

Batch = Mapping[str, Mapping[str, Tensor]]
"""What each input gathered, by its name, and the output's target under ``"target"``."""

Told = TypeVar("Told", Draft, Foreseen)


class Mapper(nn.Module):
    """Inputs ↦ items ↦ memory ↦ answers ↦ θ.

    ::

        memory = encoder(join(inputs))
        answers = reader(output.queries(memory, target), memory)
        theta = output(answers)                # parameters of a likelihood; the loss is -log p(target | theta)

    A causal output is written step by step: :meth:`begin`, then :meth:`write`, which :mod:`mapsto.models.search` calls.
    A language model is one without inputs, whose reader is a :class:`~mapsto.nn.transformer.Prior`.

    Args:
        inputs: by name; several are joined, each with a learned mark on its items. None for a language model.
        encoder: a collection in, a collection out (:class:`~mapsto.nn.transformer.Encoder`).
        reader: how the output's queries read the memory: a pooling, or a decoder.
        output: what is asked, and what the answers mean.
        masking: in training, the share of items hidden before the encoder.

    Example:
        >>> from mapsto.inputs.sequence import SequenceInput
        >>> from mapsto.nn.pool import MeanPool
        >>> from mapsto.nn.transformer import Encoder
        >>> from mapsto.outputs.vector import VectorOutput
        >>> from mapsto.vocabulary import Bytes
        >>> model = Mapper({"text": SequenceInput(16, vocabulary=Bytes())}, Encoder(16, 1, 2), MeanPool(),
        ...                VectorOutput(16, targets={"mood": {"kind": "label", "classes": ["bad", "good"]}}))
        >>> batch = {"text": {"ids": torch.tensor([[5, 7, 9]]), "valid": torch.ones(1, 3, dtype=torch.bool)}}
        >>> model(batch)["mood"].shape
        torch.Size([1, 1, 2])
    """

    def __init__(
        self, inputs: Mapping[str, Input], encoder: nn.Module, reader: Reader, output: Output, *, masking: float = 0.0
    ):
        super().__init__()
        self.names = list(inputs)
        self.inputs = nn.ModuleList(inputs.values())
        self.encoder = encoder
        self.reader = reader
        self.output = output
        self.masking = ItemMasking(masking)
        self.marks = nn.Parameter(torch.zeros(len(self.names), output.dim)) if len(self.names) > 1 else None

    @torch.no_grad()
    def reset(self, stream: torch.Generator) -> None:
        """Draw the marks of several inputs."""
        if self.marks is not None:
            self.marks.copy_(0.5 * torch.randn(self.marks.shape, generator=stream))

    @property
    def sources(self) -> dict[str, Input]:
        """The inputs by name."""
        return dict(zip(self.names, self.inputs, strict=True))  # type: ignore[arg-type]

    def collect(self, batch: Batch) -> Collection:
        """What the encoder sees; nothing, if there are no inputs."""
        if not self.names:
            target = batch["target"]["valid"]
            nothing = next(self.parameters()).new_zeros(target.shape[0], 0, self.output.dim)
            return Collection(nothing, target[:, :0])
        parts = [one(batch[name]) for name, one in self.sources.items()]
        items = join(parts, [] if self.marks is None else list(self.marks))
        return self.reader.enter(self.masking(items))

    def answers(self, batch: Batch) -> tuple[Float[Tensor, "B L D"], Collection]:
        """The answer to every query, before the likelihoods' heads, and the memory it was read from."""
        memory = self.encoder(self.collect(batch))
        queries = self.output.queries(memory, batch.get("target"))
        return self.reader(queries, memory, causal=self.output.causal), memory

    @torch.no_grad()
    def begin(self, batch: Batch, rows: int, capacity: int) -> Draft | Foreseen:
        """What is to be known before the first token: the memory of a batch, and room for what is to be written.

        An output that says all at once is asked here; writing is then no more than reading what it said.

        Args:
            batch: the inputs, without a target; empty for a language model.
            rows: of the batch.
            capacity: the most tokens of a row, the begin token included.

        Raises:
            ConfigError: the output is not written step by step.
        """
        if isinstance(self.output, ParallelOutput):
            answers, _ = self.answers(batch)
            return Foreseen(
                answers, wide(self.output(answers)[self.output.name]), answers.new_zeros(rows, dtype=torch.int64)
            )
        if not isinstance(self.reader, Decoder | Prior):
            raise ConfigError(f"an output of kind {self.output.kind} is not written step by step")
        like = next(self.parameters())
        memory = self.encoder(self.collect(batch)) if self.names else None
        return self.reader.start(like, capacity, batch=rows, memory=memory)

    @torch.no_grad()
    def write(
        self, tokens: Int[Tensor, "R T"], draft: Told, *, valid: Bool[Tensor, "R T"] | None = None
    ) -> tuple[Float[Tensor, "R 1 V"], Float[Tensor, "R T D"], Told]:
        """Write T >= 1 tokens to each row: the log-odds of what follows the last, the answers to all, the new draft.

        Args:
            tokens: ids, the begin token first.
            draft: from :meth:`begin`, or the last step; consumed.
            valid: which tokens exist, first in each row; None if all do.
        """
        if isinstance(draft, Foreseen):
            return draft.step(tokens.shape[1], valid)
        assert isinstance(self.output, SequenceOutput)
        assert isinstance(self.reader, Decoder | Prior)
        answers, draft = self.reader.step(self.output.ask(tokens, draft.first, valid), draft, valid=valid)
        if valid is None:
            last = answers[:, -1:]
        else:
            last = answers[torch.arange(len(answers), device=answers.device), valid.sum(1) - 1][:, None]
        return wide(self.output.step(last, draft.product)), answers, draft

    def say(self, answers: Float[Tensor, "B L D"], batch: Batch) -> Theta:
        """θ of the answers, in units of all rows where an output speaks in those of a row's source."""
        theta: Theta = self.output(answers)
        if self.output.source >= 0:
            name = self.names[self.output.source]
            frame = self.sources[name].frame(batch[name], self.output.past)
            assert frame is not None, "an input that has no frame"
            theta = self.output.relate(theta, frame)
        return theta

    def forward(self, batch: Batch) -> Theta:
        """θ of every query."""
        return self.say(self.answers(batch)[0], batch)

    def loss(self, batch: Batch) -> Loss:
        """The output's loss of a batch that holds its target."""
        return self.output.loss(self(batch), batch["target"])

    def embed(self, batch: Batch) -> Float[Tensor, "B D"]:
        """One vector a row: the mean of its answers, or of its memory if answers are written one after the other."""
        if self.output.causal:
            memory = self.encoder(self.collect(batch))
            items, asked = memory.items, memory.valid
        else:
            items, memory = self.answers(batch)
            found = self.output.asked(memory, {})
            asked = torch.ones_like(items[..., 0], dtype=torch.bool) if found is None else found
        total = items.masked_fill(~asked[..., None], 0).sum(1)
        return total / asked.sum(1, keepdim=True).clamp(min=1)  # type: ignore[no-any-return]
