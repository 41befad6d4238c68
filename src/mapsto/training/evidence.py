"""What a variational autoencoder knows of each row: bounds on log p(x), and what z has to do with them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch import Tensor

from mapsto.functional.divergence import effective, ladder
from mapsto.models.mapper import Batch
from mapsto.models.vae import VAE
from mapsto.posteriors import Belief
from mapsto.stream import stream
from mapsto.training.parallel import World

__all__ = ["Evidence", "aggregate", "noise", "refine", "united", "weigh"]

LADDER = (1, 5, 50, 500)
ROOM = 1 << 22
"""Numbers of a target that are said at once, over all draws of a batch."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Evidence:
    """Of N rows, in nats.

    Attributes:
        log_likelihood: (N,) E_q[log p(x | z)], the mean over the draws.
        kl: (N,) KL(q ‖ p), in closed form where there is one, else the mean over the draws.
        kl_dims: (N, Z) its terms, where there is a closed form.
        iwae: by k, (N,).
        effective: (N,) effective sample size of the draws.
        means: (N, Z) E[z].
        sigmas: (N, Z) deviations of q.
        numbers: (N,) how many numbers or tokens x has.
    """

    log_likelihood: Floats
    kl: Floats
    kl_dims: Floats | None
    iwae: Mapping[int, Floats]
    effective: Floats
    means: Floats
    sigmas: Floats
    numbers: Floats

    @classmethod
    def of(cls, arrays: Mapping[str, Floats]) -> "Evidence":
        """From what :meth:`arrays` gave."""
        iwae = {int(name.removeprefix("iwae ")): array for name, array in arrays.items() if name.startswith("iwae ")}
        plain = {field.name: arrays.get(field.name) for field in fields(cls)}
        return cls(**(plain | {"iwae": iwae}))  # type: ignore[arg-type]

    def arrays(self) -> dict[str, Floats]:
        """All of them by name, the ladder's as ``iwae K``."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "iwae"}
        there = {name: array for name, array in named.items() if array is not None}
        return there | {f"iwae {k}": array for k, array in self.iwae.items()}

    @property
    def elbo(self) -> Floats:
        """(N,) at β = 1."""
        return self.log_likelihood - self.kl

    @property
    def active(self) -> int:
        """How many dimensions have Var_x(E_q[z_j]) > 0.01 (Burda et al., 2016)."""
        return int((self.means.var(0) > 0.01).sum())

    @property
    def paid(self) -> int | None:
        """How many dimensions have a KL above 0.1 nat on average."""
        return None if self.kl_dims is None else int((self.kl_dims.mean(0) > 0.1).sum())

    def summary(self, *, bin: float = 0.0) -> dict[str, Any]:
        """The metrics of all rows.

        Args:
            bin: the width of a level in the units of the density, such as 1/255; 0 for discrete data.
        """
        most = max(self.iwae)
        nats = -self.iwae[most]
        bits = (nats / self.numbers - (math.log(bin) if bin else 0.0)) / math.log(2)
        return {
            "elbo": float(self.elbo.mean()),
            "reconstruction": -float(self.log_likelihood.mean()),
            "kl": float(self.kl.mean()),
            "nll": float(nats.mean()),
            "iwae": {str(k): float(v.mean()) for k, v in self.iwae.items()},
            "effective": float(self.effective.mean()),
            "bits_per_dim": float(bits.mean()),
            "active_units": self.active,
        }


def noise(seed: int, rows: Sequence[int] | NDArray[np.int64], samples: int, latent: int) -> Float[Tensor, "S B Z"]:
    """Normal numbers of which each row has its own, whatever rows it stands beside (law B)."""
    found = [torch.randn(samples, latent, generator=stream(seed, "evidence", int(row))) for row in rows]
    return torch.stack(found, 1) if found else torch.zeros(samples, 0, latent)


@torch.inference_mode()
def weigh(
    model: VAE,
    batches: Iterable[tuple[Sequence[int] | NDArray[np.int64], Batch]],
    *,
    ks: Sequence[int] = LADDER,
    seed: int = 0,
    room: int = ROOM,
) -> Evidence:
    """Bounds of every row from as many draws as the largest k.

    Args:
        model: in eval mode.
        batches: with their targets, and a number of each row that its noise is drawn from.
        ks: of the ladder; of the same draws IWAE-k never falls where each k divides the next.
        seed: of the noise.
        room: numbers or tokens of the target that are said at once: draws of a batch are parted so that memory is enough.
    """
    ks, device = sorted(ks), next(model.parameters()).device
    kinds = next(model.parameters()).dtype
    parts: dict[str, list[Tensor]] = {}

    def keep(**found: Tensor | None) -> None:
        for name, value in found.items():
            if value is not None:
                parts.setdefault(name, []).append(value.double().cpu())

    for rows, batch in batches:
        belief = model.believe(batch)
        drawn = noise(seed, rows, ks[-1], model.latent).to(device, kinds)
        count = model.decoder.output.count(batch["target"], belief.mean[..., 0])
        at_once = max(1, int(room / max(1.0, float(count.sum()))))
        found = [model.weigh(batch, part, belief) for part in drawn.split(at_once)]
        weights = torch.cat([f.log_weights for f in found]).double()
        likelihood = torch.cat([f.log_likelihood for f in found]).double().mean(0)
        mean = torch.cat([f.log_q - f.log_prior for f in found]).double().mean(0)
        kl = found[0].kl
        keep(
            log_likelihood=likelihood,
            kl=mean if kl is None else kl.double().sum(-1),
            kl_dims=kl,
            effective=effective(weights),
            means=belief.mean,
            sigmas=belief.sigma,
            numbers=count,
            **{f"iwae {k}": ladder(weights, k) for k in ks},
        )
    return Evidence.of({name: torch.cat(found).numpy() for name, found in parts.items()})


def united(found: Evidence, order: Sequence[NDArray[np.int64]], world: World) -> Evidence:
    """The evidence of all rows from that of each process's batches, in the order of the batches.

    Args:
        found: of this process's turns, those beyond the batches included.
        order: the rows of every batch.
        world: who had which.
    """
    if world.size == 1:
        return found
    starts = np.concatenate([[0], np.cumsum([len(rows) for rows in order])])
    places = [
        np.concatenate(
            [np.zeros(0, np.int64), *(np.arange(starts[n], starts[n + 1]) for n in range(r, len(order), world.size))]
        )
        for r in range(world.size)
    ]
    own = {name: np.ascontiguousarray(a[: len(places[world.rank])]) for name, a in found.arrays().items()}
    parts = [load(data) for data in world.share(save(own))]
    whole: dict[str, Floats] = {}
    for at, part in zip(places, parts, strict=True):
        for name, array in part.items():
            whole.setdefault(name, np.zeros((int(starts[-1]), *array.shape[1:])))[at] = array
    return Evidence.of(whole)


def refine(model: VAE, batch: Batch, *, steps: int = 200, lr: float = 0.02, samples: int = 8, seed: int = 0) -> Belief:
    """The best q of each row by itself: θ moved from where the encoder puts it, to raise the row's own ELBO.

    The difference in ELBO to the encoder's q is the amortisation gap; what is left to log p(x) is the approximation gap of
    the kind of posterior.

    Args:
        model: in eval mode; none of its weights changes.
        batch: with its target.
        steps: of Adam, its rate falling to zero.
        lr: its first rate.
        samples: draws a step.
        seed: of the draws.

    Reference: Cremer, Li and Duvenaud, Inference suboptimality in variational autoencoders, 2018.
    """
    with torch.no_grad():
        theta = model.theta(batch).clone()
    theta.requires_grad_()
    adam = torch.optim.Adam([theta], lr=lr)
    likelihood = model.target[0].likelihood
    for step in range(steps):
        adam.param_groups[0]["lr"] = lr * (1 - step / steps)
        source = stream(seed, "refine", step, device=theta.device)
        shape = (samples, len(theta), model.latent)
        drawn = torch.randn(shape, generator=source, dtype=theta.dtype, device=theta.device)
        with torch.enable_grad():
            found = model.weigh(batch, drawn, likelihood(theta))
            loss = (found.divergence - found.log_likelihood.mean(0)).sum()
            (theta.grad,) = torch.autograd.grad(loss, theta)
        adam.step()
    return likelihood(theta.detach())  # type: ignore[no-any-return]


@torch.inference_mode()
def aggregate(model: VAE, means: Float[Tensor, "N Z"], sigmas: Float[Tensor, "N Z"], *, seed: int = 0) -> float:
    """KL(q(z) ‖ p(z)) of the mean belief q(z) = 1/N Σ_n q(z | x_n), with each q(z | x_n) taken as N(μ_n, diag σ_n²).

    One draw z_n of each; log q(z_n) from all N. The mean KL of the rows, less this, is the mutual information of x and z
    (at most log N of it can be seen). O(N² Z).

    Reference: Hoffman and Johnson, ELBO surgery, 2016.
    """
    drawn = torch.randn(means.shape, generator=stream(seed, "aggregate"), dtype=means.dtype)
    z, total = means + sigmas * drawn, means.new_zeros(())
    constant = torch.log(sigmas).sum(1) + 0.5 * means.shape[1] * math.log(2 * math.pi)
    for part in z.split(max(1, ROOM // max(1, means.numel()))):
        apart = ((part[:, None] - means) / sigmas).square().sum(-1)
        log_q = (-0.5 * apart - constant).logsumexp(1) - math.log(len(means))
        total = total + (log_q - model.prior.log_prob(part.to(next(model.parameters()).dtype)).to(log_q)).sum()
    return float(total) / max(1, len(means))
