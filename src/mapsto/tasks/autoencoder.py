"""Autoencoders put together from settings: two maps, a prior, and the bound that ties them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from mapsto import kinds
from mapsto.errors import ConfigError, did_you_mean
from mapsto.functional.divergence import free_batch, free_dims, free_total
from mapsto.inputs import Input
from mapsto.inputs.latent import LatentInput
from mapsto.inputs.vector import VectorInput
from mapsto.models.bound import Bound, Capacity, Elbo, Iwae, Reconstruction
from mapsto.models.mapper import Mapper
from mapsto.models.rework import Binarise, Corrupt, Hide
from mapsto.models.vae import VAE
from mapsto.nn.reader import Reader
from mapsto.outputs import Output
from mapsto.outputs.image import ImageOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.tasks.section import ModelConfig, TrainConfig

__all__ = ["autoencoder", "bound", "flat", "learned"]

FREE = {"dims": free_dims, "batch": free_batch, "total": free_total}


def flat(output: Output) -> bool:
    """Whether all is said in one answer, of a table or a picture of one patch: then perceptrons do."""
    return isinstance(output, VectorOutput) or (isinstance(output, ImageOutput) and output.grid == (1, 1))


def autoencoder(
    config: ModelConfig,
    inputs: Mapping[str, Input],
    output: Output,
    *,
    encoder: nn.Module,
    pool: Reader,
    inner: nn.Module,
    reader: Reader,
) -> VAE:
    """Two maps and a prior.

    Args:
        config: of the model.
        inputs: what is read.
        output: what is said again.
        encoder: of the inputs.
        pool: how their belief is read.
        inner: what z goes through before it is read.
        reader: how the output's queries read it.
    """
    target: dict[str, Any] = {"kind": "latent", "latent": config.latent, "posterior": config.posterior}
    believes = VectorOutput(config.dim, targets={"latent": target})
    source = LatentInput(config.dim, latent=config.latent, items=1 if flat(output) else config.memory)
    return VAE(
        Mapper(dict(inputs), encoder, pool, believes, masking=config.masking),
        kinds.make("priors", config.prior, latent=config.latent),
        Mapper({"latent": source}, inner, reader, output),
        rework=[Binarise()] if isinstance(output, ImageOutput) and output.binarise else [],
    )


def learned(model: VAE, config: TrainConfig, steps: int) -> None:
    """Give a model what it has in training alone: the bound, and what is done to batches.

    Raises:
        ConfigError: as :func:`bound`.
    """
    model.bound = bound(config, steps)
    output = model.decoder.output
    if isinstance(output, VectorOutput) and config.hide:
        ((name, source),) = model.sources.items()
        assert isinstance(source, VectorInput)
        model.rework.append(Hide(name, source, output, config.hide))
    if config.noise:
        model.rework.append(Corrupt(config.noise))


def bound(config: TrainConfig, steps: int) -> Bound:
    """What is maximised, from the settings.

    Raises:
        ConfigError: no such bound, or settings that it has no use for.
    """
    kind, _, rest = config.bound.partition(":")
    known = ("elbo", "iwae", "capacity", "reconstruction")
    if kind not in known:
        hint = did_you_mean(kind, known)
        raise ConfigError(f'train.bound: "{config.bound}" is not one of {", ".join(known)}.{hint}')
    if kind not in ("elbo", "capacity") and (config.beta != 1 or config.beta_warmup or config.free):
        raise ConfigError(f"train.bound={config.bound}: beta, beta_warmup and free are for the elbo.   Leave them out")
    warmup = round(config.beta_warmup * steps)
    if kind == "capacity":
        try:
            return Capacity(float(rest), beta=config.beta, warmup=warmup)
        except ValueError:
            raise ConfigError(f'train.bound: "{config.bound}": expected nats, as in capacity:20') from None
    samples = 5 if kind == "iwae" else 1
    if rest:
        try:
            samples = int(rest.removeprefix("samples="))
        except ValueError:
            raise ConfigError(f'train.bound: "{config.bound}": expected a number of samples, as in iwae:5') from None
    if kind == "iwae":
        return Iwae(samples)
    if kind == "reconstruction":
        return Reconstruction()
    return Elbo(samples=samples, beta=config.beta, warmup=warmup, free=_free(config.free))


def _free(text: str) -> Any:
    if not text:
        return None
    kind, colon, rest = text.partition(":")
    try:
        nats = float(rest)
    except ValueError:
        nats = -1.0
    if kind not in FREE or not colon or not nats >= 0:
        raise ConfigError(f'train.free: "{text}": expected dims:0.1, batch:0.1 or total:2 (nats)')
    return partial(FREE[kind], nats=nats)
