"""Models whose evidence is exact, beside autoencoders."""

from contextlib import suppress
from itertools import islice

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mapsto.errors import DataError
from mapsto.functional.posterior import Normal, Ppca
from mapsto.nn.counted import CountedLikelihood, marginal
from mapsto.nn.target import LabelTarget, NumberTarget
from mapsto.outputs import Output, TokenOutput
from mapsto.outputs.image import ImageOutput
from mapsto.outputs.series import SeriesOutput
from mapsto.outputs.vector import KNOWN, VectorOutput
from mapsto.ragged import evenly
from mapsto.tasks.feed import StoreFeed

__all__ = ["WIDE", "known", "normal", "numbers", "simple"]

PRINCIPAL = (10, 50)
"""Latent dimensions of probabilistic PCA, beside the model's own."""
WIDE = 4096
"""Numbers of a row above which no covariance is made of them."""
LEAST = 1e-6
"""The least variance of a pixel in the simple models."""
ROWS, STEPS, GAIN = 4000, 100, 1e-4
"""Rows, steps and the least gain in nats of the EM of a table with holes."""
BROAD = 200
"""Columns of numbers above which there is no EM."""


def simple(output: Output, latent: int, train: StoreFeed, test: StoreFeed) -> dict[str, dict[str, float | None]]:
    """Their NLL a row, by name; fitted to the training rows.

    Args:
        output: of the autoencoder.
        latent: Z of it.
        train: rows to fit to, with targets.
        test: rows to judge by.
    """
    if isinstance(output, ImageOutput):
        return _pictures(output, latent, train, test)
    if isinstance(output, TokenOutput):
        return _texts(output, train, test)
    if isinstance(output, SeriesOutput):
        return _series(output, latent, train, test)
    return _table(output, train, test) if isinstance(output, VectorOutput) else {}


def numbers(output: VectorOutput, feed: StoreFeed) -> Float[Tensor, "N C"]:
    """The single numbers of a table in the training rows' deviations, float64; NaN where they are not known."""
    taken = feed.take("target", feed.rows)
    there = known(feed)
    found = [
        torch.from_numpy(taken[name].dense()[:, 0, 0]).double().masked_fill(~there[:, i], torch.nan)
        for i, (name, head) in enumerate(output.targets.items())
        if isinstance(head, NumberTarget) and len(head.mean) == 1
    ]
    return torch.stack(found, 1) if found else torch.zeros(len(feed.rows), 0, dtype=torch.float64)


def normal(x: Float[Tensor, "N C"]) -> Normal | None:
    """A normal distribution with full covariance of numbers with holes; None of too few rows, or too many columns."""
    x = x[evenly(len(x), ROWS)]
    if not 1 < x.shape[1] <= BROAD or len(x) <= 2 * x.shape[1]:
        return None
    before = -torch.inf
    with suppress(DataError, RuntimeError):  # a direction without spread
        for found, value in islice(Normal.em(x[~x.isnan().all(1)]), STEPS):
            if value - before < GAIN:
                return found
            before = value
        return found
    return None


def known(feed: StoreFeed) -> Bool[Tensor, "N C"]:
    """Which cells of a table are there."""
    return torch.from_numpy(feed.take("target", feed.rows)[KNOWN].dense()[:, 0])


def _series(output: SeriesOutput, latent: int, train: StoreFeed, test: StoreFeed) -> dict[str, dict[str, float | None]]:
    """Every step by itself, and all of them together, in the user's units."""
    fitted, asked = (
        torch.from_numpy(feed.take("target", feed.rows)["values"].dense().reshape(len(feed.rows), -1)).double()
        for feed in (train, test)
    )
    units = (~asked.isnan()).double() @ torch.from_numpy(np.log(output.head.scale)).repeat(output.horizon)
    some = ~fitted.isnan().all(0) & (fitted.nan_to_num(nan=-1e9).amax(0) > fitted.nan_to_num(nan=1e9).amin(0))
    if not some.all():
        return {}  # steps that no training row has, or that are always the same
    plain = Normal.independent(fitted, least=LEAST).log_likelihood(asked)
    found: dict[str, dict[str, float | None]] = {"independent steps": {"nll": float((units - plain).mean())}}
    if fitted.isnan().any() or asked.isnan().any() or fitted.shape[1] > WIDE:
        return found
    with suppress(DataError):
        nats = Ppca.fit(fitted, latent).log_likelihood(asked)
        found[f"probabilistic PCA {latent}"] = {"nll": float((units - nats).mean())}
    with suppress(DataError):
        found["full covariance"] = {"nll": float((units - Normal.fit(fitted).log_likelihood(asked)).mean())}
    return found


def _texts(output: TokenOutput, train: StoreFeed, test: StoreFeed) -> dict[str, dict[str, float | None]]:
    """Tokens by how often each was seen, and once more; the end of a text is one of them."""
    seen, _ = train.take("target", train.rows)["ids"].flat()
    asked, lengths = test.take("target", test.rows)["ids"].flat()
    counts = np.bincount(seen, minlength=output.vocabulary.size) + 1.0
    total = -np.log(counts / counts.sum())[asked].sum()
    return {"unigram": {"nll": float(total / len(lengths))}}


def _table(output: VectorOutput, train: StoreFeed, test: StoreFeed) -> dict[str, dict[str, float | None]]:
    """Columns by themselves, and numbers by all of each other."""
    fitted, asked = numbers(output, train), numbers(output, test)
    scale = [h.scale[0] for h in output.targets.values() if isinstance(h, NumberTarget) and len(h.mean) == 1]
    units = (~asked.isnan()).double() @ torch.tensor(np.log(scale))  # from deviations to the user's own
    labels = _labels(output, train, test)
    if sum(isinstance(h, NumberTarget) for h in output.heads) > len(scale):
        return {}  # columns of several numbers
    heads = [h for h in output.heads if isinstance(h, NumberTarget)]
    plain = labels - sum(_alone(h, fitted[:, i : i + 1], asked[:, i : i + 1]) for i, h in enumerate(heads))
    found: dict[str, dict[str, float | None]] = {"independent columns": {"nll": float(plain.mean())}}
    whole = normal(fitted)
    if whole is not None:
        name = "full covariance" if len(scale) == len(output.heads) else "full covariance of the numbers"
        found[name] = {"nll": float((units + labels - whole.log_likelihood(asked)).mean())}
    return found


def _alone(head: NumberTarget, fitted: Float[Tensor, "N 1"], asked: Float[Tensor, "M 1"]) -> Float[Tensor, " M"]:
    """Log p of a column by itself, in the user's units; nothing where it is not known."""
    if isinstance(head.likelihood, CountedLikelihood):
        there = ~asked[:, 0].isnan()
        nats = marginal(head.likelihood.raw(fitted[~fitted.isnan()]), head.likelihood.raw(asked[there, 0]))
        return torch.zeros(len(asked), dtype=torch.float64).masked_scatter(there, nats)
    units = (~asked[:, 0].isnan()).double() * head.unit
    return Normal.independent(fitted, least=LEAST).log_likelihood(asked) - units


def _labels(output: VectorOutput, train: StoreFeed, test: StoreFeed) -> Float[Tensor, " N"]:
    """Nats of the labels of each row, by how often each was seen, and once more."""
    total = torch.zeros(len(test.rows), dtype=torch.float64)
    there, asked = known(train), known(test)
    for i, (name, head) in enumerate(output.targets.items()):
        if isinstance(head, LabelTarget):
            one, two = (torch.from_numpy(f.take("target", f.rows)[name].dense()[:, 0]) for f in (train, test))
            counts = torch.bincount(one[there[:, i]], minlength=len(head.classes)).double() + 1
            total -= torch.log(counts / counts.sum())[two].masked_fill(~asked[:, i], 0)
    return total


def _pictures(
    output: ImageOutput, latent: int, train: StoreFeed, test: StoreFeed
) -> dict[str, dict[str, float | None]]:
    """Of pixels in units of x/255, if those are the model's."""
    known, asked = (
        torch.from_numpy(feed.take("target", feed.rows)["pixels"].dense().reshape(len(feed.rows), -1) / 255.0)
        for feed in (train, test)
    )
    if output.head.discrete:
        if output.head.levels:
            return {}
        p = known.mean(0).clamp(1e-4, 1 - 1e-4)
        nll = -(asked * p.log() + (1 - asked) * torch.log1p(-p)).sum(1)
        return {"independent pixels": {"nll": float(nll.mean())}}
    if output.head.density.partition(":")[0] != "gaussian":
        return {}
    found: dict[str, dict[str, float | None]] = {}
    spread = known.var(0, correction=0).clamp(min=LEAST).sqrt()
    plain = torch.distributions.Normal(known.mean(0), spread)  # no D x D matrix: there may be many pixels
    found["independent pixels"] = {"nll": -float(plain.log_prob(asked).sum(1).mean())}
    if known.shape[1] > WIDE:
        return found
    for dims in sorted({latent, *PRINCIPAL}):
        with suppress(DataError):  # more dimensions than the data have
            found[f"probabilistic PCA {dims}"] = {"nll": -float(Ppca.fit(known, dims).log_likelihood(asked).mean())}
    with suppress(DataError):  # fewer rows than pixels, or pixels that never change
        found["full covariance"] = {"nll": -float(Normal.fit(known).log_likelihood(asked).mean())}
    return found
