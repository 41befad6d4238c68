"""Beliefs that are right are seen to be, and beliefs that are wrong are caught."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from tests.models.test_vae import SIZE, linear

from mapsto.stream import stream, stream_numpy
from mapsto.tasks.latent import p_values
from mapsto.training.calibration import Calibration, kolmogorov, ranks


@pytest.mark.parametrize("shape", [(30, 1.0), (400, 1.0), (400, 1.2), (1000, 0.9)])
def test_the_distance_and_its_probability_are_those_of_scipy(shape):
    count, power = shape
    u = stream_numpy(0, "uniform", count).random(count) ** power
    wanted = kstest(u, "uniform", method="exact")
    distance, p = kolmogorov(u)
    assert distance == pytest.approx(wanted.statistic, abs=1e-12)
    assert p == pytest.approx(wanted.pvalue, abs=0.02)


def simulated(rows: int = 1000):
    """The linear model, whose encoder is exact, and rows drawn of it."""
    model, exact = linear("full")
    z = torch.randn(rows, 2, generator=stream(0, "z"), dtype=torch.float64)
    x = z @ exact.weight.T + 0.5 + 0.2 * torch.randn(rows, 6, generator=stream(0, "x"), dtype=torch.float64)
    pixels = 255 * x.view(rows, *SIZE, 1)  # no 8 bits: the encoder would not be exact
    return model, z, {"image": {"pixels": pixels, "size": torch.tensor([SIZE] * rows)}}


def test_the_exact_posterior_is_calibrated():
    model, z, batch = simulated()
    shares = ranks(model, z, batch)
    assert ((shares > 0) & (shares < 1)).all()
    found = Calibration.of(shares)
    assert found.p > 0.01
    assert found.spread == pytest.approx(1, abs=0.1)
    assert "as far as" in found.verdict


@pytest.mark.parametrize(("change", "lean"), [("narrow", "too narrow"), ("wide", "too wide"), ("shifted", "one side")])
def test_wrong_beliefs_are_caught(change, lean):
    model, z, batch = simulated()
    head = model.encoder.output.targets["latent"].head
    with torch.no_grad():
        head.bias[2:4] += {"narrow": -0.4, "wide": 0.6, "shifted": 0}[change]
        if change == "shifted":
            head.bias[:2] += 0.1
    found = Calibration.of(ranks(model, z, batch))
    assert found.p < 1e-4
    assert lean in found.verdict


def test_p_values_are_uniform_for_rows_of_the_same_kind_and_small_for_strange_ones():
    rng = np.random.default_rng(0)
    levels = []
    for _ in range(400):
        known, new = rng.standard_normal(39), rng.standard_normal(10)
        levels.append(p_values(new, known) <= 0.05)
    assert np.mean(levels) == pytest.approx(0.05, abs=0.01)
    assert p_values(np.array([9.0, -9.0, np.inf]), np.arange(4.0)).tolist() == [0.2, 1.0, 0.2]
    assert p_values(np.array([3.0]), np.arange(4.0)).tolist() == [0.4]  # one as strange counts
