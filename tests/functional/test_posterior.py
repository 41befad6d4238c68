"""Exact inference, against other ways of computing the same."""

import math
from itertools import islice

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture
from torch import Tensor

from mapsto.errors import DataError
from mapsto.functional.mixture import Mixture, normal_quantile
from mapsto.functional.posterior import Normal, Ppca
from mapsto.stream import stream


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=stream(seed, "posterior", *shape), dtype=torch.float64)


def spread(rows: int = 200, dims: int = 6, seed: int = 0) -> Tensor:
    """Rows that lie near a plane."""
    return drawn(rows, 2, seed=seed) @ drawn(2, dims, seed=7) + 0.3 * drawn(rows, dims, seed=seed + 1) + 1.5


class TestNormal:
    def test_agrees_with_scipy(self) -> None:
        x = spread()
        model = Normal.fit(x)
        wanted = multivariate_normal(model.mean.numpy(), model.covariance.numpy()).logpdf(x.numpy())
        assert np.allclose(model.log_likelihood(x).numpy(), wanted, atol=1e-9)
        assert np.allclose(model.covariance.numpy(), np.cov(x.numpy().T, bias=True), atol=1e-12)

    def test_missing_numbers_are_integrated_out(self) -> None:
        x = spread()
        model, holed = Normal.fit(x), x.clone()
        holed[3, [0, 4]], holed[5] = math.nan, math.nan
        known = [1, 2, 3, 5]
        part = multivariate_normal(model.mean[known].numpy(), model.covariance[known][:, known].numpy())
        found = model.log_likelihood(holed)
        assert float(found[3]) == pytest.approx(float(part.logpdf(x[3, known].numpy())), abs=1e-9)
        assert float(found[5]) == 0.0
        assert torch.allclose(found[6:], model.log_likelihood(x)[6:], atol=1e-10)

    def test_imputes_the_conditional_mean(self) -> None:
        x = spread()
        model, holed = Normal.fit(x), x.clone()
        holed[3, [0, 4]], holed[5] = math.nan, math.nan
        filled = model.impute(holed)
        # The mean of a normal distribution is its mode: no other value is likelier.
        best = model.log_likelihood(filled[3:4])
        for step in (0.01, -0.01):
            for column in (0, 4):
                other = filled[3:4].clone()
                other[0, column] += step
                assert model.log_likelihood(other) < best
        assert torch.allclose(filled[5], model.mean, atol=1e-12)
        known = ~torch.isnan(holed)
        assert torch.equal(filled[known], holed[known])

    def test_independent_numbers_ignore_what_is_missing(self) -> None:
        x = torch.tensor([[1.0, 2.0], [3.0, math.nan], [5.0, 4.0]], dtype=torch.float64)
        model = Normal.independent(x)
        assert model.mean.tolist() == [3, 3]
        assert model.covariance.flatten().tolist() == pytest.approx([8 / 3, 0, 0, 1])

    def test_em_with_holes_never_falls_and_without_them_is_the_likeliest_at_once(self) -> None:
        x = spread()
        holed = x.masked_fill(torch.rand(x.shape, generator=stream(0, "holes")) < 0.2, torch.nan)
        trace = [value for _, value in islice(Normal.em(holed), 60)]
        assert min(np.diff(trace)) > -1e-10
        assert trace[-1] > trace[0] + 0.5
        first, second = (model for model, _ in islice(Normal.em(x), 2))
        assert torch.allclose(second.covariance, Normal.fit(x).covariance, atol=1e-12)
        assert not torch.allclose(first.covariance, second.covariance, atol=0.1)

    def test_em_stops_where_the_gradient_is_zero(self) -> None:
        x = spread(60, 4)
        holed = x.masked_fill(torch.rand(x.shape, generator=stream(1, "holes")) < 0.2, torch.nan)
        (model, _) = next(islice(Normal.em(holed), 400, None))
        mean, covariance = (t.clone().requires_grad_() for t in (model.mean, model.covariance))
        slopes = torch.autograd.grad(Normal(mean, covariance).log_likelihood(holed).mean(), (mean, covariance))
        assert max(float(s.abs().max()) for s in slopes) < 1e-4

    def test_em_that_forgets_what_holes_may_hold_is_not_the_likeliest(self) -> None:
        x = spread(60, 4)
        holed = x.masked_fill(torch.rand(x.shape, generator=stream(1, "holes")) < 0.2, torch.nan)
        (model, best) = next(islice(Normal.em(holed), 400, None))
        filled = model.impute(holed)
        assert float(Normal.fit(filled).log_likelihood(holed).mean()) < best - 1e-3

    def test_em_refuses_a_column_without_spread(self) -> None:
        with pytest.raises(DataError, match="column 1 has no spread"):
            next(Normal.em(torch.tensor([[1.0, 2.0], [2.0, 2.0], [4.0, torch.nan]], dtype=torch.float64)))

    def test_refuses_too_few_rows(self) -> None:
        with pytest.raises(DataError, match="singular"):
            Normal.fit(drawn(5, 6))


class TestPpca:
    def test_golden_values(self) -> None:
        model = Ppca(torch.tensor([[1.0], [2.0]]).double(), torch.zeros(2).double(), 0.25)
        x = torch.tensor([[0.5, -1.0]]).double()
        mean, covariance = model.posterior(x)
        assert float(model.log_likelihood(x)) == pytest.approx(-3.616701067, abs=1e-9)
        assert float(mean) == pytest.approx(-0.285714286, abs=1e-9)
        assert float(covariance) == pytest.approx(0.047619048, abs=1e-9)

    def test_evidence_is_that_of_the_normal_distribution_it_makes(self) -> None:
        x = spread()
        model = Ppca.fit(x, 2)
        assert torch.allclose(model.log_likelihood(x), model.normal.log_likelihood(x), atol=1e-9)

    def test_agrees_with_scikit_learn(self) -> None:
        x = spread()
        model, other = Ppca.fit(x, 2), PCA(2).fit(x.numpy())
        # scikit-learn divides the covariance by N − 1.
        ratio = len(x) / (len(x) - 1)
        covariance = model.normal.covariance * ratio
        assert np.allclose(covariance.numpy(), other.get_covariance(), atol=1e-9)

    def test_posterior_is_bayes_rule(self) -> None:
        x, model = spread()[:1], Ppca.fit(spread(), 2)
        mean, covariance = model.posterior(x)
        z = drawn(50, 2)
        joint = -0.5 * (z.square().sum(1) + 2 * math.log(2 * math.pi))
        noise = x - model.mean - z @ model.weight.T
        joint = joint - 0.5 * (noise.square().sum(1) / model.variance + 6 * math.log(2 * math.pi * model.variance))
        log_posterior = multivariate_normal(mean[0].numpy(), covariance.numpy()).logpdf(z.numpy())
        assert np.allclose((joint - torch.from_numpy(log_posterior)).numpy(), float(model.log_likelihood(x)), atol=1e-8)

    def test_gap_of_the_best_diagonal_belief(self) -> None:
        turn = torch.linalg.qr(drawn(2, 2))[0]
        aligned = Ppca.fit(spread(), 2)
        turned = Ppca(aligned.weight @ turn, aligned.mean, aligned.variance)
        assert aligned.gap == pytest.approx(0, abs=1e-10)
        x = spread()
        mean, covariance = turned.posterior(x)
        # KL(diagonal q ‖ posterior), with the variances that are best: those of 1 / (Σ⁻¹)_jj.
        precision = torch.linalg.inv(covariance)
        q = torch.distributions.MultivariateNormal(mean[0], torch.diag(1 / precision.diagonal()))
        p = torch.distributions.MultivariateNormal(mean[0], covariance)
        assert turned.gap == pytest.approx(float(torch.distributions.kl_divergence(q, p)), abs=1e-9)
        assert turned.gap > 0.01

    def test_em_never_falls_and_ends_at_the_likeliest(self) -> None:
        x = spread()
        trace = [value for _, value in islice(Ppca.em(x, 2, stream(0, "em")), 300)]
        assert min(np.diff(trace)) > -1e-10
        assert trace[-1] == pytest.approx(float(Ppca.fit(x, 2).log_likelihood(x).mean()), abs=1e-6)

    def test_a_step_that_forgets_the_posterior_variance_falls(self) -> None:
        # The broken twin: σ² from the reconstruction alone, as if z were known.
        x = spread()
        model, *_ = next(islice(Ppca.em(x, 2, stream(0, "em")), 50, None))
        y = x - model.mean
        z = model.posterior(x)[0]
        residue = float((y - z @ model.weight.T).square().mean())
        broken = Ppca(model.weight, model.mean, residue)
        assert broken.log_likelihood(x).mean() < model.log_likelihood(x).mean() - 1e-3

    def test_no_latent_dimensions_are_noise_alone(self) -> None:
        x = spread()
        model = Ppca.fit(x, 0)
        wanted = multivariate_normal(x.mean(0).numpy(), model.variance * np.eye(6)).logpdf(x.numpy())
        assert np.allclose(model.log_likelihood(x).numpy(), wanted, atol=1e-9)

    def test_refuses_what_leaves_no_noise(self) -> None:
        with pytest.raises(DataError, match="one at least must be left"):
            Ppca.fit(spread(), 6)
        with pytest.raises(DataError, match="no spread beyond 2 directions"):
            Ppca.fit(drawn(50, 2) @ drawn(2, 6, seed=7), 2)


class TestMixture:
    def heaps(self) -> Tensor:
        middle = torch.tensor([[0.0, 0.0], [5.0, 1.0], [-3.0, 4.0]], dtype=torch.float64)
        return torch.cat([middle[k] + drawn(150, 2, seed=k) * (1 + 0.3 * k) for k in range(3)])

    def test_em_never_falls(self) -> None:
        x = self.heaps()
        trace = [v for _, v in islice(Mixture.start(x, 3, stream(1, "mixture")).em(x), 100)]
        assert min(np.diff(trace)) > -1e-10

    def test_steps_are_those_of_scikit_learn(self) -> None:
        x = self.heaps()
        first = Mixture.start(x, 3, stream(1, "mixture"))
        model, value = next(islice(first.em(x, floor=0.0), 200, None))
        other = GaussianMixture(
            3,
            reg_covar=0.0,
            tol=1e-12,
            max_iter=500,
            weights_init=first.log_share.exp().numpy(),
            means_init=first.means.numpy(),
            precisions_init=torch.linalg.inv(first.covariances).numpy(),
        ).fit(x.numpy())
        assert value == pytest.approx(other.score(x.numpy()), abs=1e-6)
        assert np.allclose(model.means.numpy(), other.means_, atol=1e-3)
        assert np.allclose(model.responsibility(x).numpy(), other.predict_proba(x.numpy()), atol=1e-3)

    def test_a_component_on_one_row_keeps_its_width(self) -> None:
        x = torch.cat([drawn(50, 2), torch.tensor([[100.0, 100.0]], dtype=torch.float64)])
        model, value = next(islice(Mixture.start(x, 2, stream(0, "mixture")).em(x), 30, None))
        assert math.isfinite(value)
        assert float(torch.linalg.eigvalsh(model.covariances).min()) > 0

    def test_one_component_is_the_normal_distribution(self) -> None:
        x = self.heaps()
        model, _ = next(islice(Mixture.start(x, 1, stream(0, "mixture")).em(x), 2, None))
        assert torch.allclose(model.log_likelihood(x), Normal.fit(x).log_likelihood(x), atol=1e-8)


@pytest.mark.parametrize("p", [0.025, 0.5, 0.9])
def test_quantiles_of_a_mixture_are_those_that_root_finding_gives(p: float) -> None:
    mean, sigma = 3 * drawn(7, 4), drawn(7, 4, seed=2).exp()
    weight = torch.softmax(drawn(7, 4, seed=3), 0)
    found = normal_quantile(p, weight, mean, sigma)
    for j in range(4):
        w, m, s = (t[:, j].numpy() for t in (weight, mean, sigma))
        wanted = brentq(lambda x: float(w @ norm.cdf(x, m, s)) - p, -50, 50, xtol=1e-13)  # noqa: B023
        assert float(found[j]) == pytest.approx(wanted, abs=1e-9)
