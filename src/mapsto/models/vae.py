"""Variational autoencoders: two maps, x ↦ q(z | x) and z ↦ p(x | z), tied by one bound."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mapsto.errors import ConfigError
from mapsto.inputs import Input
from mapsto.inputs.latent import LatentInput
from mapsto.likelihoods import wide
from mapsto.models.bound import Bound, Elbo, Weighed
from mapsto.models.mapper import Batch, Mapper
from mapsto.models.rework import Rework
from mapsto.nn.loss import Loss
from mapsto.nn.target import LatentTarget
from mapsto.noise import Random
from mapsto.outputs import Output, Theta
from mapsto.posteriors import Belief
from mapsto.priors import Prior

__all__ = ["VAE"]


class Noise(Random):
    """ε ~ N(0, I) for the draws of q in training."""

    purpose = "latent"

    def forward(self, samples: int, like: Float[Tensor, "B Z"]) -> Float[Tensor, "S B Z"]:
        """Fresh at every call."""
        shape = (samples, *like.shape)
        return torch.randn(shape, generator=self.draw(like.device), dtype=like.dtype, device=like.device)


class VAE(nn.Module):
    """x ↦ q(z | x) by one map, z ↦ p(x | z) by another, and p(z).

    ::

        belief = believe(batch)                                  # q(z | x)
        z, log_q = belief.draw(noise)                            # S draws a row, a gradient through them
        log p(x | z) = decoder.output.log_likelihood(decoder({"latent": {"z": z}}), x)
        loss = -bound(log p(x | z), log p(z), log q(z | x))

    Nothing here knows what kind of data x is: the encoder is a :class:`Mapper` onto a latent target, the decoder one from a
    latent input onto any output.

    Args:
        encoder: its output has one target, ``latent``.
        prior: p(z).
        decoder: its one input is called ``latent``.
        bound: what is maximised; the ELBO by default.
        rework: what is done to every batch first, one after the other (:mod:`mapsto.models.rework`).

    Reference: Kingma and Welling, Auto-encoding variational Bayes, 2014; Rezende, Mohamed and Wierstra, 2014.
    """

    def __init__(
        self,
        encoder: Mapper,
        prior: Prior,
        decoder: Mapper,
        *,
        bound: Bound | None = None,
        rework: Iterable[Rework] = (),
    ):
        super().__init__()
        target, source = encoder.output.targets.get("latent"), decoder.sources.get("latent")
        if not isinstance(target, LatentTarget) or not isinstance(source, LatentInput) or len(decoder.names) > 1:
            raise ConfigError("VAE: the encoder maps onto a target latent, and the decoder from an input latent alone")
        if not target.latent == prior.latent == source.latent:
            raise ConfigError(
                f"VAE: latent dimensions differ: encoder {target.latent}, prior {prior.latent}, decoder {source.latent}"
            )
        self.encoder, self.prior, self.decoder = encoder, prior, decoder
        self.target = (target,)  # not a module of this one, too
        self.bound = bound or Elbo()
        self.rework = nn.ModuleList(rework)
        self.noise = Noise()

    @property
    def latent(self) -> int:
        """Z."""
        return self.prior.latent

    @property
    def names(self) -> list[str]:
        """Of the inputs: the encoder's."""
        return self.encoder.names

    @property
    def sources(self) -> dict[str, Input]:
        """The inputs by name."""
        return self.encoder.sources

    @property
    def inputs(self) -> nn.ModuleList:
        """The inputs."""
        return self.encoder.inputs

    @property
    def output(self) -> Output:
        """What is said again: the decoder's."""
        return self.decoder.output

    def embed(self, batch: Batch) -> Float[Tensor, "B Z"]:
        """E[z] of each row: the same at every call."""
        return self.believe(batch).mean

    def believe(self, batch: Batch) -> Belief:
        """q(z | x) of every row."""
        return self.target[0].likelihood(self.theta(batch))  # type: ignore[no-any-return]

    def theta(self, batch: Batch) -> Float[Tensor, "B width"]:
        """The parameters of q(z | x): what the encoder says of z, which does not see the target."""
        found = self.encoder({name: part for name, part in batch.items() if name != "target"})
        return wide(found["latent"][:, 0])

    def say(self, z: Float[Tensor, "B Z"], target: Mapping[str, Tensor] | None = None) -> Theta:
        """θ of p(x | z)."""
        batch: dict[str, Mapping[str, Tensor]] = {"latent": {"z": z}}
        return self.decoder(batch if target is None else {**batch, "target": target})  # type: ignore[no-any-return]

    def log_likelihood(self, z: Float[Tensor, "S B Z"], target: Mapping[str, Tensor]) -> Float[Tensor, "S B"]:
        """Log p(x | z) in nats, S draws of z for each row."""
        samples, rows, _ = z.shape
        if samples > 1:
            target = {n: t.expand(samples, *t.shape).flatten(0, 1) for n, t in target.items()}
        theta = self.say(z.flatten(0, 1), target)
        return self.decoder.output.log_likelihood(theta, target).view(samples, rows)

    def weigh(
        self, batch: Batch, noise: Float[Tensor, "S B Z"], belief: Belief | None = None, *, closed: bool = False
    ) -> Weighed:
        """All that the bounds are made of, from S draws a row.

        Args:
            batch: with its target.
            noise: of N(0, I).
            belief: q, if it is known already, or another than the encoder's.
            closed: leave log p(z) and log q(z | x) NaN where the KL has a closed form.
        """
        belief = belief or self.believe(batch)
        kl = self.prior.kl(belief)
        if closed and kl is not None:
            found = self.log_likelihood(belief.place(noise), batch["target"])
            unknown = torch.full_like(found, torch.nan)
            return Weighed(found, unknown, unknown, kl)
        z, log_q = belief.draw(noise)
        return Weighed(self.log_likelihood(z, batch["target"]), self.prior.log_prob(z), log_q, kl)

    def loss(self, batch: Batch) -> Loss:
        """The bound's terms of a batch, counted by the numbers or tokens of the target."""
        for rework in self.rework:
            batch = rework(batch)
        belief = self.believe(batch)
        if self.bound.drawn:
            noise = self.noise(self.bound.samples, belief.mean)
            found = self.weigh(batch, noise, belief, closed=not self.bound.weighs)
        else:
            z = belief.mean[None]
            found = Weighed(self.log_likelihood(z, batch["target"]), z[..., 0] * 0, z[..., 0] * 0, None)
        terms, weights = self.bound.terms(found, self.noise.clock.step)
        count = self.decoder.output.count(batch["target"], found.log_likelihood)
        return Loss(terms, weights, count)
