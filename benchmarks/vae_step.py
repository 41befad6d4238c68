"""One training step of a small variational autoencoder, ours beside other trainers', in one run.

    python benchmarks/vae_step.py                  one thread, CPU time; wall time is shown too

The net is 784-400-20 and back, ReLU, Bernoulli pixels from grey values, batches of 128 of 10,240 pictures of clothes, Adam at
1e-3. Asked: at most half of Lightning's time a step, at most 1 / 2.5 of pythae's as installed, at most 1.4 times the limit.

- limit: batches that are tensors in memory already, ``AdamW(fused=True)``, nothing else.
- ours: ``Trainer`` on a ``StoreFeed`` of 8-bit pictures: gathering, order, schedule, counting, progress; without clipping and
  averaged weights, which the others do not have; and with both, as ``mapsto train`` has them.
- Lightning: a ``LightningModule`` on a ``DataLoader`` of a ``TensorDataset``, its logger, bars and checkpoints off.
- pythae: ``VAE`` and ``BaseTrainer`` as installed; encoder and decoder are of the same layers.

A round is one epoch of 80 steps of every candidate in turn. Peers that are not installed are named with the reason.
"""

import contextlib
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import recipe
from evidence import Quiet, net
from mapsto.data.store import Store
from mapsto.models.vae import VAE
from mapsto.ragged import Ragged
from mapsto.tasks.feed import StoreFeed
from mapsto.training.loop import Trainer
from mapsto.training.plan import Plan
from race import race, table

ROWS, BATCH, LATENT, HIDDEN = 10_240, 128, 20, 400
STEPS = ROWS // BATCH


class Plain(nn.Module):
    """784-400-20-400-784."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENT))
        self.decode = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 784))

    def loss(self, x: Tensor) -> Tensor:
        """-ELBO, its KL in closed form."""
        mu, log_sigma = self.encode(x).chunk(2, -1)
        z = mu + log_sigma.exp() * torch.randn_like(mu)
        lost = F.binary_cross_entropy_with_logits(self.decode(z), x, reduction="none").sum(-1)
        return (lost + 0.5 * (mu**2 + (2 * log_sigma).exp() - 2 * log_sigma - 1).sum(-1)).mean()


def limit(pixels: Tensor) -> Callable[[], object]:
    """The bare loop."""
    torch.manual_seed(0)
    model, batches = Plain(), (pixels / 255).split(BATCH)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def epoch() -> None:
        for x in batches:
            adam.zero_grad(set_to_none=True)
            model.loss(x).backward()
            adam.step()

    return epoch


def feed(model: VAE, pixels: Tensor) -> StoreFeed:
    """Pictures of 8 bits in a store."""
    rows = len(pixels)
    ends = np.arange(rows + 1, dtype=np.int64)
    flat = pixels.numpy().reshape(-1)
    store = Store.of(
        {
            "0.pixels": Ragged(flat, ends * 784),
            "0.size": Ragged(np.tile(np.array([28, 28], np.int32), rows), ends * 2),
            "t.pixels": Ragged(flat, ends * 784),
        }
    )
    return StoreFeed(store, np.arange(rows), model, tokens=1 << 20, batch_rows=BATCH)  # type: ignore[arg-type]


def ours(pixels: Tensor, **settings: float) -> Callable[[], object]:
    """The library's loop."""
    model = net((28, 28), latent=LATENT, dim=HIDDEN, depth=1, noise="bernoulli", activation="relu")
    plan = Plan(steps=1_000_000, lr=1e-3, warmup=10, **settings)  # type: ignore[arg-type]
    trainer = Trainer(model, plan, feed(model, pixels), None, Quiet())

    def epoch() -> None:
        trainer.run(until=trainer.progress.step + STEPS)

    return epoch


def lightning(pixels: Tensor) -> Callable[[], object]:
    """Lightning with a DataLoader."""
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Plain()

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss = self.net.loss(batch[0])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

    loader = DataLoader(TensorDataset(pixels / 255), batch_size=BATCH, shuffle=True)
    module = Module()

    def epoch() -> None:
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader)

    return epoch


def pythae(pixels: Tensor) -> Callable[[], object]:
    """Pythae as installed."""
    from pythae.data.datasets import BaseDataset
    from pythae.models import VAE as Theirs
    from pythae.models import VAEConfig
    from pythae.models.base.base_utils import ModelOutput
    from pythae.models.nn import BaseDecoder, BaseEncoder
    from pythae.trainers import BaseTrainer, BaseTrainerConfig

    class Encoder(BaseEncoder):
        def __init__(self) -> None:
            BaseEncoder.__init__(self)
            self.first = nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU())
            self.mu, self.spread = nn.Linear(HIDDEN, LATENT), nn.Linear(HIDDEN, LATENT)

        def forward(self, x: Tensor) -> Any:
            h = self.first(x.flatten(1))
            return ModelOutput(embedding=self.mu(h), log_covariance=self.spread(h))

    class Decoder(BaseDecoder):
        def __init__(self) -> None:
            BaseDecoder.__init__(self)
            self.both = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 784), nn.Sigmoid())

        def forward(self, z: Tensor) -> Any:
            return ModelOutput(reconstruction=self.both(z).view(-1, 1, 28, 28))

    x = (pixels / 255).view(-1, 1, 28, 28)
    data = BaseDataset(data=x, labels=torch.zeros(len(x)))
    model = Theirs(VAEConfig(input_dim=(1, 28, 28), latent_dim=LATENT, reconstruction_loss="bce"), Encoder(), Decoder())
    folder = tempfile.mkdtemp()

    def epoch() -> None:
        config = BaseTrainerConfig(
            output_dir=folder,
            num_epochs=1,
            learning_rate=1e-3,
            per_device_train_batch_size=BATCH,
            steps_saving=None,
            no_cuda=True,
        )
        trainer = BaseTrainer(model=model, train_dataset=data, training_config=config)
        trainer.prepare_training()
        trainer.train_step(epoch=1)

    return epoch


def quietly(call: Callable[[], object]) -> Callable[[], object]:
    """Without what peers print."""

    def silent() -> None:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            call()

    return silent


def main() -> None:
    """The race and its ratios."""
    torch.set_num_threads(1)
    pixels = torch.from_numpy(recipe.fashion_mnist()["image"][:ROWS].reshape(ROWS, 784))  # type: ignore[index]
    candidates: dict[str, Callable[[], object]] = {
        "limit": limit(pixels),
        "ours": ours(pixels, clip=0.0, average=0.0),
        "ours, clipped and averaged": ours(pixels),
    }
    for name, make in (("Lightning", lightning), ("pythae", pythae)):
        try:
            logging.disable(logging.WARNING)
            candidates[name] = quietly(make(pixels))
        except ImportError as error:
            print(f"{name}: left out, {error}", file=sys.stderr)
    times = {name: time.by("cpu") for name, time in race(candidates, rounds=7, budget=120).items()}
    walls = race({n: c for n, c in candidates.items() if n in ("limit", "ours")}, rounds=3, budget=20)
    rows = [
        [name, f"{1e6 * t.median / STEPS:,.0f}", *(f"{ratio:.2f}" for ratio in times["ours"].over(t))]
        for name, t in times.items()
    ]
    table(rows, ["", "µs a step (CPU, median)", "ours over it, minima", "medians"])
    print(f"wall time, ours over the limit: {walls['ours'].over(walls['limit'])[1]:.2f}")


if __name__ == "__main__":
    main()
