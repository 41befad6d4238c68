"""How far a belief is from another, and the bounds on the evidence log p(x) that beliefs give.

Nats a datum, (...,) or (B,); sums run over the dimensions of an event, means over data are left to whoever calls. Samples
come first: log-weights are log w_s = log p(x, z_s) − log q(z_s | x), (S, B). A bound is larger the better; a KL and what is
made of one are never below zero.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "capacity",
    "effective",
    "elbo",
    "free_batch",
    "free_dims",
    "free_total",
    "iwae",
    "kl_cholesky",
    "kl_normal",
    "kl_normals",
    "kl_uniform",
    "ladder",
]


def kl_normal(mu: Float[Tensor, "... Z"], sigma: Float[Tensor, "... Z"]) -> Float[Tensor, "..."]:
    """KL(N(μ, diag σ²) ‖ N(0, I)) = ½ Σ_j (μ_j² + σ_j² − log σ_j² − 1).

    Example:
        >>> kl_normal(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 2.0]))
        tensor(3.6250)

    Reference: Kingma and Welling, Auto-encoding variational Bayes, 2014, appendix B.
    """
    return dims_normal(mu, sigma).sum(-1)


def dims_normal(
    mu: Float[Tensor, "... Z"], sigma: Float[Tensor, "... Z"], log_sigma: Float[Tensor, "... Z"] | None = None
) -> Float[Tensor, "... Z"]:
    """The same, dimension by dimension: ½ (μ_j² + σ_j² − log σ_j² − 1); log σ may be given where it is known."""
    return 0.5 * (mu * mu + sigma * sigma - 1) - (torch.log(sigma) if log_sigma is None else log_sigma)


def kl_normals(
    mu: Float[Tensor, "... Z"],
    sigma: Float[Tensor, "... Z"],
    mean: Float[Tensor, "... Z"],
    scale: Float[Tensor, "... Z"],
) -> Float[Tensor, "..."]:
    """KL(N(μ, diag σ²) ‖ N(m, diag s²)) = Σ_j [log(s_j/σ_j) + (σ_j² + (μ_j − m_j)²) / (2 s_j²) − ½].

    Example:
        >>> one = torch.ones(1)
        >>> kl_normals(one, 0.5 * one, -one, 2 * one)
        tensor(1.4175)
    """
    apart = (mu - mean) / scale
    ratio = sigma / scale
    return (0.5 * (ratio * ratio + apart * apart - 1) - torch.log(ratio)).sum(-1)


def kl_cholesky(mu: Float[Tensor, "... Z"], factor: Float[Tensor, "... Z Z"]) -> Float[Tensor, "..."]:
    """KL(N(μ, LLᵀ) ‖ N(0, I)) = ½ (|μ|² + |L|² − Z) − Σ_j log L_jj, L lower triangular with a positive diagonal."""
    return dims_cholesky(mu, factor).sum(-1)


def dims_cholesky(mu: Float[Tensor, "... Z"], factor: Float[Tensor, "... Z Z"]) -> Float[Tensor, "... Z"]:
    """The same, dimension by dimension: ½ (μ_j² + Σ_k L_jk² − 1) − log L_jj.

    By the chain rule it is KL(q(z_j | z_<j) ‖ N(0, 1)), on average over q.
    """
    log_diagonal = torch.log(torch.diagonal(factor, dim1=-2, dim2=-1))
    return 0.5 * (mu.square() + factor.square().sum(-1) - 1) - log_diagonal


def kl_uniform(logits: Float[Tensor, "... K"]) -> Float[Tensor, "..."]:
    """KL(Cat(p) ‖ uniform over K classes) = log K − H(p), with p = softmax(logits).

    Example:
        >>> kl_uniform(torch.tensor([0.7, 0.2, 0.1]).log())
        tensor(0.2968)
    """
    log_p = torch.log_softmax(logits, -1)
    p = log_p.exp()
    return math.log(logits.shape[-1]) + torch.where(p > 0, p * log_p, 0).sum(-1)


def elbo(log_likelihood: Float[Tensor, "..."], kl: Float[Tensor, "..."], beta: float = 1.0) -> Float[Tensor, "..."]:
    """E_q[log p(x | z)] − β KL(q(z | x) ‖ p(z)): at most log p(x) for β ≥ 1, and equal to it if q is the posterior, β = 1.

    Reference: Kingma and Welling, 2014; β: Higgins et al., beta-VAE, 2017.
    """
    return log_likelihood - beta * kl


def iwae(log_weights: Float[Tensor, "S B"]) -> Float[Tensor, " B"]:
    """Log (1/S) Σ_s w_s: a bound on log p(x) that never falls, in expectation, with S; S = 1 is the ELBO of one sample.

    Example:
        >>> iwae(torch.tensor([[0.0], [math.log(3)]])).exp()
        tensor([2.])

    Reference: Burda, Grosse and Salakhutdinov, Importance weighted autoencoders, 2016.
    """
    return log_weights.logsumexp(0) - math.log(log_weights.shape[0])


def ladder(log_weights: Float[Tensor, "S B"], k: int) -> Float[Tensor, " B"]:
    """IWAE-k from S ≥ k samples: the mean over the ⌊S/k⌋ groups of k of log (1/k) Σ_s w_s.

    Of the same samples it never falls as k doubles, as long as S is a multiple of 2k: log is concave. k = S is :func:`iwae`,
    k = 1 the mean log-weight, which is the Monte Carlo ELBO.
    """
    groups = log_weights.shape[0] // k
    return (log_weights[: groups * k].unflatten(0, (groups, k)).logsumexp(1) - math.log(k)).mean(0)


def effective(log_weights: Float[Tensor, "S B"]) -> Float[Tensor, " B"]:
    """Effective sample size (Σ_s w_s)² / Σ_s w_s², from 1 (one sample has all the weight) to S (all weigh alike).

    Reference: Kong, Liu and Wong, Sequential imputations and Bayesian missing data problems, 1994.
    """
    return 1 / torch.softmax(log_weights, 0).square().sum(0)


def free_batch(kl: Float[Tensor, "B Z"], nats: float) -> Float[Tensor, " B"]:
    """Free bits of a dimension over a batch: the mean over B of what it gives is Σ_j max(λ, mean_b KL_bj).

    A dimension whose mean KL is below λ costs λ and has no gradient. What is open is a matter of the whole batch, so that
    cutting a step into parts changes this one, alone of the three.

    Example:
        >>> kl = torch.tensor([[0.05, 3.0], [0.6, 0.1]])
        >>> [round(float(free(kl, nats).mean()), 4) for free, nats in ((free_batch, 0.5), (free_dims, 0.5), (free_total, 1))]
        [2.05, 2.3, 2.025]

    Reference: Kingma et al., Improved variational inference with inverse autoregressive flow, 2016.
    """
    return torch.where(kl.mean(0) > nats, kl, nats).sum(-1)


def free_dims(kl: Float[Tensor, "B Z"], nats: float) -> Float[Tensor, " B"]:
    """Free bits of a dimension of a datum: Σ_j max(λ, KL_bj)."""
    return kl.clamp(min=nats).sum(-1)


def free_total(kl: Float[Tensor, "B Z"], nats: float) -> Float[Tensor, " B"]:
    """Free bits of a datum: max(λ, Σ_j KL_bj)."""
    return kl.sum(-1).clamp(min=nats)


def capacity(kl: Float[Tensor, " B"], nats: float) -> Float[Tensor, " B"]:
    """|KL − C|: what is paid for saying more, or less, than C nats. C is raised in the course of training.

    Reference: Burgess et al., Understanding disentangling in beta-VAE, 2018.
    """
    return (kl - nats).abs()
