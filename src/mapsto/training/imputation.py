"""What a variational autoencoder of a table says of the cells that are missing."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from mapsto.functional.mixture import count_quantile, normal_quantile
from mapsto.models.mapper import Batch
from mapsto.models.vae import VAE
from mapsto.training.evidence import noise

__all__ = ["impute"]

Rows = Iterable[tuple[Sequence[int] | NDArray[np.int64], Batch]]


@torch.inference_mode()
def impute(
    model: VAE, batches: Rows, *, samples: int = 200, level: float = 0.95, seed: int = 0
) -> dict[str, dict[str, NDArray]]:
    """p(x_missing | x_known), by importance weighting: Σ_s w_s p(x_missing | z_s).

    z_s ~ q(z | x_known), and w_s ∝ p(x_known | z_s) p(z_s) / q(z_s | x_known), normalised over the S draws of a row: right as
    S grows, however wrong q is.

    Args:
        model: of a table, in eval mode.
        batches: with targets, and a number of each row that its draws are a function of.
        samples: S.
        level: of the interval: between the (1 − level)/2 quantiles of the mixture.
        seed: of the draws.

    Returns:
        By target, in the order of ``batches``: of numbers ``value`` (N, D), the mean, ``low`` and ``high``, in the user's
        units; of a label ``probability`` (N, C) and ``value`` (N,), the number of the likeliest class.

    Reference: Mattei and Frellsen, MIWAE: deep generative modelling and imputation of incomplete data sets, 2019.
    """
    parts: dict[str, dict[str, list[NDArray]]] = {}
    first = next(model.parameters())
    for rows, batch in batches:
        belief = model.believe(batch)
        z, log_q = belief.draw(noise(seed, rows, samples, model.latent).to(first))
        log_w = model.log_likelihood(z, batch["target"]) + model.prior.log_prob(z) - log_q
        weight = torch.softmax(log_w.double(), 0).cpu()
        said = model.output.predict(model.say(z.flatten(0, 1)))
        for name, arrays in said.items():
            kept = parts.setdefault(name, {})
            each = {k: torch.from_numpy(v).double().unflatten(0, (samples, len(rows))) for k, v in arrays.items()}
            for k, v in (_label(weight, each) if "log_probability" in each else _number(weight, each, level)).items():
                kept.setdefault(k, []).append(v.numpy())
    return {name: {k: np.concatenate(v) for k, v in kept.items()} for name, kept in parts.items()}


def _number(
    weight: Float[Tensor, "S B"], each: dict[str, Float[Tensor, "S B D"]], level: float
) -> dict[str, Float[Tensor, "B D"]]:
    w, mean = weight[..., None], each["value"]
    quantile, spread = (count_quantile, each["shape"]) if "shape" in each else (normal_quantile, each["sigma"])
    low, high = (quantile(p, w, mean, spread) for p in (0.5 - level / 2, 0.5 + level / 2))
    return {"value": (w * mean).sum(0), "low": low, "high": high}


def _label(weight: Float[Tensor, "S B"], each: dict[str, Float[Tensor, "S B C"]]) -> dict[str, Tensor]:
    probability = (weight[..., None] * each["log_probability"].exp()).sum(0)
    return {"probability": probability, "value": probability.argmax(-1)}
