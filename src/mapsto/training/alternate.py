"""Variational EM in turns: what is believed of z is learned while the model stands still, and the model while that does."""

from collections.abc import Iterator, Sequence
from itertools import cycle

import torch
from torch import Tensor, nn

from mapsto.models.mapper import Batch
from mapsto.models.vae import VAE
from mapsto.stream import stream

__all__ = ["alternate"]


def alternate(
    model: VAE,
    batches: Sequence[Batch],
    *,
    e_steps: int = 5,
    m_steps: int = 5,
    lr: float = 1e-3,
    samples: int = 1,
    seed: int = 0,
) -> Iterator[tuple[str, float]]:
    """Both halves of variational EM by gradient, in turns, for ever.

    The ELBO is ℒ(φ, θ) = E_q[log p(x, z) − log q(z | x)]. An E-step raises it in φ, the encoder's, with θ fixed: q comes nearer
    to p(z | x), for log p(x) stays. An M-step raises it in θ, the decoder's and the prior's, with q fixed. ``mapsto train``
    moves both at once, which needs fewer steps; more E-steps let q follow better, more M-steps let the model move farther.

    Args:
        model: its encoder, decoder and prior are changed.
        batches: taken in turn, with targets.
        e_steps: of Adam on φ, before
        m_steps: on θ.
        lr: of both.
        samples: draws of z a row.
        seed: of the draws.

    Yields:
        "E" or "M", and the mean ELBO a row of its last batch before its last step.

    Reference: Neal and Hinton, A view of the EM algorithm that justifies incremental, sparse, and other variants, 1998.
    """
    halves: dict[str, tuple[list[nn.Parameter], int]] = {
        "E": (list(model.encoder.parameters()), e_steps),
        "M": ([*model.decoder.parameters(), *model.prior.parameters()], m_steps),
    }
    adams = {name: torch.optim.Adam(parameters, lr=lr) for name, (parameters, _) in halves.items()}
    turns, step = cycle(batches), 0
    model.train()
    while True:
        for name, (parameters, steps) in halves.items():
            value = float("nan")
            for _ in range(steps):
                elbo = _elbo(model, next(turns), samples, seed, step)
                for p, slope in zip(parameters, torch.autograd.grad(-elbo, parameters, allow_unused=True), strict=True):
                    p.grad = slope
                adams[name].step()
                value, step = float(elbo.detach()), step + 1
            yield name, value


def _elbo(model: VAE, batch: Batch, samples: int, seed: int, step: int) -> Tensor:
    """The mean over the rows."""
    for rework in model.rework:
        batch = rework(batch)
    belief = model.believe(batch)
    drawn = torch.randn(samples, *belief.mean.shape, generator=stream(seed, "alternate", step), dtype=belief.mean.dtype)
    return model.weigh(batch, drawn.to(belief.mean.device), belief).elbo.mean()
