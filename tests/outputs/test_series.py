"""Forecasts: their density beside torch's, what is not known, where they go on from, and the Student likelihood."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from mapsto.errors import DataError
from mapsto.inputs.series import SeriesInput
from mapsto.likelihoods.gaussian import GaussianLikelihood
from mapsto.likelihoods.student import StudentLikelihood
from mapsto.nn.channel import Frame
from mapsto.outputs.series import SeriesOutput
from mapsto.ragged import Ragged
from mapsto.stream import stream

MEAN, SCALE = [3.0, -1.0], [2.0, 0.5]


def output(**more):
    return SeriesOutput(8, name="y", horizon=4, mean=MEAN, scale=SCALE, **more)


def gather(part, values):
    parsed = [part.parse(value) for value in values]
    columns = {n: Ragged.pack([row[n] for row in parsed]) for n in parsed[0]}
    return part.gather({n: c.take(np.arange(len(values))) for n, c in columns.items()})


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed, "test"))


@pytest.mark.parametrize("noise", ["gaussian", "student"])
def test_the_density_is_that_of_torch_in_the_users_units(noise):
    out, theta = output(noise=noise), {"y": draw(1, 4, 4).double()}
    values = np.array([[1.0, -2.0], [np.nan, 0.0], [4.0, np.nan]])
    found = out.log_likelihood(theta, gather(out, [(values,)]))
    told = out.predict(theta)["y"]
    wanted = 0.0
    for h, c in np.argwhere(np.isfinite(values)):
        mean, sigma = told["value"][0, h, c], told["sigma"][0, h, c]
        if noise == "gaussian":
            wanted += stats.norm(mean, sigma).logpdf(values[h, c])
        else:
            nu = float(out.head.likelihood.nu.detach())
            wanted += stats.t(nu, mean, sigma * np.sqrt((nu - 2) / nu)).logpdf(values[h, c])
    assert found.item() == pytest.approx(wanted, abs=1e-5)


def test_the_loss_counts_the_numbers_that_are_known():
    out = output()
    batch = gather(out, [(np.array([[1, np.nan], [2, 3]]),), (np.ones((4, 2)),)])
    loss = out.loss(out(draw(2, 4, 8)), batch)
    assert loss.count.tolist() == [3, 8]
    assert batch["known"].sum().item() == 11


def test_what_is_not_known_gets_no_gradient():
    out = output()
    theta = draw(1, 4, 4).requires_grad_()
    out.loss({"y": theta}, gather(out, [(np.array([[1, np.nan]]),)])).terms["y"].sum().backward()
    touched = theta.grad[0] != 0
    assert touched[0].tolist() == [True, False, True, False]
    assert not touched[1:].any()


def test_intervals_hold_nineteen_of_twenty():
    for kind in (GaussianLikelihood(1, sigma="datum"), StudentLikelihood(1)):
        theta = torch.tensor([1.0, 0.5])
        drawn = kind.sample(theta.expand(40_000, 2), stream(1, "test"))[:, 0]
        half = kind.reach(0.95) * kind.sigma(theta)
        assert (drawn - 1.0).abs().lt(half).double().mean().item() == pytest.approx(0.95, abs=0.005)


@pytest.mark.parametrize("freedom", [-1.0, 0.0, 1.0])
def test_the_student_density_is_scipys_and_integrates_to_one(freedom):
    kind = StudentLikelihood(1).double()
    with torch.no_grad():
        kind.freedom.fill_(freedom)
    nu, theta = float(kind.nu.detach()), torch.tensor([0.7, -0.3]).double()
    sigma = float(kind.sigma(theta).detach())
    oracle = stats.t(nu, 0.7, sigma * np.sqrt((nu - 2) / nu))
    at = np.linspace(-30, 30, 7)
    found = kind.log_prob(theta.expand(7, 2), torch.from_numpy(at)[:, None])
    np.testing.assert_allclose(found.detach().numpy(), oracle.logpdf(at), atol=1e-10)
    density = lambda x: float(kind.log_prob(theta, torch.tensor([x]).double()).exp().detach())  # noqa: E731
    assert integrate.quad(density, -np.inf, np.inf)[0] == pytest.approx(1, abs=1e-6)
    assert oracle.std() == pytest.approx(sigma, rel=1e-6)


def frame(values, patch=1, past=0):
    part = SeriesInput(8, mean=[0.0], scale=[1.0], patch=patch)
    return part.frame(gather(part, values), past)


@pytest.mark.parametrize("patch", [1, 2, 3])
def test_a_frame_is_the_last_known_number_the_spread_and_the_samples_before(patch):
    values = [np.array([1.0, 4.0, 2.0, 7.0, 5.0]), np.array([3.0, np.nan, 8.0]), np.array([2.0, 2.0])]
    origin, unit, tail = frame(values, patch, past=4)
    assert origin[:, 0].tolist() == [5, 8, 2]
    for i, x in enumerate(values):
        assert unit[i, 0].item() == pytest.approx(np.sqrt(np.nanvar(x) + 1e-4), rel=1e-5)
        wanted = np.zeros(4)
        kept = x[-4:]
        wanted[4 - len(kept) :] = np.nan_to_num((kept - x[-1]) / unit[i, 0].item())
        np.testing.assert_allclose(tail[i, :, 0].numpy(), wanted, atol=1e-5)


def test_a_relative_answer_goes_on_from_the_last_number_in_units_of_the_spread():
    out = output(source=0, past=3)
    with torch.no_grad():
        out.linear.copy_(draw(4, 3))
    theta = draw(2, 4, 4, seed=1)
    o, u, x = draw(2, 2, seed=2), draw(2, 2, seed=3).exp(), draw(2, 3, 2, seed=4)
    found = out.relate({"y": theta}, Frame(o, u, x))["y"]
    for b, h, c in np.ndindex(2, 4, 2):
        line = sum(out.linear[h, k] * x[b, k, c] for k in range(3))
        torch.testing.assert_close(found[b, h, c], o[b, c] + u[b, c] * (theta[b, h, c] + line))
        torch.testing.assert_close(found[b, h, 2 + c], theta[b, h, 2 + c] + u[b, c].log())


def test_a_relative_series_is_told_alike_on_every_level_and_scale():
    part = SeriesInput(8, mean=[0.0], scale=[1.0], relative=True, limit=10)
    x = np.cumsum(np.random.default_rng(0).normal(size=7)) * 10
    here, there = (part(gather(part, [v])) for v in (x, 1000 + 50 * x))
    torch.testing.assert_close(here.items, there.items, atol=1e-3, rtol=1e-3)
    assert here.places[0, :, 0].tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_measuring_takes_the_units_of_the_series_it_goes_on_from():
    rows = [[(np.arange(3.0),), (np.arange(5.0),)]]
    before = [{}, {"mean": [9.0], "scale": [4.0], "limit": 20, "patch": 2}]
    told = SeriesOutput.measure(rows, columns=[("y", "series")], before=before)
    assert told == {
        "name": "y", "horizon": 5, "mean": [9.0], "scale": [4.0], "noise": "gaussian", "source": 1, "past": 40,
    }  # fmt: skip
    alone = SeriesOutput.measure(rows, columns=[("y", "series")], before=before, relative=False, horizon=2)
    assert (alone["source"], alone["horizon"], alone["mean"]) == (-1, 2, [0.5])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones(3), "1 channels where the model says 2"),
        (np.zeros((0, 2)), "is empty"),
        (np.full((3, 2), np.nan), "has no known number in its first steps"),
    ],
)
def test_futures_that_cannot_be_learned_from_are_refused(value, message):
    with pytest.raises(DataError, match=message):
        output().parse((value,))
