"""Metrics of forecasts beside loops, and the simple forecasts beside what they say they do."""

import numpy as np
import pytest

from mapsto.training.horizon import Average, Linear, Naive, ending, errors, forecast, judged, steps
from mapsto.training.metric import bootstrap


def noise(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def holed(x, share=0.2, seed=9):
    return np.where(np.random.default_rng(seed).random(x.shape) < share, np.nan, x)


def test_metrics_are_those_of_a_loop_over_known_numbers():
    mean, true = noise(7, 5, 2), holed(noise(7, 5, 2, seed=1))
    half = np.abs(noise(7, 5, 2, seed=2))
    nll, unit = noise(7, seed=3), np.array([0.5, 2.0])
    found = forecast(mean, true, (mean - half, mean + half), nll, unit)
    each = {k: [] for k in ("mae", "rmse", "mase", "coverage")}
    for c in range(2):
        at = np.isfinite(true[..., c])
        error = (mean - true)[..., c][at]
        each["mae"].append(np.abs(error).mean())
        each["rmse"].append(np.sqrt((error**2).mean()))
        each["mase"].append(np.abs(error).mean() / unit[c])
        each["coverage"].append((np.abs(error) <= half[..., c][at]).mean())
    for name, values in each.items():
        assert found[name] == pytest.approx(np.mean(values)), name
    assert found["nll"] == pytest.approx(nll.sum() / np.isfinite(true).sum())


def test_a_weight_of_two_is_the_row_twice():
    mean, true, nll = noise(4, 3, 1), noise(4, 3, 1, seed=1), noise(4, seed=2)
    weight = np.array([2.0, 0.0, 1.0, 1.0])
    at = [0, 0, 2, 3]
    span = (mean - 1, mean + 1)
    found = forecast(mean, true, span, nll, [1.0], weight=weight)
    twice = forecast(mean[at], true[at], (span[0][at], span[1][at]), nll[at], [1.0])
    assert {k: float(v) for k, v in found.items()} == pytest.approx(twice)
    assert set(bootstrap(lambda weight: forecast(mean, true, span, nll, weight=weight), 4)) >= {"mae", "rmse"}


def test_steps_tell_the_error_of_each():
    mean, true = noise(6, 3, 1), noise(6, 3, 1, seed=1)
    found = steps(mean, true)
    assert [one["mae"] for one in found] == pytest.approx(np.abs(mean - true).mean((0, 2)).tolist())
    assert steps(mean, np.full_like(true, np.nan))[0] == {"mae": None, "rmse": None}


def test_a_season_says_what_was_one_period_before():
    past = np.arange(10.0).reshape(1, 10, 1)
    assert Naive(4).mean(past, 6)[0, :, 0].tolist() == [6, 7, 8, 9, 6, 7]
    assert Naive(1).mean(past, 3)[0, :, 0].tolist() == [9, 9, 9]
    past[0, 7] = np.nan
    assert Naive(4).mean(past, 3)[0, :, 0].tolist() == [6, 9, 8]
    assert Naive(40).mean(past, 2)[0, :, 0].tolist() == [9, 9]


def test_the_period_is_found():
    t = np.arange(200)[:, None] + np.arange(60)
    x = np.sin(2 * np.pi * t / 9)[..., None] + 0.01 * noise(200, 60, 1)
    assert Naive(0).fit(x[:, :40], x[:, 40:]).period in (9, 18, 27, 36)


def test_a_line_goes_on():
    start, slope = noise(300, 1, 1), noise(300, 1, 1, seed=1)
    x = 100 * start + slope * np.arange(12)[:, None]
    past, y = x[:, :8], x[:, 8:]
    made = Linear().fit(past[:200], y[:200], past[200:250], y[200:250])
    assert np.abs(made.mean(past[250:], 4) - y[250:]).max() < 0.05
    assert errors(Naive(1), past, y)[0] > 1


def test_the_last_known_number_is_found_in_each_channel():
    past = np.array([[[1.0, np.nan], [2.0, 5.0], [np.nan, np.nan]], [[np.nan, 1.0]] * 3])
    assert ending(past).tolist() == [[2, 5], [0, 1]]


def test_simple_forecasts_have_intervals_and_a_density():
    y = noise(4000, 2, 1)
    found = judged(Average().fit(y), np.zeros((4000, 0, 1)), y, None)
    assert found["coverage"] == pytest.approx(0.95, abs=0.01)
    assert found["nll"] == pytest.approx(0.5 * np.log(2 * np.pi * np.e), abs=0.03)
    assert found["mase"] is None
