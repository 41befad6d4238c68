"""Broken twins: kinds with one deliberate fault, which the check must catch and name."""

import numpy as np
import pytest
import torch

from mapsto.errors import DataError
from mapsto.likelihoods.bernoulli import BernoulliLikelihood
from mapsto.likelihoods.categorical import CategoricalLikelihood
from mapsto.likelihoods.gaussian import GaussianLikelihood
from mapsto.testing import (
    check_likelihood,
)


def broken(verdicts):
    """The laws that are broken, in order, each once."""
    return list(dict.fromkeys(v.law for v in verdicts if not v.passed))


def notes(verdicts):
    return "\n".join(v.note for v in verdicts if not v.passed)


class WithoutTheHalf(GaussianLikelihood):
    def log_prob(self, theta, x):
        mu, log_sigma = self.split(theta)
        scaled = (x - mu) * torch.exp(-log_sigma)
        return -(scaled * scaled + log_sigma + 0.5 * np.log(2 * np.pi)).sum(-1)


class OverTheWrongAxis(CategoricalLikelihood):
    def log_prob(self, theta, x):
        return torch.log_softmax(theta, 0).gather(-1, x[..., None]).squeeze(-1)


class NaiveBernoulli(BernoulliLikelihood):
    """log(σ(θ)) is -∞ where σ underflows."""

    def log_prob(self, theta, x):
        p = torch.sigmoid(theta)
        return (x * p.log() + (1 - x) * (1 - p).log()).sum(-1)


class TakesAnything(BernoulliLikelihood):
    def check(self, values):
        pass


class RefusesWithoutTheRow(GaussianLikelihood):
    def check(self, values):
        if not torch.isfinite(values).all():
            raise DataError("some number is not finite")


class BiasedDraws(GaussianLikelihood):
    def sample(self, theta, stream):
        return super().sample(theta, stream) * 1.05


class UnseededDraws(GaussianLikelihood):
    def sample(self, theta, stream):
        return self.mean(theta) + self.sigma(theta) * torch.randn(self.mean(theta).shape, dtype=theta.dtype)


class SumsOverTheBatch(GaussianLikelihood):
    def log_prob(self, theta, x):
        found = super().log_prob(theta, x)
        return found - 1e-3 * found.mean().detach()


class RoundsToSingle(BernoulliLikelihood):
    def log_prob(self, theta, x):
        return super().log_prob(theta.float(), x.float())


LIKELIHOODS = [
    (lambda: WithoutTheHalf(1), "L", "the total and one"),
    (lambda: OverTheWrongAxis(3), "L", "the oracle's"),
    (lambda: NaiveBernoulli(1), "L", "not finite"),
    (lambda: TakesAnything(1), "L", "takes 0.5"),
    (lambda: RefusesWithoutTheRow(1), "L", "does not name row 4"),
    (lambda: BiasedDraws(1), "L", "standard errors"),
    (lambda: UnseededDraws(1), "D", "draws from the same stream"),
    (lambda: SumsOverTheBatch(1), "B", "row"),
    (lambda: RoundsToSingle(1), "L", "float64"),
]


@pytest.mark.parametrize(("make", "law", "says"), LIKELIHOODS, ids=[type(m()).__name__ for m, _, _ in LIKELIHOODS])
def test_a_broken_likelihood_is_caught_and_named(make, law, says):
    verdicts = check_likelihood(make, laws=law)
    assert broken(verdicts) == [law]
    assert says in notes(verdicts)
    assert type(make()).__name__ in notes(verdicts)
