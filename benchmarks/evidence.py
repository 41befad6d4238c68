"""What variational autoencoders reach on data whose evidence is known, or known to others; each beside its reference.

    python benchmarks/evidence.py                  all rows (about an hour and a quarter)
    python benchmarks/evidence.py exact frey
    python benchmarks/evidence.py fashion          two trainings of 20 epochs, and the same by plain loops

Nats a datum; splits, seeds and settings stand beside the numbers. ``nll`` is -IWAE-500. Two threads.
"""

import math
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

import quality
import recipe
from mapsto.functional.divergence import elbo, iwae, kl_normal
from mapsto.functional.posterior import Normal, Ppca
from mapsto.inputs.image import ImageInput
from mapsto.inputs.latent import LatentInput
from mapsto.likelihoods.bernoulli import BernoulliLikelihood
from mapsto.models.bound import Bound, Elbo, Iwae
from mapsto.models.mapper import Batch, Mapper
from mapsto.models.rework import Binarise
from mapsto.models.vae import VAE
from mapsto.nn.initial import initialise
from mapsto.nn.perceptron import Perceptron
from mapsto.nn.pool import MeanPool
from mapsto.outputs.image import ImageOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.priors.standard import StandardPrior
from mapsto.stream import stream, stream_numpy
from mapsto.tasks.demo import DEMOS
from mapsto.training.evidence import Evidence, weigh
from mapsto.training.loop import Trainer
from mapsto.training.plan import Plan
from quality import Row, less, main, row

FREY = {1: 512.611, 2: 559.171, 5: 670.961, 10: 759.730, 20: 857.387, 50: 995.275}
"""Latent dimensions: the exact test log-likelihood of probabilistic PCA, computed by other means."""


def net(
    size: tuple[int, int],
    *,
    latent: int,
    dim: int,
    depth: int,
    noise: str,
    activation: str = "gelu",
    mean: float = 0.0,
    scale: float = 1.0,
    bound: Bound | None = None,
    rework: Sequence[Binarise] = (),
) -> VAE:
    """Perceptrons with ``depth`` hidden layers of ``dim`` on both sides; a linear model at depth 0."""
    source = ImageInput(dim, channels=1, mean=[mean], scale=[scale], patch=max(size), stem="patches")
    target: dict[str, Any] = {"latent": {"kind": "latent", "latent": latent}}
    encoder = Mapper(
        {"image": source}, Perceptron(dim, depth, activation=activation), MeanPool(), VectorOutput(dim, targets=target)
    )
    output = ImageOutput(dim, name="image", channels=1, size=size, density=noise)
    inner = Perceptron(dim, depth, activation=activation)
    decoder = Mapper({"latent": LatentInput(dim, latent=latent)}, inner, MeanPool(), output)
    model = VAE(encoder, StandardPrior(latent), decoder, bound=bound, rework=rework)
    initialise(model, 0)
    return model.eval()


class Pictures:
    """Batches of pictures of one size, in an order of its own every epoch."""

    def __init__(self, pixels: NDArray[np.uint8], rows: int):
        self.pixels, self.rows = torch.from_numpy(pixels), rows
        self.size = torch.tensor(pixels.shape[1:3], dtype=torch.int32)

    def order(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """The rows of every batch; the last, smaller one is left out, as in the plain loops beside."""
        rows = stream_numpy(0, "order", epoch).permutation(len(self.pixels))
        return np.split(rows[: len(rows) // self.rows * self.rows], len(rows) // self.rows)

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        """One of them."""
        pixels = self.pixels[torch.from_numpy(np.asarray(rows))]
        return {"image": {"pixels": pixels, "size": self.size.expand(len(rows), 2)}, "target": {"pixels": pixels}}


class Quiet:
    """Nobody is told."""

    def stepped(self, step: int, loss: float) -> None:
        """Nothing."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def skipped(self, step: int, rows: list[int], cause: str) -> None:
        """Not to happen here."""
        raise RuntimeError(cause)

    def unsaved(self, error: Exception) -> None:
        """Nothing."""

    def positions(self) -> dict[str, int]:
        """None."""
        return {}


def judge(model: VAE, pixels: NDArray[np.uint8], ks: Sequence[int] = (1, 5, 50, 500)) -> Evidence:
    """The evidence of pictures; those to be binarised are, once, by a stream of their own."""
    feed, parts = Pictures(pixels, 50), []
    for at in range(0, len(pixels), 50):
        rows = np.arange(at, min(at + 50, len(pixels)))
        batch = feed.batch(rows)
        for rework in model.rework:
            uniform = torch.rand(batch["target"]["pixels"].shape, generator=stream(0, "test bits", at))
            batch = rework.at(batch, uniform)
        parts.append((rows, batch))
    return weigh(model, parts, ks=ks)


def learn(model: VAE, feed: Pictures, plan: Plan, val: NDArray[np.uint8] | None = None) -> float:
    """Train by the library's loop; gives its seconds. With validation pictures the best weights are kept."""
    check = None if val is None else lambda: {"loss": -float(judge(model, val, (1,)).elbo.mean())}
    trainer = Trainer(model, plan, feed, check, Quiet())
    began = time.perf_counter()
    trainer.run()
    seconds = time.perf_counter() - began
    trainer.finish()
    return seconds


def faces() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Frey's 1,965 faces of 28 x 20: 1,565 / 200 / 200 of ``RandomState(0).permutation``."""
    pixels = np.load(recipe.beside("frey/frey_faces.npz"))["images"][..., None]
    order = np.random.RandomState(0).permutation(len(pixels))
    train, val, test = (pixels[rows] for rows in np.split(order, (1565, 1765)))
    return train, val, test


def exact() -> list[Row]:
    """Frey's faces by models whose evidence is exact: probabilistic PCA, its EM, independent and full normal distributions."""
    train, _, test = (torch.from_numpy(x.reshape(len(x), -1) / 255.0) for x in faces())
    found, began = [], time.perf_counter()
    for latent, wanted in FREY.items():
        value = float(Ppca.fit(train, latent).log_likelihood(test).mean())
        found.append(
            less(f"Frey, pPCA {latent}: off by", abs(value - wanted), 1e-3, 0, None, f"{value:.3f} of {wanted}")
        )
    for name, model, wanted in (
        ("independent", Normal.independent(train), 577.68),
        ("full", Normal.fit(train), 1031.04),
    ):
        value = float(model.log_likelihood(test).mean())
        found.append(less(f"Frey, {name}: off by", abs(value - wanted), 1e-2, 0, None, f"{value:.2f} of {wanted}"))
    trace = [value for _, value in islice(Ppca.em(train, 5, stream(0, "em")), 1500)]
    seconds = time.perf_counter() - began
    found.append(
        row("Frey, EM: least step of 1,500", min(np.diff(trace)), -1e-9, seconds, None, f"from {trace[0]:.1f}")
    )
    best = float(Ppca.fit(train, 5).log_likelihood(train).mean())
    note = f"{trace[-1]:.4f} of 669.4026; the closed form has {best:.4f}"
    found.append(less("Frey, EM: its end is off by", abs(trace[-1] - 669.4026), 1e-3, seconds, None, note))
    return found


def frey() -> list[Row]:
    """Frey's faces by VAEs of 10 dimensions: linear, perceptrons of 200 x 2, and both with σ = 1."""
    train, val, test = faces()
    feed, settings = Pictures(train, 100), {"mean": float(train.mean() / 255), "scale": float(train.std() / 255)}
    found = []
    for name, depth, noise, asked in (
        ("linear", 0, "gaussian", 757.0),
        ("perceptrons", 2, "gaussian", 1005.0),
        ("linear, sigma = 1", 0, "gaussian:sigma=1.0", 1.0),
        ("perceptrons, sigma = 1", 2, "gaussian:sigma=1.0", 1.0),
    ):
        steps = 9000 if noise == "gaussian" else 6000
        # With sigma = 1 the KL first weighs little: perceptrons otherwise stay where z is ignored from the start.
        bound = Elbo(warmup=2000) if depth and noise != "gaussian" else None
        model = net((28, 20), latent=10, dim=200 if depth else 64, depth=depth, noise=noise, bound=bound, **settings)
        plan = Plan(
            steps=steps,
            lr=1e-3 if depth else 3e-3,
            warmup=100,
            weight_decay=0.0,
            average=0.999,
            evaluate_every=300,
        )
        seconds = learn(model, feed, plan, val if depth and noise == "gaussian" else None)
        e = judge(model, test)
        note = f"ELBO {e.elbo.mean():.2f}, IWAE-500 {e.iwae[500].mean():.2f}, KL {e.kl.mean():.2f}, active {e.active}"
        if noise != "gaussian":
            off = abs(e.active - asked)
            found.append(less(f"Frey, {name}: active units, off 1 by", off, 0, seconds, None, note))
        elif depth:
            found.append(row(f"Frey, {name}: IWAE-500", e.iwae[500].mean(), asked, seconds, None, note))
        else:
            found.append(row(f"Frey, {name}: ELBO", e.elbo.mean(), asked, seconds, None, f"{note}; exact 759.73"))
    return found


class Burda(nn.Module):
    """784-200-200-50 and back, tanh, written plainly."""

    def __init__(self) -> None:
        super().__init__()
        tanh, layer = nn.Tanh, nn.Linear
        self.encode = nn.Sequential(layer(784, 200), tanh(), layer(200, 200), tanh(), layer(200, 100))
        self.decode = nn.Sequential(layer(50, 200), tanh(), layer(200, 200), tanh(), layer(200, 784))

    def bound(self, x: Tensor, samples: int) -> Tensor:
        """The ELBO of one draw (with the KL in closed form), or IWAE-k: (B,)."""
        mu, log_sigma = self.encode(x).chunk(2, -1)
        noise = torch.randn(samples, *mu.shape)
        z = mu + log_sigma.exp() * noise
        likelihood = -F.binary_cross_entropy_with_logits(
            self.decode(z), x.expand(samples, -1, -1), reduction="none"
        ).sum(-1)
        if samples == 1:
            return likelihood[0] - 0.5 * (mu**2 + (2 * log_sigma).exp() - 2 * log_sigma - 1).sum(-1)
        log_w = likelihood - 0.5 * (z**2).sum(-1) + (0.5 * noise**2 + log_sigma).sum(-1)
        return torch.logsumexp(log_w, 0) - math.log(samples)


def plain_loop(pixels: NDArray[np.uint8], samples: int, steps: int, rows: int = 100) -> float:
    """Seconds of the plain loop: bits drawn anew, Adam at 1e-3 with cosine decay."""
    torch.manual_seed(0)
    model, x = Burda(), torch.from_numpy(pixels.reshape(len(pixels), -1))
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4, fused=True)
    began, step = time.perf_counter(), 0
    while step < steps:
        order = torch.randperm(len(x))
        for at in range(0, len(x) - rows + 1, rows):
            if step == steps:
                break
            for group in adam.param_groups:
                group["lr"] = 0.5e-3 * (1 + math.cos(math.pi * step / steps))
            grey = x[order[at : at + rows]] / 255
            loss = -model.bound((torch.rand(grey.shape) < grey).float(), samples).mean()
            adam.zero_grad(set_to_none=True)
            loss.backward()
            adam.step()
            step += 1
    return time.perf_counter() - began


def binarised(
    data: dict[str, Any], epochs: dict[int, int], *, bfloat16: bool = False
) -> tuple[dict[int, Evidence], dict[int, tuple[float, float]]]:
    """The evidence of the first 1,000 test pictures, and seconds, ours and a plain loop's: by the k of IWAE, 1 for a VAE.

    Args:
        data: pictures, the first 60,000 of which are trained on.
        epochs: by k.
        bfloat16: whether products are computed in it; the plain loop's and those of the evidence are not.
    """
    train, test = data["image"][:60_000, ..., None], data["image"][60_000:61_000, ..., None]
    feed = Pictures(train, 100)
    found, seconds = {}, {}
    for k, passes in epochs.items():
        steps = 600 * passes
        bound: Bound = Elbo() if k == 1 else Iwae(k)
        model = net(
            (28, 28),
            latent=50,
            dim=200,
            depth=2,
            noise="bernoulli",
            activation="tanh",
            bound=bound,
            rework=[Binarise()],
        )
        # The plain loop's share of the steps is timed before, its rest is the same.
        part = min(max(300, steps // 20), 3000)
        plain = plain_loop(train, k, part) * steps / part
        plan = Plan(steps=steps, lr=2e-3, warmup=200, weight_decay=0.0, clip=0.0, average=0.0, bfloat16=bfloat16)
        own = learn(model, feed, plan)
        found[k], seconds[k] = judge(model, test), (own, plain)
    return found, seconds


def fashion() -> list[Row]:
    """Fashion-MNIST, bits drawn anew, the net of Burda et al., 20 epochs; NLL of the first 1,000 test pictures."""
    found, seconds = binarised(recipe.fashion_mnist(), {1: 20, 5: 20})
    made = []
    for k, e in found.items():
        own, plain = seconds[k]
        note = f"ELBO {e.elbo.mean():.2f}, active {e.active}, KL {e.kl.mean():.2f}; plain loop {plain:.0f} s"
        asked = 239.9 if k == 1 else None
        made.append(less(f"Fashion-MNIST, k = {k}: NLL", -e.iwae[500].mean(), asked, own, plain, note))
    better = found[5].iwae[500] - found[1].iwae[500]
    error = better.std() / math.sqrt(len(better))
    made.append(row("IWAE-5 better by, nats", better.mean(), 1.0, 0, None, f"paired, standard error {error:.2f}"))
    return made


def mnist() -> list[Row]:
    """MNIST, bits drawn anew, the same net; far fewer epochs than the paper's 3,280. NLL of the first 1,000 test pictures."""
    data, made = recipe.mnist(), []
    for k, epochs, asked, paper in ((1, 210, 87.8, 86.76), (50, 100, 85.1, 84.78)):
        found, seconds = binarised(data, {k: epochs}, bfloat16=k > 1)
        e, (own, plain) = found[k], seconds[k]
        note = f"{epochs} epochs; ELBO {e.elbo.mean():.2f}, active {e.active}; published {paper}; plain {plain:.0f} s"
        name = "VAE" if k == 1 else f"IWAE-{k}"
        made.append(less(f"MNIST, {name}: NLL", -e.iwae[500].mean(), asked, own, None, note))
    return made


class Burgess(nn.Module):
    """The net of the trained weights: three convolutions, two linear layers and the same back."""

    def __init__(self, weights: dict[str, Tensor]):
        super().__init__()
        self.w = weights

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """μ and log σ²: they come in turns."""
        for name in ("conv1", "conv2", "conv3"):
            x = F.relu(F.conv2d(x, *self._of(f"encoder.{name}"), stride=2, padding=1))
        x = x.flatten(1)
        for name in ("lin1", "lin2"):
            x = F.relu(F.linear(x, *self._of(f"encoder.{name}")))
        both = F.linear(x, *self._of("encoder.mu_logvar_gen")).unflatten(-1, (-1, 2))
        return both[..., 0], both[..., 1]

    def decode(self, z: Tensor) -> Tensor:
        """Log-odds."""
        for name in ("lin1", "lin2", "lin3"):
            z = F.relu(F.linear(z, *self._of(f"decoder.{name}")))
        x = z.unflatten(-1, (32, 4, 4))
        for name in ("convT1", "convT2"):
            x = F.relu(F.conv_transpose2d(x, *self._of(f"decoder.{name}"), stride=2, padding=1))
        return F.conv_transpose2d(x, *self._of("decoder.convT3"), stride=2, padding=1).flatten(1)

    def _of(self, name: str) -> tuple[Tensor, Tensor]:
        return self.w[f"{name}.weight"], self.w[f"{name}.bias"]


@torch.inference_mode()
def trained() -> list[Row]:
    """A VAE that others trained on MNIST (32 x 32, grey), in our likelihoods and bounds: the first 2,000 test digits."""
    model = Burgess(load_file(recipe.beside("vae_mnist/vae_mnist.safetensors")))
    pixels = torch.from_numpy(recipe.mnist()["image"][60_000:62_000] / np.float32(255))[:, None]  # type: ignore[index]
    x = F.interpolate(pixels, (32, 32), mode="bilinear", align_corners=False, antialias=True)
    likelihood, began = BernoulliLikelihood(1024), time.perf_counter()
    parts: dict[str, list[Tensor]] = {"reconstruction": [], "kl": [], "iwae": []}
    for at in range(0, 2000, 100):
        some = x[at : at + 100]
        mu, log_variance = model.encode(some)
        sigma = (0.5 * log_variance).exp()
        noise = torch.randn(50, *mu.shape, generator=stream(0, "trained", at))
        z = mu + sigma * noise
        log_p = likelihood.log_prob(
            model.decode(z.flatten(0, 1)).unflatten(0, (50, -1)), some.flatten(1).expand(50, -1, -1)
        )
        log_prior = -0.5 * (z.square() + math.log(2 * math.pi)).sum(-1)
        log_q = -0.5 * (noise.square() + log_variance + math.log(2 * math.pi)).sum(-1)
        parts["reconstruction"].append(-log_p.mean(0))
        parts["kl"].append(kl_normal(mu, sigma))
        parts["iwae"].append(-iwae(log_p + log_prior - log_q))
    seconds, found = time.perf_counter() - began, {n: float(torch.cat(p).mean()) for n, p in parts.items()}
    total = -elbo(torch.tensor(-found["reconstruction"]), torch.tensor(found["kl"]))
    wanted = {"reconstruction": 121.6, "kl": 19.4, "iwae": 136.9}
    return [
        less(
            f"trained on MNIST, {n}: off by",
            abs(v - wanted[n]),
            0.5,
            seconds,
            None,
            f"{v:.2f} of {wanted[n]}; {total:.1f}",
        )
        for n, v in found.items()
    ]


def table_with_holes() -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
    """1,000 rows of N(0, WWᵀ + diag κ), which cells are missing, and the covariance."""
    draw = np.random.RandomState(123)
    weight = 0.5 * draw.randn(10, 10)
    kappa = np.exp(0.2 * draw.randn(10))
    covariance = weight @ weight.T + np.diag(kappa)
    x = draw.multivariate_normal(np.zeros(10), covariance, 1000)
    return x, draw.rand(1000, 10) < 0.05, covariance


def holes() -> list[Row]:
    """A table of normal numbers with 5 % of the cells missing: RMSE of what is filled in, over the exact conditional mean's.

    The model is linear (activation identity, one layer), its posterior has full covariance: factor analysis, learned. All
    rows are trained on, as far as the split allows (98 %): the missing cells are nobody's to see.
    """
    x, missing, covariance = table_with_holes()
    names = [f"c{j}" for j in range(10)]
    rows = [
        {n: None if gone else float(v) for n, v, gone in zip(names, row, lost, strict=True)}
        for row, lost in zip(x, missing, strict=True)
    ]
    run, result = quality.fit(HOLES, rows, inputs=names, targets=[])
    told = run.predict(rows)
    value, low, high = (
        np.array([[row.get(f"{n}{end}") for n in names] for row in told], float) for end in ("", ".low", ".high")
    )

    def rmse(filled: NDArray[np.float64]) -> float:
        return float(np.sqrt(((filled - x)[missing] ** 2).mean()))

    holed = torch.from_numpy(np.where(missing, np.nan, x))
    exact = rmse(Normal(torch.zeros(10).double(), torch.from_numpy(covariance)).impute(holed).numpy())
    learned = next(islice(Normal.em(holed), 60, None))[0]
    inside = ((low <= x) & (x <= high))[missing].mean()
    note = (
        f"exact {exact:.3f}, column means {rmse(np.where(missing, np.nanmean(holed.numpy(), 0), x)):.3f}, EM of a normal "
        f"distribution {rmse(learned.impute(holed).numpy()) / exact:.4f}; {inside:.1%} in their interval of 95 %"
    )
    return [less("table with holes: RMSE over the exact one", rmse(value) / exact, 1.03, result["seconds"], None, note)]


def moved() -> list[Row]:
    """A plain autoencoder of 1,300 pictures of clothes: how much of a random step in z is found again, by latent dimensions."""
    found = []
    for latent in (2, 8, 32, 128):
        settings = {"data.split": "split", "model.latent": latent, "train.epochs": 60, "train.bound": "reconstruction"}
        _, result = quality.fit(settings, DEMOS["clothes-vae"].rows(), inputs=["image"], targets=[])
        found.append(
            row(f"clothes, plain, z of {latent}: kept", result["metrics"]["kept"], None, result["seconds"], None)
        )
    return found


HOLES = {
    "model.latent": 10,
    "model.posterior": "full",
    "model.activation": "identity",
    "model.depth": 1,
    "model.dim": 64,
    "data.shares": [0.98, 0.01, 0.01],
    "train.lr": 0.01,
    "train.beta_warmup": 0.3,
    "train.batch_tokens": 1024,
    "train.epochs": 300,
    "train.hide": 0.0,
}
CLAIMS: dict[str, Callable[[], list[Row]]] = {
    f.__name__: f for f in (exact, trained, holes, moved, frey, fashion, mnist)
}


if __name__ == "__main__":
    main(__doc__, CLAIMS)
