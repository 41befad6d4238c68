"""Law E: bounds of models whose evidence is known, and what training minimises."""

import copy
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from mapsto.errors import ConfigError
from mapsto.functional.divergence import free_dims, iwae, ladder
from mapsto.functional.posterior import Ppca
from mapsto.inputs.image import ImageInput
from mapsto.inputs.latent import LatentInput
from mapsto.models.bound import Capacity, Elbo, Iwae, Reconstruction, Weighed
from mapsto.models.mapper import Mapper
from mapsto.models.rework import Binarise
from mapsto.models.vae import VAE
from mapsto.nn.initial import initialise
from mapsto.nn.perceptron import Perceptron
from mapsto.nn.pool import MeanPool
from mapsto.noise import set_clock
from mapsto.outputs.image import ImageOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.priors.standard import StandardPrior
from mapsto.stream import Clock, stream
from mapsto.testing import check_evidence, require

SIZE = (3, 2)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=stream(seed, "vae", *shape), dtype=torch.float64)


def build(
    *,
    latent=2,
    dim=8,
    depth=1,
    noise="gaussian",
    posterior="normal",
    bound=None,
    rework=(),
    mean=0.5,
    scale=0.3,
    seed=0,
):
    """A small VAE of pictures of 3 x 2."""
    source = ImageInput(dim, channels=1, mean=[mean], scale=[scale], patch=3, stem="patches")
    target = {"latent": {"kind": "latent", "latent": latent, "posterior": posterior}}
    encoder = Mapper({"image": source}, Perceptron(dim, depth), MeanPool(), VectorOutput(dim, targets=target))
    output = ImageOutput(dim, name="image", channels=1, size=SIZE, density=noise)
    decoder = Mapper({"latent": LatentInput(dim, latent=latent)}, Perceptron(dim, depth), MeanPool(), output)
    model = VAE(encoder, StandardPrior(latent), decoder, bound=bound, rework=rework)
    initialise(model, seed)
    return model.double().eval()


def batch(rows: int = 5, seed: int = 0, *, binary: bool = False):
    x = np.random.default_rng(seed).integers(0, 256, (rows, *SIZE, 1), dtype=np.uint8)
    pixels = torch.from_numpy((x > 127).astype(np.uint8) * 255 if binary else x)
    return {"image": {"pixels": pixels, "size": torch.tensor([SIZE] * rows)}, "target": {"pixels": pixels}}


def linear(posterior: str = "full") -> tuple[VAE, Ppca]:
    """The linear-Gaussian model as a VAE whose encoder is its exact posterior (or the best diagonal one)."""
    latent, pixels = 2, SIZE[0] * SIZE[1]
    weight = drawn(pixels, latent, seed=4) * torch.tensor([0.3, 0.6]).double()
    weight[:, 1] += weight[:, 0]  # columns that are not orthogonal
    exact = Ppca(weight, torch.full((pixels,), 0.5).double(), 0.04)
    model = build(latent=latent, dim=pixels, depth=0, noise="gaussian:sigma=0.2", posterior=posterior, scale=1.0)
    _, covariance = exact.posterior(torch.zeros(1, pixels).double())
    regress = torch.linalg.solve(exact.precision, weight.T)  # M⁻¹Wᵀ
    factor = torch.linalg.cholesky(covariance)
    decoder, encoder = model.decoder, model.encoder
    with torch.no_grad():
        # Items of width D carry the pixels themselves: of the patch of 3 x 3, the third column is padding.
        source = encoder.sources["image"]
        places = [row * 3 + column for row in range(3) for column in range(2)]
        source.linear.weight.zero_()
        source.linear.weight[torch.arange(pixels), places] = 1.0
        head = encoder.output.targets["latent"].head
        head.weight.zero_()
        head.bias.zero_()
        head.weight[:latent] = regress
        if posterior == "full":
            head.bias[latent : 2 * latent] = raw(factor.diagonal().log())
            head.bias[2 * latent :] = factor[1, 0] / factor[1, 1]
        else:  # the best diagonal one has the variances 1 / (Σ⁻¹)_jj
            head.bias[latent:] = raw(-0.5 * torch.linalg.inv(covariance).diagonal().log())
        decoder.sources["latent"].linear.weight.copy_(weight)
        output = decoder.output
        output.head.head.weight.copy_(torch.eye(pixels))
        output.head.head.bias.fill_(0.5)
    return model, exact


def raw(log_sigma: Tensor) -> Tensor:
    """What log σ = 10 tanh(raw / 10) comes from."""
    return 10 * torch.atanh(log_sigma / 10)


def values(rows) -> Tensor:
    return rows["target"]["pixels"].double().flatten(1) / 255


class TestEvidence:
    def test_with_the_exact_posterior_every_weight_is_the_evidence(self):
        model, exact = linear("full")
        rows = batch()
        found = model.weigh(rows, drawn(7, 5, 2))
        wanted = exact.log_likelihood(values(rows))
        assert torch.allclose(found.log_weights, wanted.expand(7, -1), atol=1e-9)

    def test_gap_of_the_best_diagonal_belief_is_the_formula_for_every_row(self):
        model, exact = linear("normal")
        rows = batch()
        belief = model.believe(rows)
        # E_q[log p(x | z)] in closed form: −½ [|x − Wm − μ|² + tr(W diag s² Wᵀ)] / σ² − …
        y = values(rows) - 0.5 - belief.mean @ exact.weight.T
        spread = (belief.sigma.square() @ exact.weight.square().T).sum(1)
        log_p = -0.5 * ((y.square().sum(1) + spread) / 0.04 + 6 * math.log(2 * math.pi * 0.04))
        elbo = log_p - belief.kl().sum(1)
        gap = exact.log_likelihood(values(rows)) - elbo
        assert torch.allclose(gap, torch.full_like(gap, exact.gap), atol=1e-9)
        assert exact.gap > 0.05
        found = model.weigh(rows, drawn(100_000, 5, 2))
        error = found.log_likelihood.std(0) / math.sqrt(100_000)
        assert ((found.log_likelihood.mean(0) - found.divergence - elbo).abs() < 5 * error).all()

    def test_bounds_never_exceed_the_evidence(self):
        model, exact = linear("normal")
        with torch.no_grad():  # a poor belief: wide and off the mark
            model.encoder.output.targets["latent"].head.bias.add_(0.3)
        rows = batch()
        wanted = exact.log_likelihood(values(rows))
        weights = model.weigh(rows, drawn(64 * 500, 5, 2)).log_weights
        before = None
        for k in (1, 4, 16, 64):
            rungs = torch.stack([ladder(part, k) for part in weights.split(64)])
            error = rungs.std(0) / math.sqrt(len(rungs))
            assert (rungs.mean(0) - 4 * error <= wanted).all()
            assert before is None or (rungs.mean(0) >= before).all()
            before = rungs.mean(0)

    @pytest.mark.parametrize(
        "slip", ["kl with a plus", "log-variance for log-deviation", "mean over pixels", "weights upside down"]
    )
    def test_the_usual_slips_are_no_bounds_or_no_evidence(self, slip):
        model, exact = linear("full")
        rows = batch()
        wanted = exact.log_likelihood(values(rows))
        found = model.weigh(rows, drawn(2000, 5, 2))
        said = {
            "kl with a plus": found.log_likelihood.mean(0) + found.divergence,
            "log-variance for log-deviation": found.log_likelihood.mean(0)
            - 0.5
            * (model.believe(rows).mean.square() + model.believe(rows).sigma - model.believe(rows).sigma.log() - 1).sum(
                1
            ),
            "mean over pixels": found.log_likelihood.mean(0) / 6 - found.divergence,
            "weights upside down": iwae(-found.log_weights),
        }[slip]
        assert (said - wanted).abs().max() > 0.05  # where the truth is the evidence itself, to 1e-9

    def test_value_does_not_depend_on_company_or_on_how_many_draws_go_at_once(self):
        model = build()
        rows, noise = batch(), drawn(6, 5, 2)
        whole = model.weigh(rows, noise)
        for b in range(5):
            one = {name: {n: t[b : b + 1] for n, t in part.items()} for name, part in rows.items()}
            alone = model.weigh(one, noise[:, b : b + 1])
            assert torch.allclose(alone.log_weights, whole.log_weights[:, b : b + 1], atol=1e-10)
        parts = [model.weigh(rows, part).log_weights for part in noise.split(2)]
        assert torch.allclose(torch.cat(parts), whole.log_weights, atol=1e-10)

    def test_a_sub_sampled_batch_says_nothing_of_the_size_of_the_data(self):
        # z ~ N(0, 1), x | z ~ N(z, 1): Σ log p = −13.552668 for these eight, however many copies of them there are.
        x = torch.linspace(-2, 2, 8, dtype=torch.float64)
        belief = torch.distributions.Normal(x / 2 + 0.1, 0.8)
        z = belief.mean + 0.8 * drawn(40_000, 8)
        standard = torch.distributions.Normal(torch.zeros(()).double(), 1.0)
        found = Weighed(
            torch.distributions.Normal(z, 1.0).log_prob(x), standard.log_prob(z), belief.log_prob(z), kl=None
        )
        for k in (1, 10):
            rungs = torch.stack([ladder(part, k) for part in found.log_weights.split(k)]).sum(1)
            error = float(rungs.std()) / math.sqrt(len(rungs))
            assert float(rungs.mean()) - 4 * error <= -13.552668416
        scaled = (80 / 8) * found.log_likelihood.mean(0) - found.divergence  # the broken twin: N/B on one term only
        assert float(scaled.sum()) < -100


class TestLoss:
    def test_iwae_of_one_draw_is_the_monte_carlo_elbo_in_value_and_gradient(self):
        one, two = build(bound=Iwae(1)).train(), build().train()
        for model in (one, two):
            set_clock(model, Clock(3))
        rows = batch()
        two.prior.kl = lambda belief: None  # the KL from the draws, as IWAE has it
        losses = [model.loss(rows).per_example().sum() for model in (one, two)]
        assert torch.allclose(losses[0], losses[1], atol=1e-10)
        gradients = [
            torch.autograd.grad(loss, list(m.parameters())) for loss, m in zip(losses, (one, two), strict=True)
        ]
        for a, b in zip(*gradients, strict=True):
            assert torch.allclose(a, b, atol=1e-9)

    def test_is_the_negative_bound(self):
        model = build().train()
        set_clock(model, Clock(3))
        loss = model.loss(batch())
        set_clock(model, Clock(3))
        belief = model.believe(batch())
        found = model.weigh(batch(), model.noise(1, belief.mean))
        assert torch.allclose(loss.terms["reconstruction"], -found.log_likelihood[0], atol=1e-10)
        assert torch.allclose(loss.terms["kl"], belief.kl().sum(1), atol=1e-10)
        assert loss.weights == {"kl": 1.0}
        assert loss.count.tolist() == [6.0] * 5

    def test_draws_are_a_function_of_seed_and_step(self):
        def value(seed, step):
            model = build().train()
            set_clock(model, Clock(seed, step))
            return model.loss(batch()).per_example()

        assert torch.equal(value(0, 5), value(0, 5))
        assert not torch.equal(value(0, 5), value(0, 6))
        assert not torch.equal(value(0, 5), value(1, 5))

    def test_every_parameter_learns(self):
        for kind in ("normal", "full", "flow"):
            model = build(posterior=kind).train()
            model.loss(batch()).per_example().sum().backward()
            idle = [n for n, p in model.named_parameters() if p.grad is None]
            assert not idle

    def test_beta_warms_up_by_the_step(self):
        bound = Elbo(beta=2.0, warmup=10)
        assert [bound.weight(step) for step in (0, 4, 9, 500)] == pytest.approx([0.2, 1.0, 2.0, 2.0])
        model = build(bound=bound).train()
        clock = Clock(0, 4)
        set_clock(model, clock)
        assert model.loss(batch()).weights == {"kl": 1.0}

    def test_free_bits_change_the_loss_and_nothing_else(self):
        model = build(bound=Elbo(free=partial(free_dims, nats=0.7))).train()
        loss = model.loss(batch())
        assert torch.allclose(loss.terms["kl"], free_dims(model.believe(batch()).kl(), 0.7))
        flow = build(posterior="flow", bound=Elbo(free=partial(free_dims, nats=0.7))).train()
        with pytest.raises(ConfigError, match="free bits need"):
            flow.loss(batch())

    def test_an_autoencoder_has_no_kl_and_draws_nothing(self):
        model = build(bound=Reconstruction()).train()
        one, two = model.loss(batch()), model.loss(batch())
        assert list(one.terms) == ["reconstruction"]
        assert torch.equal(one.terms["reconstruction"], two.terms["reconstruction"])
        wanted = -model.log_likelihood(model.believe(batch()).mean[None], batch()["target"])[0]
        assert torch.equal(one.terms["reconstruction"], wanted)

    def test_learns_the_linear_model_to_its_evidence(self):
        # From scratch, on draws of a linear-Gaussian model: the ELBO comes to the exact evidence of the fitted model.
        pixels = (0.5 + drawn(400, 2) @ drawn(2, 6, seed=5) * 0.1 + 0.03 * drawn(400, 6, seed=6)).clamp(0, 1)
        x = (pixels * 255).round().to(torch.uint8).reshape(-1, *SIZE, 1)
        rows = {"image": {"pixels": x, "size": torch.tensor([SIZE] * 400)}, "target": {"pixels": x}}
        model = build(depth=0, dim=6).train()
        adam, clock = torch.optim.Adam(model.parameters(), lr=0.02), Clock(0)
        set_clock(model, clock)
        for step in range(600):
            clock.step = step
            for group in adam.param_groups:
                group["lr"] = 0.02 * (1 - step / 600)
            adam.zero_grad()
            model.loss(rows).per_example().mean().backward()
            adam.step()
        model.eval()
        with torch.no_grad():
            found = model.weigh(rows, drawn(50, 400, 2, seed=8))
        best = float(Ppca.fit(values(rows), 2).log_likelihood(values(rows)).mean())
        assert best - 0.15 < float(iwae(found.log_weights).mean()) < best + 0.02


class TestCapacity:
    def found(self, kl):
        zero = torch.zeros(1, len(kl), dtype=torch.float64)
        return Weighed(zero - 5, zero, zero, torch.tensor(kl, dtype=torch.float64)[:, None])

    def test_the_kl_is_driven_to_it_from_either_side(self):
        terms, weights = Capacity(3.0, beta=10.0).terms(self.found([1.0, 3.0, 7.0]), 0)
        assert terms["capacity"].tolist() == [2, 0, 4]
        assert terms["reconstruction"].tolist() == [5, 5, 5]
        assert weights == {"capacity": 10.0}

    def test_it_rises_with_the_steps_and_ends_at_its_value(self):
        bound = Capacity(8.0, warmup=4)
        off = [float(bound.terms(self.found([0.0]), step)[0]["capacity"]) for step in (0, 1, 3, 100)]
        assert off == [2, 4, 8, 8]

    @pytest.mark.parametrize("wrong", [{"nats": -1.0}, {"nats": float("nan")}, {"nats": 1.0, "beta": -1.0}])
    def test_less_than_nothing_is_refused(self, wrong):
        with pytest.raises(ConfigError, match="expected none below 0"):
            Capacity(**wrong)


class TestBinarise:
    def test_input_and_target_get_the_same_bits_whose_mean_is_the_grey(self):
        binarise = Binarise().train()
        set_clock(binarise, Clock(0))
        total = torch.zeros(5, *SIZE, 1)
        for _ in range(2000):
            made = binarise(batch())
            assert torch.equal(made["image"]["pixels"], made["target"]["pixels"])
            assert set(made["target"]["pixels"].unique().tolist()) <= {0, 255}
            total += made["target"]["pixels"] / 255
        assert torch.allclose(total / 2000, batch()["target"]["pixels"] / 255, atol=0.06)

    def test_nothing_is_drawn_in_eval(self):
        rows = batch()
        assert Binarise().eval()(rows) is rows

    def test_black_stays_black_and_white_white(self):
        ends = batch(binary=True)
        made = Binarise().at(ends, torch.rand(5, *SIZE, 1, generator=stream(0, "bits")))
        assert torch.equal(made["target"]["pixels"], ends["target"]["pixels"])


class TestParts:
    def test_parts_that_do_not_fit_are_refused(self):
        model = build()
        other = build(latent=3)
        with pytest.raises(ConfigError, match="latent dimensions differ: encoder 2, prior 2, decoder 3"):
            VAE(model.encoder, model.prior, other.decoder)
        with pytest.raises(ConfigError, match="onto a target latent"):
            VAE(model.decoder, model.prior, model.decoder)

    def test_weights_are_saved_once(self):
        model = build()
        names = list(model.state_dict())
        assert len(names) == len(set(names))
        again = copy.deepcopy(model)
        again.load_state_dict(model.state_dict())
        noise = drawn(2, 5, 2)
        assert torch.equal(again.weigh(batch(), noise).log_weights, model.weigh(batch(), noise).log_weights)


# Broken twins: autoencoders with one deliberate fault, which the check must catch and name.


def broken(model):
    verdicts = check_evidence(model, batch())
    return [v.statement for v in verdicts if not v.passed]


@pytest.mark.parametrize("posterior", ["normal", "full", "flow"])
def test_our_models_keep_the_laws(posterior):
    require(check_evidence(build(posterior=posterior).float(), batch()))


class HalfTheEntropy(VAE):
    """Log q without its constant and half of its scale."""

    def weigh(self, rows, noise, belief=None):
        found = super().weigh(rows, noise, belief)
        return type(found)(found.log_likelihood, found.log_prior, 0.5 * found.log_q, found.kl)


class SumsOverTheBatch(VAE):
    def log_likelihood(self, z, target):
        found = super().log_likelihood(z, target)
        return found + 0.01 * found.mean(1, keepdim=True)


class LogVariance(VAE):
    """Takes a log-deviation for a log-variance, in the KL alone."""

    def weigh(self, rows, noise, belief=None):
        found = super().weigh(rows, noise, belief)
        belief = belief or self.believe(rows)
        sigma = belief.sigma
        kl = 0.5 * (belief.mean.square() + sigma - sigma.log() - 1)
        return type(found)(found.log_likelihood, found.log_prior, found.log_q, kl)


class Signed(VAE):
    def weigh(self, rows, noise, belief=None):
        found = super().weigh(rows, noise, belief)
        return type(found)(found.log_likelihood, found.log_prior, found.log_q, -found.kl)


class Forgetful(VAE):
    """Draws noise of its own from the global generator."""

    def weigh(self, rows, noise, belief=None):
        return super().weigh(rows, torch.randn(noise.shape, dtype=noise.dtype), belief)


@pytest.mark.parametrize(
    ("twin", "says"),
    [
        (HalfTheEntropy, "a KL in closed form"),
        (SumsOverTheBatch, "any company"),
        (LogVariance, "a KL in closed form"),
        (Signed, "no term of a KL is negative"),
        (Forgetful, "the same bits"),
    ],
)
def test_a_broken_autoencoder_is_caught_and_named(twin, says):
    model = build(seed=1)
    model.__class__ = twin
    assert any(says in statement for statement in broken(model))


def test_a_density_that_is_not_its_draws_is_caught():
    model = build(seed=1)
    likelihood = model.target[0].likelihood

    def wrong(theta):
        belief = type(likelihood).forward(likelihood, theta)
        shifted = SimpleNamespace(mean=belief.mean, sigma=belief.sigma, kl=belief.kl, log_prob=belief.log_prob)
        shifted.draw = lambda noise: (belief.draw(noise)[0], belief.draw(noise)[1] + math.log(2))
        return shifted

    likelihood.forward = wrong
    assert any("density there" in statement for statement in broken(model))
