"""What a variational autoencoder maximises: bounds on log p(x), and what is left of them without KL."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mapsto.errors import ConfigError
from mapsto.functional.divergence import iwae

__all__ = ["Bound", "Capacity", "Elbo", "Iwae", "Reconstruction", "Weighed"]

Free = Callable[[Float[Tensor, "B Z"]], Float[Tensor, " B"]]


@dataclass(frozen=True)
class Weighed:
    """What is known of S draws of z for each row.

    Attributes:
        log_likelihood: (S, B) log p(x | z).
        log_prior: (S, B) log p(z).
        log_q: (S, B) log q(z | x).
        kl: (B, Z) terms that add up to KL(q ‖ p), where there is a closed form.
    """

    log_likelihood: Float[Tensor, "S B"]
    log_prior: Float[Tensor, "S B"]
    log_q: Float[Tensor, "S B"]
    kl: Float[Tensor, "B Z"] | None

    @property
    def log_weights(self) -> Float[Tensor, "S B"]:
        """Log w = log p(x | z) + log p(z) − log q(z | x)."""
        return self.log_likelihood + self.log_prior - self.log_q

    @property
    def divergence(self) -> Float[Tensor, " B"]:
        """KL(q ‖ p) in closed form, or the mean over the draws of log q(z) − log p(z)."""
        return (self.log_q - self.log_prior).mean(0) if self.kl is None else self.kl.sum(-1)

    @property
    def elbo(self) -> Float[Tensor, " B"]:
        """The mean over the draws of log p(x | z), less the KL, at β = 1."""
        return self.log_likelihood.mean(0) - self.divergence


class Bound(ABC):
    """The contract: the terms of a loss, each (B,), and their weights.

    Attributes:
        samples: S, how many z are drawn for each row.
        drawn: whether they are drawn; else z is the mean of the belief.
        weighs: whether it asks for log p(z) and log q(z | x) of the draws where the KL has a closed form, too.
    """

    samples: int = 1
    drawn: bool = True
    weighs: bool = False

    @abstractmethod
    def terms(self, found: Weighed, step: int) -> tuple[dict[str, Float[Tensor, " B"]], dict[str, float]]:
        """To minimise, at an optimiser step counted from 0."""


def rise(step: int, warmup: int) -> float:
    """min(1, (t + 1) / warmup): from 0 to 1 with the optimiser's steps."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


class Elbo(Bound):
    """E_q[log p(x | z)] − β(t) KL(q(z | x) ‖ p(z)), with β(t) = β min(1, (t + 1) / warmup).

    The KL is in closed form where there is one. Only at β = 1, free of free bits, is this a bound on log p(x) that can be
    compared; what is reported is always that.

    Args:
        samples: S.
        beta: β.
        warmup: steps until β(t) is β; cut to the run's length by whoever plans the run.
        free: what the KL costs, from its (B, Z) terms; their sum by default. ``partial(free_dims, nats=0.1)`` and so on
            (:mod:`mapsto.functional.divergence`).

    Reference: Kingma and Welling, 2014; warm-up: Bowman et al., Generating sentences from a continuous space, 2016.
    """

    def __init__(self, *, samples: int = 1, beta: float = 1.0, warmup: int = 0, free: Free | None = None):
        if samples < 1 or beta < 0 or warmup < 0:
            raise ConfigError(
                f"bound: samples={samples}, beta={beta}, warmup={warmup}; expected 1 or more, and none below 0"
            )
        self.samples, self.beta, self.warmup, self.free = samples, beta, warmup, free

    def weight(self, step: int) -> float:
        """β(t)."""
        return self.beta * rise(step, self.warmup)

    def terms(self, found: Weighed, step: int) -> tuple[dict[str, Tensor], dict[str, float]]:
        """``reconstruction`` and ``kl``."""
        kl = found.divergence
        if self.free is not None:
            if found.kl is None:
                raise ConfigError(
                    "bound: free bits need the KL of each dimension.   Use a normal posterior and the standard prior"
                )
            kl = self.free(found.kl)
        return {"reconstruction": -found.log_likelihood.mean(0), "kl": kl}, {"kl": self.weight(step)}


class Capacity(Bound):
    """E_q[log p(x | z)] − β |KL(q(z | x) ‖ p(z)) − C(t)| of each row, with C(t) = C min(1, (t + 1) / warmup).

    The KL is driven to C nats, from either side: what is let through is said beforehand, and rises slowly. This is no bound
    on log p(x).

    Args:
        nats: C.
        beta: β.
        warmup: steps until C(t) is C.

    Reference: Burgess et al., Understanding disentangling in β-VAE, 2018.
    """

    def __init__(self, nats: float, *, beta: float = 1.0, warmup: int = 0):
        if not nats >= 0 or beta < 0 or warmup < 0:
            raise ConfigError(f"bound: a capacity of {nats} nats, beta={beta}, warmup={warmup}; expected none below 0")
        self.nats, self.beta, self.warmup = nats, beta, warmup

    def terms(self, found: Weighed, step: int) -> tuple[dict[str, Tensor], dict[str, float]]:
        """``reconstruction`` and ``capacity``."""
        wanted = self.nats * rise(step, self.warmup)
        off = (found.divergence - wanted).abs()
        return {"reconstruction": -found.log_likelihood.mean(0), "capacity": off}, {"capacity": self.beta}


class Iwae(Bound):
    """log (1/k) Σ_s w_s of k draws: nearer to log p(x) than the ELBO, in expectation, for every k > 1.

    Args:
        samples: k.

    Reference: Burda, Grosse and Salakhutdinov, Importance weighted autoencoders, 2016.
    """

    weighs = True

    def __init__(self, samples: int = 5):
        if samples < 1:
            raise ConfigError(f"bound: {samples} samples; expected 1 or more")
        self.samples = samples

    def terms(self, found: Weighed, step: int) -> tuple[dict[str, Tensor], dict[str, float]]:
        """``iwae``."""
        return {"iwae": -iwae(found.log_weights)}, {}


class Reconstruction(Bound):
    """log p(x | z) at the mean of q: a plain autoencoder. No bound on anything: nothing keeps z where the prior is."""

    drawn = False

    def terms(self, found: Weighed, step: int) -> tuple[dict[str, Tensor], dict[str, float]]:
        """``reconstruction``."""
        return {"reconstruction": -found.log_likelihood.mean(0)}, {}
