"""Golden values, and that bounds are bounds."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MultivariateNormal, Normal, kl_divergence

from mapsto.functional.divergence import (
    capacity,
    effective,
    elbo,
    free_batch,
    free_dims,
    free_total,
    iwae,
    kl_cholesky,
    kl_normal,
    kl_normals,
    kl_uniform,
    ladder,
)
from mapsto.stream import stream


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=stream(seed, "divergence", *shape), dtype=torch.float64)


class TestGolden:
    """Values that were computed by other means, to nine places."""

    def test_kl_from_the_standard_normal(self) -> None:
        mu, sigma = numbers(1, -2), numbers(0.5, 2)
        assert float(kl_normal(mu, sigma)) == pytest.approx(3.625, abs=1e-12)
        each = [float(kl_normal(mu[i : i + 1], sigma[i : i + 1])) for i in range(2)]
        assert each == pytest.approx([0.818147180559945, 2.806852819440055], abs=1e-12)

    def test_kl_of_two_normals(self) -> None:
        found = kl_normals(numbers(1), numbers(0.5), numbers(-1), numbers(2))
        assert float(found) == pytest.approx(1.4175443611, abs=1e-10)

    def test_kl_from_the_uniform_distribution(self) -> None:
        assert float(kl_uniform(numbers(0.7, 0.2, 0.1).log())) == pytest.approx(0.2967937361, abs=1e-10)

    def test_three_meanings_of_free_bits(self) -> None:
        kl = torch.tensor([[0.05, 3.0], [0.6, 0.1]], dtype=torch.float64)
        found = [float(x.mean()) for x in (free_batch(kl, 0.5), free_dims(kl, 0.5), free_total(kl, 1.0))]
        assert found == pytest.approx([2.05, 2.30, 2.025], abs=1e-12)

    def test_an_elbo_whose_gap_is_known(self) -> None:
        # z ~ N(0, 1), x | z ~ N(z, 1), x = 1.5: the posterior is N(.75, ½), and q = N(.45, 1.2²) is another.
        x, mu, sigma = 1.5, numbers(0.45), numbers(1.2)
        log_likelihood = -0.5 * math.log(2 * math.pi) - 0.5 * ((x - mu) ** 2 + sigma**2).sum()
        found = float(elbo(log_likelihood, kl_normal(mu, sigma)))
        evidence = float(Normal(numbers(0), numbers(2).sqrt()).log_prob(numbers(x)))
        assert found == pytest.approx(-2.3291169764, abs=1e-9)
        assert evidence == pytest.approx(-1.8280121235, abs=1e-9)
        gap = kl_normals(mu, sigma, numbers(0.75), numbers(0.5).sqrt())
        assert evidence - found == pytest.approx(float(gap), abs=1e-10) == pytest.approx(0.5011048529, abs=1e-9)


class TestDivergence:
    def test_agrees_with_torch(self) -> None:
        mu, sigma, mean, scale = drawn(5, 3), drawn(5, 3, seed=1).exp(), drawn(5, 3, seed=2), drawn(5, 3, seed=3).exp()
        standard = Normal(torch.zeros_like(mu), torch.ones_like(mu))
        assert torch.allclose(kl_normal(mu, sigma), kl_divergence(Normal(mu, sigma), standard).sum(-1), atol=1e-12)
        wanted = kl_divergence(Normal(mu, sigma), Normal(mean, scale)).sum(-1)
        assert torch.allclose(kl_normals(mu, sigma, mean, scale), wanted, atol=1e-10)
        factor = torch.linalg.cholesky(torch.eye(3) + (a := drawn(5, 3, 3, seed=4)) @ a.mT)
        full = MultivariateNormal(mu, scale_tril=factor)
        wanted = kl_divergence(full, MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double()))
        assert torch.allclose(kl_cholesky(mu, factor), wanted, atol=1e-10)
        logits = drawn(5, 4, seed=5)
        wanted = kl_divergence(Categorical(logits=logits), Categorical(logits=torch.zeros(5, 4).double()))
        assert torch.allclose(kl_uniform(logits), wanted, atol=1e-12)

    def test_is_never_negative(self) -> None:
        mu, sigma = 1e-3 * drawn(1000, 2), 1 + 1e-3 * drawn(1000, 2, seed=1)
        assert (kl_normal(mu, sigma) >= 0).all()
        assert float(kl_normal(torch.zeros(2), torch.ones(2))) == 0
        assert (kl_uniform(1e-4 * drawn(1000, 5)) >= -1e-15).all()

    def test_a_class_that_never_comes_costs_nothing(self) -> None:
        logits = torch.tensor([0.0, 0.0, -math.inf])
        assert float(kl_uniform(logits)) == pytest.approx(math.log(3 / 2))


class TestBounds:
    def test_iwae_of_one_sample_is_the_elbo_in_value_and_gradient(self) -> None:
        weight = drawn(1, 7).requires_grad_()
        one = torch.autograd.grad(iwae(weight).sum(), weight)[0]
        assert torch.equal(iwae(weight), weight[0])
        assert torch.allclose(one, torch.ones_like(one), atol=1e-15)

    def test_ladder_never_falls_as_k_doubles(self) -> None:
        weights = 3 * drawn(64, 50)
        rungs = torch.stack([ladder(weights, k) for k in (1, 2, 4, 8, 16, 32, 64)])
        assert (rungs.diff(dim=0) >= 0).all()
        assert torch.allclose(rungs[0], weights.mean(0), atol=1e-12)
        assert torch.allclose(rungs[-1], iwae(weights), atol=1e-12)

    def test_a_ladder_of_the_whole_log_mean_would_fall(self) -> None:
        # The broken twin: without the mean over groups, the first k samples alone do fall.
        weights = 3 * drawn(64, 50)
        rungs = torch.stack([iwae(weights[:k]) for k in (1, 2, 4, 8, 16, 32, 64)])
        assert not (rungs.diff(dim=0) >= 0).all()

    def test_bounds_stay_finite_far_from_zero(self) -> None:
        weights = torch.tensor([[-1e5, 1e5], [-1e5, -1e5]])
        assert iwae(weights).tolist() == pytest.approx([-1e5, 1e5 - math.log(2)])
        assert effective(weights).tolist() == pytest.approx([2.0, 1.0])

    def test_effective_sample_size_is_that_of_the_weights(self) -> None:
        weights = drawn(20, 6)
        w = weights.exp()
        assert torch.allclose(effective(weights), w.sum(0) ** 2 / (w**2).sum(0), atol=1e-10)

    def test_bounds_of_the_linear_model_stay_below_its_evidence(self) -> None:
        z_of, x = 0.75, 1.5
        sigma = 1.2
        noise = drawn(64, 20_000, seed=9)
        z = 0.3 * z_of + sigma * noise
        log_q = Normal(0.3 * z_of, sigma).log_prob(z)
        log_w = Normal(0.0, 1.0).log_prob(z) + Normal(z, 1.0).log_prob(torch.tensor(x).double()) - log_q
        evidence = float(Normal(0.0, math.sqrt(2)).log_prob(torch.tensor(x).double()))
        for k in (1, 2, 8, 64):
            rung = ladder(log_w, k)
            error = float(rung.std()) / math.sqrt(rung.numel())
            assert float(rung.mean()) - 4 * error <= evidence
        inverted = iwae(-log_w)
        assert float(inverted.mean()) > evidence  # the broken twin: weights upside down are no bound


class TestFreeBits:
    def test_a_closed_dimension_has_no_gradient(self) -> None:
        kl = torch.tensor([[0.05, 3.0], [0.6, 0.1]], dtype=torch.float64).requires_grad_()
        (gradient,) = torch.autograd.grad(free_batch(kl, 0.5).sum(), kl)
        assert gradient.tolist() == [[0, 1], [0, 1]]  # means .325 and 1.55
        (gradient,) = torch.autograd.grad(free_dims(kl, 0.5).sum(), kl)
        assert gradient.tolist() == [[0, 1], [1, 0]]
        (gradient,) = torch.autograd.grad(free_total(kl, 1.0).sum(), kl)
        assert gradient.tolist() == [[1, 1], [0, 0]]

    def test_capacity_pulls_to_its_aim_from_both_sides(self) -> None:
        kl = numbers(1, 5).requires_grad_()
        found = capacity(kl, 3.0)
        assert found.tolist() == [2, 2]
        assert torch.autograd.grad(found.sum(), kl)[0].tolist() == [-1, 1]
