"""Autoencoders judged by their evidence, beside models whose evidence is exact."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from mapsto.functional.divergence import iwae
from mapsto.likelihoods.gaussian import GaussianLikelihood
from mapsto.models.mapper import Batch
from mapsto.models.rework import Binarise
from mapsto.models.vae import VAE
from mapsto.outputs.image import ImageOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.ragged import evenly
from mapsto.stream import stream
from mapsto.tasks.autoencoder import flat
from mapsto.tasks.config import Config
from mapsto.tasks.exact import WIDE, simple
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.holes import hidden
from mapsto.training.evidence import LADDER, ROOM, Evidence, aggregate, refine, united, weigh
from mapsto.training.parallel import World

__all__ = [
    "beliefs",
    "evidence",
    "judged",
    "p_values",
    "surprise",
    "validated",
]

REFINED = 100
"""Rows whose beliefs are refined, to see what amortisation costs."""
SURPRISE = 50
"""Draws by which a row's surprise is judged, of perceptrons."""
PERTURBED = 200
"""Rows whose z are moved, to see what is found again."""
STRANGE = 0.05
"""The p-value at which a row counts as surprising: of rows like the validation rows, so many are."""
IDLE = 0.01
"""Nats below which a dimension says nothing."""
MOST, FLAT = 1 << 21, 1 << 24
"""Queries that may be asked for a report, over all rows and draws: of a transformer, of perceptrons."""


def batches(model: VAE, feed: StoreFeed) -> Iterator[tuple[NDArray[np.int64], Batch]]:
    """Every row once, with its number; pixels that are to be drawn are drawn by the row alone."""
    for rows in feed.once():
        yield rows, reworked(model, feed.batch(rows), rows)


def _weighed(
    model: VAE, feed: StoreFeed, world: World | None, *, same: bool = False, **how: Any
) -> tuple[Evidence, NDArray[np.int64]]:
    """The evidence of every row, and which row each is; whole batches are dealt to the processes of a world.

    Args:
        model: the model.
        feed: with targets.
        world: by default this process alone.
        same: whether all rows have the same noise.
        how: as of :func:`~mapsto.training.evidence.weigh`.
    """
    model.eval()
    world, order = world or World(), feed.once()
    dealt = (order[number % len(order)] for number in world.turns(len(order)))
    asked = ((np.zeros_like(rows) if same else rows, rows) for rows in dealt)
    found = weigh(model, ((drawn, reworked(model, feed.batch(rows), drawn)) for drawn, rows in asked), **how)
    return united(found, order, world), np.concatenate(order)


def reworked(model: VAE, batch: Batch, rows: Sequence[int] | NDArray[np.int64]) -> Batch:
    """A batch as it is judged: bits are drawn once, each row's by its number."""
    for rework in model.rework:
        if isinstance(rework, Binarise):
            shape = batch["target"]["pixels"].shape[1:]
            drawn = torch.stack([torch.rand(shape, generator=stream(0, "bits", int(row))) for row in rows])
            return rework.at(batch, drawn.to(batch["target"]["pixels"].device))
    return batch


def evidence(
    model: VAE, feed: StoreFeed, *, ks: Sequence[int] = (), seed: int = 0, world: World | None = None
) -> Evidence:
    """The evidence of the rows of a feed, in the feed's own order of batches.

    Args:
        model: the model.
        feed: with targets.
        ks: of the ladder; by default up to 500, or what :data:`MOST` queries allow.
        seed: of the noise.
        world: processes that share the work.
    """
    output, total = model.decoder.output, int(feed.lengths.sum())
    cheap = flat(output)
    ladder = [k for k in LADDER if k == 1 or k * total <= (FLAT if cheap else MOST)]
    room = ROOM if cheap else ROOM // (4 * output.dim)
    return _weighed(model, feed, world, ks=ks or ladder, seed=seed, room=room)[0]


@torch.inference_mode()
def beliefs(model: VAE, feed: StoreFeed) -> list[dict[str, Any]]:
    """``latent``, the mean of q(z | x), and ``latent.sigma`` of every row."""
    model.eval()
    found: dict[int, dict[str, Any]] = {}
    for rows in feed.once():
        belief = model.believe(feed.batch(rows))
        for row, mean, sigma in zip(rows.tolist(), belief.mean.tolist(), belief.sigma.tolist(), strict=True):
            found[row] = {"latent": mean, "latent.sigma": sigma}
    return [found[int(row)] for row in feed.rows]


def surprise(model: VAE, feed: StoreFeed, world: World | None = None) -> NDArray[np.float64]:
    """(N,) −log p(x) of every row in nats, by IWAE: a pure function of the row, each of which has the same noise.

    The draws are 50 of perceptrons, 5 of others. High is strange; a row is judged by :func:`p_values`.
    """
    k = SURPRISE if flat(model.decoder.output) else SURPRISE // 10
    found, rows = _weighed(model, feed, world, same=True, ks=(k,))
    each = dict(zip(rows.tolist(), -found.iwae[k], strict=True))
    return np.array([each[row] for row in feed.rows.tolist()])


def p_values(nats: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.float64]:
    """(1 + #{known ≥ s}) / (n + 1) for each s: how often a row like the n known ones is as strange.

    If a row is of the same kind as those, P(p ≤ α) ≤ α for every α, whatever the model is worth.

    Reference: Vovk, Gammerman and Shafer, Algorithmic learning in a random world, 2005.
    """
    ordered = np.sort(known)
    return (1 + len(ordered) - np.searchsorted(ordered, nats)) / (len(ordered) + 1)


def validated(model: VAE, feed: StoreFeed, world: World | None = None) -> dict[str, float]:
    """The negative ELBO, a number or token of the target; of a plain autoencoder, what it loses."""
    if not model.bound.drawn:
        model.eval()
        with torch.inference_mode():
            losses = [model.loss(batch) for _, batch in batches(model, feed)]
        lost = float(sum(loss.per_example().sum() for loss in losses))
        count = float(sum(loss.count.sum() for loss in losses))
        return {"loss": lost / max(1.0, count), "elbo": -lost / max(1, len(feed.rows))}
    found = evidence(model, feed, ks=(1,), world=world)
    total = float(found.numbers.sum())
    return {"loss": -float(found.elbo.sum()) / max(1.0, total), "elbo": float(found.elbo.mean())}


def judged(
    model: VAE,
    config: Config,
    test: StoreFeed,
    known: tuple[StoreFeed, StoreFeed] | None,
    *,
    resamples: int = 1000,
    world: World | None = None,
) -> dict[str, Any]:
    """The evidence report: ``{"metrics", "intervals", "baselines"}``, nats a row, at beta = 1 whatever was trained."""
    if not model.bound.drawn:
        return _said(model, test, resamples=resamples, seed=config.seed)
    found = evidence(model, test, seed=config.seed, world=world)
    output = model.decoder.output
    width = output.head.bin if isinstance(output, ImageOutput) else 0.0
    metrics = found.summary(bin=width)
    if found.paid is not None:
        metrics["active_units_kl"] = found.paid
    means, sigmas = (torch.from_numpy(x[evenly(len(x), 2000)]) for x in (found.means, found.sigmas))
    metrics["aggregate_kl"] = aggregate(model, means, sigmas)
    metrics["mutual_information"] = float(found.kl[evenly(len(found.kl), 2000)].mean()) - metrics["aggregate_kl"]
    metrics |= _gaps(model, test)
    each = {
        "elbo": found.elbo,
        "reconstruction": -found.log_likelihood,
        "kl": found.kl,
        "nll": -found.iwae[max(found.iwae)],
    }
    intervals = _intervals(each, resamples, config.seed)
    told: dict[str, Any] = {"deviations": found.means.std(0).tolist()}
    if known is not None and len(known[1].rows):
        usual = np.sort(surprise(model, known[1], world))
        metrics["surprising"] = float((p_values(surprise(model, test, world), usual) <= STRANGE).mean())
        told["usual"] = usual[evenly(len(usual), 1000)].tolist()
    beside = {} if known is None else simple(output, model.latent, known[0], test)
    if isinstance(output, VectorOutput):
        guessed, others = hidden(model, test, None if known is None else known[0], seed=config.seed)
        metrics |= guessed
        beside = {name: beside.get(name, {}) | others.get(name, {}) for name in [*beside, *others]}
    notes = explained(model, config, found, None if known is None else known[0])
    if notes:
        told["notes"] = notes
    return {"metrics": metrics, "intervals": intervals, "baselines": beside, **told}


def explained(model: VAE, config: Config, found: Evidence, train: StoreFeed | None) -> list[str]:
    """Why the decoder ignores dimensions of z, if it does: a sentence each, with what to type."""
    if found.kl_dims is None:
        return []
    idle, output, t = int((found.kl_dims.mean(0) < IDLE).sum()), model.decoder.output, config.train
    if not idle:
        return []
    notes = [f"the KL of {idle} of {model.latent} latent dimensions is under {IDLE} nat: the decoder ignores them"]
    likelihood = output.head.likelihood if isinstance(output, ImageOutput) else None
    if isinstance(likelihood, GaussianLikelihood) and likelihood.fixed is not None and train is not None:
        values = _spectrum(train)
        if values is not None:
            below = int((values[: model.latent] <= likelihood.fixed**2).sum())
            notes.append(
                f"sigma = {likelihood.fixed:g} is fixed, and its square is above {below} of the {model.latent} largest "
                f"eigenvalues of the data ({values[0]:.3g}, {values[1]:.3g}, ...): such directions are taken for noise.   "
                "Use output.density=gaussian, whose sigma is learned"
            )
    if t.beta > 1:
        notes.append(f"train.beta={t.beta:g}: what z says costs {t.beta:g} times what it is worth.   Lower it")
    if t.beta_warmup >= 1:
        notes.append("train.beta_warmup=1: the weight of the KL comes to its end with the run.   Lower it")
    if output.causal:
        notes.append(
            "the decoder says each token from those before it, and may do without z.   Try train.free=dims:0.2 or "
            "train.beta_warmup=0.5"
        )
    return notes


def _spectrum(train: StoreFeed) -> NDArray[np.float64] | None:
    """Eigenvalues of the covariance of the pixels, x/255, the largest first; None of too many pixels."""
    x = train.take("target", train.rows)["pixels"].dense().reshape(len(train.rows), -1) / 255.0
    return None if x.shape[1] > WIDE else np.linalg.eigvalsh(np.cov(x.T, bias=True))[::-1].astype(np.float64)


def _said(model: VAE, test: StoreFeed, *, resamples: int, seed: int) -> dict[str, Any]:
    """The report of a plain autoencoder, which has no evidence: what it loses at the mean of q, and :func:`kept`."""
    model.eval()
    lost, means = [], []
    with torch.inference_mode():
        for _, batch in batches(model, test):
            lost.append(model.loss(batch).per_example().double().cpu())
            means.append(model.embed(batch).double().cpu())
    each = {"reconstruction": torch.cat(lost).numpy()}
    metrics = {name: float(values.mean()) for name, values in each.items()}
    spread = torch.cat(means).std(0)
    told: dict[str, Any] = {"deviations": spread.tolist()}
    if isinstance(model.decoder.output, ImageOutput) and len(test.rows) > 1:
        metrics["kept"] = kept(model, test, spread, seed=seed)
        if metrics["kept"] < 0.5:
            told["notes"] = [
                f"of a random step in z, {max(0.0, metrics['kept']):.0%} are found again when what is said there is read: most "
                f"directions of {model.latent} dimensions lead to where no row lies, and what is said there means little.   "
                "Lower model.latent, or use train.bound=elbo"
            ]
    return {"metrics": metrics, "intervals": _intervals(each, resamples, seed), "baselines": {}, **told}


@torch.inference_mode()
def kept(model: VAE, feed: StoreFeed, spread: Float[Tensor, " Z"], *, seed: int = 0) -> float:
    """How much of a random step in z is found again when the picture said there is read: 1 all of it, 0 nothing.

    The median over rows of 1 − |e(d(z + s)) − (z + s)|² / |s|², with z = e(x), s of half a deviation of all z in every
    dimension, and lengths in such deviations. It falls as z gets more dimensions than the data have: the decoder was never
    asked there, and what it says is read as another z.
    """
    ((name, _),) = model.sources.items()
    output = model.decoder.output
    assert isinstance(output, ImageOutput)
    rows = feed.rows[evenly(len(feed.rows), PERTURBED)]
    batch = feed.batch(rows)
    z = model.embed(batch)
    scale = spread.to(z).clamp(min=1e-12)
    step = 0.5 * torch.randn(z.shape, generator=stream(seed, "step")).to(z)
    moved = z + scale * step
    said = 255 * output.predict(model.say(moved))[output.name]["value"].clip(0, 1)
    pixels = torch.from_numpy(said).round().to(batch[name]["pixels"])
    again = model.embed({name: {**batch[name], "pixels": pixels}})
    lost = ((again - moved) / scale).square().sum(1) / step.square().sum(1)
    return float((1 - lost).median())


def _intervals(each: Mapping[str, NDArray[np.float64]], resamples: int, seed: int) -> dict[str, list[float]]:
    """95 % intervals of means, from resampled rows."""
    rng, found = np.random.default_rng(seed), {}
    for name, values in each.items():
        means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(resamples)]
        if means:
            found[name] = [float(x) for x in np.quantile(means, (0.025, 0.975))]
    return found


def _gaps(model: VAE, feed: StoreFeed) -> dict[str, float]:
    """How much higher the ELBO of some rows is with the best belief for each; and how far that one is below log p(x)."""
    cheap = flat(model.decoder.output)
    rows = feed.rows[evenly(len(feed.rows), REFINED if cheap else REFINED // 5)]
    batch = reworked(model, feed.batch(rows), rows)
    better = refine(model, batch) if cheap else refine(model, batch, steps=50, samples=2)
    with torch.no_grad():
        shape = (256 if cheap else 16, len(rows), model.latent)
        noise = torch.randn(shape, generator=stream(0, "gap")).to(better.mean)
        one, two = (model.weigh(batch, noise, belief) for belief in (model.believe(batch), better))
    gains, left = two.elbo - one.elbo, iwae(two.log_weights) - two.elbo
    return {"amortisation_gap": float(gains.mean()), "approximation_gap": float(left.mean())}
