"""How a series goes on: numbers at the next steps, with a spread that is learned for each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto.collection import Collection
from mapsto.errors import DataError
from mapsto.nn.channel import Frame, Moments, samples
from mapsto.nn.loss import Loss
from mapsto.nn.step import StepTarget
from mapsto.nn.target import Target
from mapsto.outputs import Output, Theta
from mapsto.ragged import Ragged, Rows

__all__ = ["SeriesOutput"]

MOST = 512  # samples that the linear part reads


class SeriesOutput(Output):
    """log p(y | memory) = Σ_h Σ_c log p(y_hc | μ_hc, σ_hc): all H steps asked at once, none knowing what another said.

    Query h is a learned vector, at place h - 1; the decoder adds what its position makes of the place, lets the queries
    look at each other and asks the memory. A number that is not known (NaN, and what a shorter row lacks) counts nothing.

    Where the target goes on from a series of the input, θ is relative to it: μ_hc = o_c + u_c (Σ_k W_hk x_kc + m_hc) and
    σ_hc = u_c s_hc, with o the last known number of the row, u the spread of its numbers and x its last K samples in
    that frame (:func:`~mapsto.nn.channel.ending`); m and s are what the head says, and W is learned. On every level and
    scale the same is said, and what is linear need not go through attention: :meth:`start` sets W before training.

    Args:
        dim: D.
        name: what the target is called.
        horizon: H.
        mean: of each channel; that of the input it is relative to, if there is one.
        scale: of each channel; likewise.
        noise: ``gaussian`` or ``student``.
        source: the number of the input that it goes on from; -1: none.
        past: K.

    Reference: the linear part: Zeng et al., Are Transformers effective for time series forecasting?, 2023; direct
    forecasts of all steps: Chevillon, Direct multi-step estimation and forecasting, 2007.
    """

    kind = "series"

    def __init__(
        self,
        dim: int,
        *,
        name: str,
        horizon: int,
        mean: list[float],
        scale: list[float],
        noise: str = "gaussian",
        source: int = -1,
        past: int = 0,
    ):
        super().__init__()
        self.dim, self.name, self.horizon, self.source = dim, name, horizon, source
        self.past = past if source >= 0 else 0
        self.linear = nn.Parameter(torch.zeros(horizon, past)) if self.past else None
        self.query = nn.Parameter(torch.zeros(horizon, dim))
        self.head = StepTarget(dim, mean=mean, scale=scale, noise=noise)

    @torch.no_grad()
    def reset(self, stream: torch.Generator) -> None:
        """Draw the queries: steps differ from the start, even where no position tells them apart."""
        self.query.copy_(0.1 * torch.randn(self.query.shape, generator=stream))

    @property
    def targets(self) -> dict[str, Target]:
        """By name: the one there is."""
        return {self.name: self.head}

    @classmethod
    def measure(
        cls,
        chunks: Iterable[Sequence[Any]],
        *,
        columns: Sequence[tuple[str, str]] = (),
        horizon: int = 0,
        noise: str = "gaussian",
        relative: bool = True,
        before: Sequence[Mapping[str, Any]] = (),
        **_: Any,
    ) -> dict[str, Any]:
        """Measure the one column; a value is a tuple of (T,) or (T, C) numbers.

        Args:
            chunks: the values.
            columns: (name, kind).
            horizon: H; 0: that of the longest row.
            noise: see the constructor.
            relative: whether to be relative to the first series of the input that has as many channels.
            before: what each input measured; empty for those that are no series.
        """
        ((name, _kind),) = columns
        moments, longest = Moments(), 0
        for chunk in chunks:
            for (value,) in chunk:
                x = samples(value)[0]
                moments.add(x[: horizon or None])
                longest = max(longest, len(x))
        if not longest:
            raise DataError("is empty in all training rows")
        told = moments.told()
        found = [i for i, part in enumerate(before) if len(part.get("mean", ())) == len(told["mean"])]
        source = found[0] if relative and found else -1
        if source >= 0:  # one unit for both, so that what one ends with is what the other goes on from
            told = {key: list(before[source][key]) for key in ("mean", "scale")}
        horizon, past = horizon or longest, 0
        if source >= 0:
            reach = before[source]["limit"] * before[source]["patch"]
            past = min(reach or MOST, max(64, 4 * horizon), MOST)
        return {"name": name, "horizon": horizon, **told, "noise": noise, "source": source, "past": past}

    def settings(self) -> dict[str, Any]:
        """What :meth:`measure` gave."""
        return {
            "name": self.name,
            "horizon": self.horizon,
            **self.head.settings(),
            "source": self.source,
            "past": self.past,
        }

    def parse(self, value: Sequence[Any]) -> dict[str, NDArray]:
        """``values`` (1, H, C), NaN where nothing is known; of a longer row, the first H steps."""
        (steps,) = value
        x = samples(steps)[0]
        if x.shape[1] != self.head.channels:
            raise DataError(f"{x.shape[1]} channels where the model says {self.head.channels}")
        if not np.isfinite(x[: self.horizon]).any():
            raise DataError("is empty" if not len(x) else "has no known number in its first steps")
        values = np.full((1, self.horizon, self.head.channels), np.nan, np.float32)
        values[0, : len(x)] = self.head.encode(x)[: self.horizon]
        return {"values": values}

    def gather(self, columns: Mapping[str, Rows]) -> dict[str, Tensor]:
        """``values`` and ``known`` (B, H, C)."""
        values = torch.from_numpy(columns["values"].dense()[:, 0])
        known = torch.isfinite(values)
        return {"values": values.masked_fill(~known, 0), "known": known}

    def lengths(self, columns: Mapping[str, Ragged]) -> NDArray | int:
        """H."""
        return self.horizon

    def asked(self, memory: Collection, target: Mapping[str, Tensor]) -> Bool[Tensor, "B H"]:
        """All steps."""
        return torch.ones(len(memory.valid), self.horizon, dtype=torch.bool, device=memory.valid.device)

    def queries(self, memory: Collection, target: Mapping[str, Tensor] | None = None, *, start: int = 0) -> Collection:
        """A learned vector a step."""
        size = memory.valid.shape[0]
        places = torch.arange(self.horizon, device=self.query.device, dtype=torch.float32)
        query = self.query.to(memory.items.dtype).expand(size, -1, -1)
        return Collection.build(query, places=places[:, None].expand(size, -1, -1))

    def event(self, name: str, target: Mapping[str, Tensor]) -> Tensor:
        """The numbers of each step, NaN where they are not known."""
        return target["values"].masked_fill(~target["known"], torch.nan)

    def forward(self, answers: Float[Tensor, "B H D"]) -> Theta:
        """θ of every step."""
        return {self.name: self.head(answers)}

    def relate(self, theta: Theta, frame: Frame) -> Theta:
        """Steps from where each row ends, in units of its spread."""
        line = (
            None if self.linear is None else torch.einsum("hk,bkc->bhc", self.linear.to(frame.tail.dtype), frame.tail)
        )
        return {self.name: self.head.relate(theta[self.name], frame, line)}

    @torch.no_grad()
    def start(self, weight: Float[Tensor, "H K"], sigma: Float[Tensor, ""]) -> None:
        """Say W x and nothing else, with a spread σ (in units of each row) at every step: where training begins.

        Args:
            weight: W, such as least squares give.
            sigma: of what W leaves.
        """
        assert self.linear is not None
        self.linear.copy_(weight)
        self.head.head.weight.zero_()
        self.head.head.bias.zero_()
        self.head.head.bias[self.head.channels :] = sigma.log()

    def log_likelihood(self, theta: Theta, target: Mapping[str, Tensor]) -> Float[Tensor, " B"]:
        """Summed over what is known."""
        return self.head.log_likelihood(theta[self.name], self.event(self.name, target)).sum(1)

    def loss(self, theta: Theta, target: Mapping[str, Tensor]) -> Loss:
        """NLL in standardised units, counted by the numbers that are known."""
        log_p = self.head.each(theta[self.name], self.event(self.name, target)).sum((1, 2))
        return Loss({self.name: -log_p}, {}, self.count(target, log_p))

    def count(self, target: Mapping[str, Tensor], like: Tensor) -> Float[Tensor, " B"]:
        """The numbers that are known."""
        return target["known"].sum((1, 2)).to(like.dtype)

    def predict(self, theta: Theta) -> dict[str, dict[str, NDArray]]:
        """Arrays (B, H, C)."""
        return {self.name: self.head.predict(theta[self.name])}
