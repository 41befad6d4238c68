"""Markov chains whose limit is a given distribution, and the evidence by annealing.

Many chains run side by side: z is (C, Z), a log-density takes (C, Z) and gives (C,), up to a constant unless said otherwise.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["Annealed", "anneal", "gibbs", "hamiltonian", "metropolis", "tune"]

Density = Callable[[Float[Tensor, "C Z"]], Float[Tensor, " C"]]


def metropolis(
    log_density: Density, z: Float[Tensor, "C Z"], *, scale: float, stream: torch.Generator
) -> Iterator[tuple[Float[Tensor, "C Z"], Bool[Tensor, " C"]]]:
    """Random-walk Metropolis–Hastings, for ever: the chains after each step, and which of them moved.

    Proposes z' = z + ``scale`` · ε with ε ~ N(0, I), and takes it with probability min(1, p(z') / p(z)).

    Reference: Metropolis et al., Equation of state calculations by fast computing machines, 1953; Hastings, 1970.
    """
    now = log_density(z)
    while True:
        step = torch.randn(z.shape, generator=stream, dtype=torch.float64, device=z.device).to(z.dtype)
        proposed = z + scale * step
        then = log_density(proposed)
        moved = _accepted(then - now, stream)
        z, now = torch.where(moved[:, None], proposed, z), torch.where(moved, then, now)
        yield z, moved


def hamiltonian(
    log_density: Density, z: Float[Tensor, "C Z"], *, scale: float, leaps: int, stream: torch.Generator
) -> tuple[Float[Tensor, "C Z"], Bool[Tensor, " C"]]:
    """One step of Hamiltonian Monte Carlo: ``leaps`` leapfrog steps of length ``scale``.

    A momentum p ~ N(0, I) is drawn, the system H = −log p(z) + ½|p|² moves, and where it ends is taken with probability
    min(1, exp(H − H')). Gives the chains and which of them moved.

    Reference: Neal, MCMC using Hamiltonian dynamics, 2011.
    """

    def slope(at: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = at.detach().requires_grad_()
            value = log_density(at)
            (gradient,) = torch.autograd.grad(value.sum(), at)
        return value.detach(), gradient

    p = torch.randn(z.shape, generator=stream, dtype=torch.float64, device=z.device).to(z.dtype)
    value, gradient = slope(z)
    before = value - 0.5 * p.square().sum(1)
    at = z
    for _ in range(leaps):
        p = p + 0.5 * scale * gradient
        at = at + scale * p
        value, gradient = slope(at)
        p = p + 0.5 * scale * gradient
    moved = _accepted(value - 0.5 * p.square().sum(1) - before, stream)
    return torch.where(moved[:, None], at, z), moved


def gibbs(
    draws: Sequence[Callable[[Float[Tensor, "C Z"], torch.Generator], Tensor]],
    z: Float[Tensor, "C Z"],
    *,
    stream: torch.Generator,
) -> Iterator[Float[Tensor, "C Z"]]:
    """Gibbs sampling, for ever: the chains after each sweep, in which every coordinate is drawn from p(z_j | the others).

    Args:
        draws: for each coordinate j, (z, stream) ↦ (C,) draws of z_j given all others.
        z: where to start.
        stream: of the draws.

    Reference: Geman and Geman, Stochastic relaxation, Gibbs distributions, and the Bayesian restoration of images, 1984.
    """
    while True:
        for j, draw in enumerate(draws):
            z = z.clone()
            z[:, j] = draw(z, stream)
        yield z


@dataclass(frozen=True)
class Annealed:
    """What annealing found.

    Attributes:
        z: (C, Z) where the chains ended.
        log_weight: (C,) log w. Forwards E[w] = p(x), so the mean of log w is a lower bound on log p(x); backwards, from exact
            draws of the posterior, E[1/w] = 1/p(x), so it is an upper one.
        moved: the share of proposals taken.
    """

    z: Float[Tensor, "C Z"]
    log_weight: Float[Tensor, " C"]
    moved: float


def anneal(
    log_prior: Density,
    log_likelihood: Density,
    z: Float[Tensor, "C Z"],
    *,
    lengths: Sequence[float],
    stream: torch.Generator,
    backward: bool = False,
    leaps: int = 10,
) -> Annealed:
    """Annealed importance sampling from p(z) to p(z | x), through p_t(z) ∝ p(z) p(x | z)^β_t, t = 0 … T.

    Forwards, log w = Σ_t (β_t − β_{t−1}) log p(x | z_{t−1}), and z_t follows from z_{t−1} by one step of :func:`hamiltonian`
    with p_t. Backwards the same steps are taken in the opposite order. β rises from 0 to 1 as a sigmoid, slowest at its ends.

    Args:
        log_prior: log p(z), with its constant.
        log_likelihood: log p(x | z).
        z: draws of the prior; backwards, exact draws of the posterior.
        lengths: of a leap at t = 1 … T (:func:`tune` finds good ones from other draws).
        stream: of all draws.
        backward: from the posterior to the prior (bidirectional Monte Carlo).
        leaps: of one Hamiltonian step.

    Reference: Neal, Annealed importance sampling, 2001; Grosse, Ghahramani and Adams, Sandwiching the marginal likelihood
    using bidirectional Monte Carlo, 2015; Wu et al., On the quantitative analysis of decoder-based generative models, 2017.
    """
    steps = len(lengths)
    beta, log_weight, taken = _rise(steps), z.new_zeros(len(z)), 0.0

    def move(z: Tensor, t: int) -> Tensor:
        nonlocal taken
        density = _between(log_prior, log_likelihood, beta[t])
        z, moved = hamiltonian(density, z, scale=lengths[t - 1], leaps=leaps, stream=stream)
        taken += float(moved.double().mean()) / steps
        return z

    for t in range(steps, 0, -1) if backward else range(1, steps + 1):
        if backward:
            z = move(z, t)
        log_weight = log_weight + (beta[t] - beta[t - 1]) * log_likelihood(z).detach()
        if not backward:
            z = move(z, t)
    return Annealed(z, log_weight, taken)


def tune(
    log_prior: Density,
    log_likelihood: Density,
    z: Float[Tensor, "C Z"],
    *,
    steps: int,
    stream: torch.Generator,
    leaps: int = 10,
    start: float = 0.1,
) -> list[float]:
    """Lengths of leaps for :func:`anneal`, of which about two thirds of the proposals are taken.

    Args:
        log_prior: log p(z).
        log_likelihood: log p(x | z).
        z: draws of the prior other than those to be annealed: weights are unbiased for lengths that do not depend on them.
        steps: T.
        stream: of all draws.
        leaps: of one Hamiltonian step.
        start: the first length.
    """
    beta, length, found = _rise(steps), start, list[float]()
    for t in range(1, steps + 1):
        density = _between(log_prior, log_likelihood, beta[t])
        z, moved = hamiltonian(density, z, scale=length, leaps=leaps, stream=stream)
        found.append(length)
        length *= math.exp(0.2 * (float(moved.double().mean()) - 0.65))
    return found


def _rise(steps: int) -> list[float]:
    rise = torch.sigmoid(4 * torch.linspace(-1, 1, steps + 1, dtype=torch.float64))
    return ((rise - rise[0]) / (rise[-1] - rise[0])).tolist()  # type: ignore[no-any-return]


def _between(log_prior: Density, log_likelihood: Density, beta: float) -> Density:
    return lambda z: log_prior(z) + beta * log_likelihood(z)


def _accepted(log_ratio: Float[Tensor, " C"], stream: torch.Generator) -> Bool[Tensor, " C"]:
    """With probability min(1, e^r); never where r is NaN."""
    u = torch.rand(log_ratio.shape, generator=stream, dtype=torch.float64, device=log_ratio.device)
    return torch.log(u) < log_ratio.double()
