"""What one answer is asked for: a label, several labels, or numbers. Each is a likelihood with a linear head."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from mapsto import kinds
from mapsto.errors import ConfigError, DataError, did_you_mean
from mapsto.likelihoods import Likelihood, wide
from mapsto.likelihoods.bernoulli import BernoulliLikelihood
from mapsto.likelihoods.categorical import CategoricalLikelihood
from mapsto.likelihoods.gaussian import GaussianLikelihood
from mapsto.nn.counted import CountedLikelihood, counts
from mapsto.nn.loss import Loss
from mapsto.posteriors import Posterior
from mapsto.vocabulary import Vocabulary, learn_column

__all__ = ["TARGETS", "LabelTarget", "LabelsTarget", "LatentTarget", "NumberTarget", "Target", "TokenTarget"]


class Target(nn.Module, ABC):
    """The contract: raw value ↦ event array, answer ↦ θ, and back to what a user reads.

    Attributes:
        kind: its name in files and on the command line.
        likelihood: of one event.
        head: D numbers ↦ θ.
    """

    kind: ClassVar[str]
    likelihood: Likelihood
    head: nn.Linear

    @classmethod
    @abstractmethod
    def measure(cls, values: Iterable[Any]) -> dict[str, Any]:
        """The constructor's arguments but ``dim``, as JSON, from the training rows' values (one event each)."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What :meth:`measure` gave."""

    @abstractmethod
    def encode(self, value: Any) -> NDArray:
        """One event as an array."""

    def forward(self, answers: Float[Tensor, "B L D"]) -> Float[Tensor, "B L width"]:
        """θ of every answer."""
        return self.head(answers)

    def log_likelihood(self, theta: Float[Tensor, "B L width"], event: Tensor) -> Float[Tensor, "B L"]:
        """Log p(event | θ) in nats, in the user's own units."""
        return self.likelihood.log_prob(theta, event)

    def extra(self, theta: Float[Tensor, "B L width"]) -> dict[str, Float[Tensor, "B L"]]:
        """Further terms of the loss, by name."""
        return {}

    def loss(
        self, name: str, theta: Float[Tensor, "B L width"], events: Tensor, hole: Bool[Tensor, "B L"], smoothing: float
    ) -> Loss:
        """NLL summed over a row's events, counted by events, so that long rows weigh as much as they hold.

        Args:
            name: of the term.
            theta: of every event; finite where there is none.
            events: likewise.
            hole: where there is no event.
            smoothing: s: further terms weigh s together, the NLL 1 - s.
        """
        log_p = self.likelihood.log_prob(theta, events)
        terms = {name: -log_p.masked_fill(hole, 0).sum(1)}
        weights = {}
        if smoothing:
            for extra, term in self.extra(theta).items():
                terms[f"{name}.{extra}"] = term.masked_fill(hole, 0).sum(1)
                weights = {name: 1 - smoothing, f"{name}.{extra}": smoothing}
        return Loss(terms, weights, (~hole).sum(1).to(log_p.dtype))

    @abstractmethod
    def predict(self, theta: Float[Tensor, "B L width"]) -> dict[str, NDArray]:
        """Arrays (B, L, ...) by name: what to say, and how sure."""


class LabelTarget(Target):
    """One of the labels seen in training; θ are their log-odds."""

    kind = "label"

    def __init__(self, dim: int, *, classes: list[str]):
        super().__init__()
        self.classes = classes
        self.likelihood = CategoricalLikelihood(len(classes))
        self.head = nn.Linear(dim, len(classes))
        self._ids = {c: i for i, c in enumerate(classes)}

    @classmethod
    def measure(cls, values: Iterable[Any]) -> dict[str, Any]:
        """Labels in order: as numbers if they all are, else as text."""
        classes = sorted(set(values), key=_natural)
        if len(classes) < 2:
            raise DataError(
                f"only one label in the training rows: {classes}.   A classifier needs at least two"
                if classes
                else "no label in the training rows"
            )
        return {"classes": classes}

    def settings(self) -> dict[str, Any]:
        """The labels."""
        return {"classes": self.classes}

    def encode(self, value: str) -> NDArray:
        """The label's number."""
        if value not in self._ids:
            raise DataError(
                f'label "{value}" never occurs in the training rows ({_some(self.classes)}).'
                f"{did_you_mean(value, self.classes)}"
            )
        return np.array(self._ids[value], np.int64)

    def extra(self, theta: Float[Tensor, "B L C"]) -> dict[str, Float[Tensor, "B L"]]:
        """Label smoothing: the mean of −log p over all classes."""
        return {"smoothing": uniform(theta)}

    def predict(self, theta: Float[Tensor, "B L C"]) -> dict[str, NDArray]:
        """``log_probability`` (B, L, C) and ``value`` (B, L), the most probable class's number."""
        log_p = torch.log_softmax(theta.float(), -1)
        return {"log_probability": log_p.cpu().numpy(), "value": log_p.argmax(-1).cpu().numpy()}


class LabelsTarget(Target):
    """Any number of labels at once; θ are the log-odds of each."""

    kind = "labels"

    def __init__(self, dim: int, *, classes: list[str]):
        super().__init__()
        self.classes = classes
        self.likelihood = BernoulliLikelihood(len(classes))
        self.head = nn.Linear(dim, len(classes))
        self._ids = {c: i for i, c in enumerate(classes)}

    @classmethod
    def measure(cls, values: Iterable[Any]) -> dict[str, Any]:
        """All labels that occur."""
        classes = sorted({label for labels in values for label in labels}, key=_natural)
        if not classes:
            raise DataError("no label in the training rows")
        return {"classes": classes}

    def settings(self) -> dict[str, Any]:
        """The labels."""
        return {"classes": self.classes}

    def encode(self, value: list[str]) -> NDArray:
        """One 0 or 1 a label."""
        event = np.zeros(len(self.classes), np.float32)
        for label in value:
            if label not in self._ids:
                raise DataError(
                    f'label "{label}" never occurs in the training rows ({_some(self.classes)}).'
                    f"{did_you_mean(label, self.classes)}"
                )
            event[self._ids[label]] = 1
        return event

    def predict(self, theta: Float[Tensor, "B L C"]) -> dict[str, NDArray]:
        """``probability`` (B, L, C), ``log_odds``, and ``value``, which are above one half."""
        return {
            "log_odds": theta.float().cpu().numpy(),
            "probability": self.likelihood.mean(theta).cpu().numpy(),
            "value": (theta > 0).cpu().numpy(),
        }


class NumberTarget(Target):
    """One or more real numbers with a learned spread, standardised inside by the training rows' mean and scale.

    Args:
        dim: D.
        mean: of each number.
        scale: of each number.
        sigma: as of a :class:`~mapsto.likelihoods.gaussian.GaussianLikelihood`.
        counted: whether the one number is a count, and its likelihood a negative binomial distribution.
    """

    kind = "number"

    def __init__(self, dim: int, *, mean: list[float], scale: list[float], sigma: str = "dims", counted: bool = False):
        super().__init__()
        if counted and (len(mean) != 1 or not mean[0] > 0):
            raise ConfigError(f"a mean of {mean}: a count is one number from 0 on.   Use output.number=gaussian")
        self.likelihood: GaussianLikelihood | CountedLikelihood = (
            CountedLikelihood(mean[0], scale[0]) if counted else GaussianLikelihood(len(mean), sigma=sigma)
        )
        self.head = nn.Linear(dim, self.likelihood.width)
        self.mean, self.scale = np.array(mean, np.float64), np.array(scale, np.float64)
        self.sigma, self.counted = sigma, counted

    @classmethod
    def measure(cls, values: Iterable[Any]) -> dict[str, Any]:
        """Mean and standard deviation of each number, by a running sum in float64."""
        count, mean, square = 0, np.zeros(1), np.zeros(1)
        for value in values:
            x = np.atleast_1d(np.asarray(value, np.float64))
            if count == 0:
                mean, square = np.zeros_like(x), np.zeros_like(x)
            if x.shape != mean.shape:
                raise DataError(f"{x.size} numbers where the first row has {mean.size}")
            count += 1
            step = x - mean
            mean += step / count
            square += step * (x - mean)
        if count == 0:
            raise DataError("no number in the training rows")
        sigma = np.sqrt(square / count)
        if not (sigma > 0).all():
            raise DataError(f"every training row has the same number, {mean.tolist()}: there is nothing to learn")
        return {"mean": mean.tolist(), "scale": sigma.tolist()}

    def settings(self) -> dict[str, Any]:
        """Mean, scale and the kind of spread."""
        numbers = {"mean": self.mean.tolist(), "scale": self.scale.tolist()}
        return {**numbers, "sigma": self.sigma, "counted": self.counted}

    def encode(self, value: float | list[float]) -> NDArray:
        """Standardised in float64, kept in float32."""
        x = np.atleast_1d(np.asarray(value, np.float64))
        if x.shape != self.mean.shape:
            raise DataError(f"{x.size} numbers where the model was trained on {self.mean.size}")
        if self.counted and not counts(x):
            raise DataError(f"is {x[0]:g}, and counts are 0, 1, 2 and so on.   output.number=gaussian takes any number")
        return ((x - self.mean) / self.scale).astype(np.float32)

    @property
    def spread(self) -> nn.Parameter | None:
        """Of a single number whose σ is learned for all rows, the parameter: many such can be computed at once."""
        one = self.likelihood
        return one.log_sigma if isinstance(one, GaussianLikelihood) and len(self.mean) == 1 else None

    @property
    def unit(self) -> float:
        """What a density of standardised numbers is above that of the numbers themselves, in nats; of counts nothing."""
        return 0.0 if self.counted else float(np.log(self.scale).sum())

    def log_likelihood(self, theta: Float[Tensor, "B L width"], event: Tensor) -> Float[Tensor, "B L"]:
        """The density of the number itself: that of the standardised one, divided by the scale; of a count, its probability."""
        return self.likelihood.log_prob(theta, event) - self.unit

    def predict(self, theta: Float[Tensor, "B L width"]) -> dict[str, NDArray]:
        """``value`` and ``sigma``, (B, L, D) float64, in the user's units; of counts ``shape`` too."""
        value = self.likelihood.mean(theta).double().cpu().numpy() * self.scale + self.mean
        sigma = self.likelihood.sigma(theta).double().cpu().numpy() * self.scale
        found = {"value": value, "sigma": sigma}
        if isinstance(self.likelihood, CountedLikelihood):
            found["shape"] = self.likelihood.shape(theta).double().cpu().numpy()
        return found


class TokenTarget(Target):
    """The next token of a sequence; θ are its log-odds over a vocabulary."""

    kind = "token"

    def __init__(self, dim: int, *, vocabulary: Vocabulary):
        super().__init__()
        self.vocabulary = vocabulary
        self.likelihood = CategoricalLikelihood(vocabulary.size)
        self.head = nn.Linear(dim, vocabulary.size)

    @classmethod
    def measure(
        cls, values: Iterable[Any], *, vocabulary: str = "auto", size: int = 8000, least: int = 1
    ) -> dict[str, Any]:
        """Learn the vocabulary (:func:`~mapsto.vocabulary.learn_column`); of few texts, of characters."""
        return {"vocabulary": learn_column(vocabulary, values, size=size, least=least, few="characters")}

    def settings(self) -> dict[str, Any]:
        """The vocabulary."""
        return {"vocabulary": self.vocabulary}

    def encode(self, value: Any) -> NDArray:
        """The ids of a text."""
        return self.vocabulary.encode(value)

    def extra(self, theta: Float[Tensor, "B L C"]) -> dict[str, Float[Tensor, "B L"]]:
        """Label smoothing: the mean of −log p over the vocabulary."""
        return {"smoothing": uniform(theta)}

    def predict(self, theta: Float[Tensor, "B L C"]) -> dict[str, NDArray]:
        """``value`` (B, L), the likeliest token's id."""
        return {"value": theta.argmax(-1).to(torch.int32).cpu().numpy()}


class LatentTarget(Target):
    """A vector z of Z numbers, of which something is believed: the encoder of a variational autoencoder asks for it.

    Args:
        dim: D.
        latent: Z.
        posterior: a kind of belief, as it is typed: ``normal``, ``full``, ``flow:layers=4``.
    """

    kind = "latent"

    def __init__(self, dim: int, *, latent: int, posterior: str = "normal"):
        super().__init__()
        self.latent, self.posterior = latent, posterior
        self.likelihood: Posterior = kinds.make("posteriors", posterior, latent=latent)
        self.head = nn.Linear(dim, self.likelihood.width)

    @classmethod
    def measure(cls, values: Iterable[Any]) -> dict[str, Any]:
        """How many numbers there are."""
        first = next(iter(values), None)
        if first is None:
            raise DataError("no latent vector in the training rows")
        return {"latent": len(first)}

    def settings(self) -> dict[str, Any]:
        """Z and the kind of belief."""
        return {"latent": self.latent, "posterior": self.posterior}

    def encode(self, value: Any) -> NDArray:
        """The vector in float32."""
        z = np.asarray(value, np.float32).reshape(-1)
        if len(z) != self.latent or not np.isfinite(z).all():
            raise DataError(f"a latent vector has {self.latent} finite numbers, found {value}")
        return z

    def predict(self, theta: Float[Tensor, "B L width"]) -> dict[str, NDArray]:
        """``value``, which is E[z], and ``sigma``: (B, L, Z)."""
        belief = self.likelihood(wide(theta))
        return {"value": belief.mean.cpu().numpy(), "sigma": belief.sigma.cpu().numpy()}


def uniform(theta: Float[Tensor, "... C"]) -> Float[Tensor, "..."]:
    """−log p of a class drawn uniformly, on average: log Σ_c e^θ_c − mean_c θ_c."""
    logits = wide(theta)
    return logits.logsumexp(-1) - logits.mean(-1)


TARGETS: dict[str, type[Target]] = {t.kind: t for t in (LabelTarget, LabelsTarget, NumberTarget, LatentTarget)}


def _natural(label: str) -> tuple[int, float, str]:
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)


def _some(classes: list[str]) -> str:
    return ", ".join(classes) if len(classes) <= 6 else f"{', '.join(classes[:3])}, ... {classes[-1]}"
