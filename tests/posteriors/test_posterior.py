"""Beliefs: draws, densities and divergences tell the same story."""

import math

import pytest
import torch
from torch import Tensor

from mapsto import kinds
from mapsto.errors import ConfigError
from mapsto.posteriors.flow import FlowPosterior
from mapsto.posteriors.full import FullPosterior
from mapsto.posteriors.normal import NormalPosterior
from mapsto.priors.mixture import MixturePrior
from mapsto.priors.standard import StandardPrior
from mapsto.stream import stream

Z, DRAWS = 3, 50_000


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=stream(seed, "belief", *shape), dtype=torch.float64)


def made(kind: str, bend: float = 0.3):
    posterior = kinds.make("posteriors", kind, latent=Z).double()
    for number, p in enumerate(posterior.parameters()):
        p.data = bend * drawn(*p.shape, seed=number)
    return posterior


KINDS = kinds.names("posteriors")


@pytest.mark.parametrize("kind", KINDS)
def test_density_of_a_draw_is_the_density(kind):
    posterior = made(kind)
    belief = posterior(drawn(4, posterior.width))
    z, log_q = belief.draw(drawn(5, 4, Z))
    assert z.shape == (5, 4, Z)
    assert torch.allclose(belief.log_prob(z), log_q, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_at_zero_it_is_the_standard_normal(kind):
    posterior = kinds.make("posteriors", kind, latent=Z)
    for module in posterior.modules():
        if hasattr(module, "reset"):
            module.reset(stream(0, "reset"))
    belief = posterior(torch.zeros(2, posterior.width))
    noise = drawn(6, 2, Z).float()
    z, log_q = belief.draw(noise)
    assert torch.allclose(z, noise, atol=1e-6)
    assert torch.allclose(log_q, StandardPrior(Z).log_prob(noise), atol=1e-5)


@pytest.mark.parametrize("kind", ["normal", "full"])
def test_closed_divergence_is_the_mean_of_log_ratios(kind):
    posterior = made(kind)
    belief = posterior(0.5 * drawn(2, posterior.width))
    z, log_q = belief.draw(drawn(DRAWS, 2, Z))
    ratio = log_q - StandardPrior(Z).log_prob(z)
    error = ratio.std(0) / math.sqrt(DRAWS)
    terms = belief.kl()
    assert (terms >= 0).all()
    assert ((ratio.mean(0) - terms.sum(1)).abs() < 5 * error).all()


@pytest.mark.parametrize("kind", KINDS)
def test_mean_and_deviation_are_those_of_draws(kind):
    posterior = made(kind, bend=0.15)
    belief = posterior(0.5 * drawn(2, posterior.width))
    z, _ = belief.draw(drawn(DRAWS, 2, Z))
    # a flow's own are of 256 draws that are spread evenly
    assert ((belief.mean - z.mean(0)).abs() < 0.05 * z.std(0)).all()
    assert ((belief.sigma / z.std(0) - 1).abs() < 0.1).all()
    assert torch.equal(belief.mean, belief.mean)


def test_full_belief_knows_which_go_together():
    posterior = FullPosterior(2)
    theta = torch.zeros(1, posterior.width)
    theta[0, -1] = 2.0
    belief = posterior(theta)
    z, _ = belief.draw(drawn(50_000, 1, 2).float())
    assert float(torch.corrcoef(z[:, 0].T)[0, 1]) == pytest.approx(2 / math.sqrt(5), abs=0.01)


def test_beliefs_stay_finite_whatever_theta_is():
    for kind in KINDS:
        posterior = made(kind)
        for size in (-1e4, 1e4):
            theta = torch.full((1, posterior.width), size, dtype=torch.float64).requires_grad_()
            z, log_q = posterior(theta).draw(drawn(2, 1, Z))
            (gradient,) = torch.autograd.grad(log_q.sum() + z.sum() * 1e-30, theta)
            assert torch.isfinite(z).all()
            assert torch.isfinite(log_q).all()
            assert torch.isfinite(gradient).all()


def test_a_flow_of_one_number_is_refused():
    with pytest.raises(ConfigError, match="Use normal for one dimension"):
        FlowPosterior(1)


def test_a_flow_takes_shapes_that_a_normal_cannot():
    # A ring: the ELBO's best normal is far from it, the flow comes nearer. Both are fitted the same way.
    def fit(posterior) -> float:
        theta = torch.zeros(1, posterior.width, requires_grad=True)
        found = [theta, *posterior.parameters()]
        for module in posterior.modules():
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=0.3, generator=stream(1, "ring"))
        adam = torch.optim.Adam(found, lr=0.02)
        for step in range(400):
            z, log_q = posterior(theta).draw(torch.randn(256, 1, 2, generator=stream(step, "ring")))
            target = -((z.norm(dim=-1) - 2) ** 2) / 0.08
            loss = (log_q - target).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
        return float(loss.detach())

    assert fit(FlowPosterior(2, layers=6, hidden=32)) < fit(NormalPosterior(2)) - 0.3


class TestMixturePrior:
    def prior(self) -> MixturePrior:
        prior = MixturePrior(2, components=3).double()
        for number, p in enumerate(prior.parameters()):
            p.data = 0.5 * drawn(*p.shape, seed=number + 10)
        return prior

    def test_density_is_that_of_torch(self):
        prior, z = self.prior(), drawn(4, 5, 2)
        normals = torch.distributions.Independent(torch.distributions.Normal(prior.means, prior.log_sigma.exp()), 1)
        wanted = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=prior.log_share), normals)
        assert torch.allclose(prior.log_prob(z), wanted.log_prob(z), atol=1e-10)

    def test_draws_are_of_the_density(self):
        prior = self.prior()
        z = prior.sample(DRAWS, stream(0, "mixture")).double()
        share = torch.softmax(prior.log_share, 0)
        mean = share @ prior.means
        second = share @ (prior.log_sigma.exp().square() + prior.means.square())
        assert ((z.mean(0) - mean).abs() < 5 * z.std(0) / math.sqrt(DRAWS)).all()
        assert ((z.square().mean(0) - second).abs() < 5 * z.square().std(0) / math.sqrt(DRAWS)).all()

    def test_components_differ_at_the_start(self):
        prior = MixturePrior(2)
        prior.reset(stream(0, "init"))
        assert float(torch.pdist(prior.means.detach()).min()) > 0
