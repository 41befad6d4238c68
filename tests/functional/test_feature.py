"""Law F: random features estimate their kernel without bias, with the variance of the formulas.

``benchmarks/kernel.py`` has the formulas, the careless twin and the pair with |x + y|² = 1; it runs the same at length.
"""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from kernel import MAPS, SOFTMAX, careless, pair, promised, regularised, sample, theory
from mapsto.errors import ConfigError
from mapsto.functional.feature import (
    Exponential,
    draw,
    exponential,
    gaussian,
    generalised,
    hyperbolic,
    optimal_shape,
    positive,
    relative_variance,
    trigonometric,
)
from mapsto.stream import stream

DRAWS, FEWER, DIMS = 500_000, 100_000, (8, 16, 64)


@pytest.fixture(scope="module")
def drawn():
    """Rows by coupling and width, drawn once for all tests here."""
    kept = {}

    def get(coupling, dim):
        if (coupling, dim) not in kept:
            make = careless if coupling == "careless" else draw
            count = DRAWS if coupling in ("iid", "orthogonal") else FEWER
            kept[coupling, dim] = make(count, dim, stream(0, coupling, dim), coupling=coupling)
        return kept[coupling, dim]

    return get


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("coupling", ["iid", "orthogonal"])
def test_every_map_estimates_its_kernel_without_bias(coupling, dim, drawn):
    for name in MAPS:
        assert abs(sample(name, *pair(dim), drawn(coupling, dim)).bias) < 4, name


@pytest.mark.parametrize("dim", DIMS)
def test_rows_of_one_norm_estimate_the_regularised_kernel(dim, drawn):
    x, y = pair(dim)
    omega = drawn("regularised", dim)
    assert torch.allclose(omega.norm(dim=1), torch.full((FEWER,), math.sqrt(dim), dtype=torch.float64))
    assert abs(sample("positive", x, y, omega, regularised(x, y)).bias) < 4


@pytest.mark.parametrize("dim", DIMS)
def test_a_rotation_without_its_signs_put_right_is_caught(dim, drawn):
    assert abs(sample("positive", *pair(dim), drawn("careless", dim)).bias) > 4


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("name", [*SOFTMAX, "gaussian"])
def test_the_error_of_independent_rows_is_the_formula(name, dim, drawn):
    x, y = pair(dim)
    error, _ = sample(name, x, y, drawn("iid", dim)).error
    assert error == pytest.approx(theory(name, x, y)[1] / dim, rel=0.05)


@pytest.mark.parametrize("dim", DIMS)
def test_orthogonal_rows_err_less_by_what_is_promised(dim, drawn):
    x, y = pair(dim)
    for name in SOFTMAX:
        error, doubt = sample(name, x, y, drawn("orthogonal", dim)).error
        iid = theory(name, x, y)[1] / dim
        assert error + 3 * doubt < iid, name
        if name == "positive":
            assert error - 3 * doubt < iid - promised(x, y)


@pytest.mark.parametrize("dim", DIMS)
def test_blocks_are_rotations_of_every_direction_alike(dim, drawn):
    rows = drawn("orthogonal", dim)[: FEWER // dim * dim]
    directions = (rows / rows.norm(dim=1, keepdim=True)).view(-1, dim, dim)
    gram = directions @ directions.mT
    assert (gram - torch.eye(dim, dtype=torch.float64)).abs().max() < 1e-5

    def far(q):  # E[Q] = 0, and each entry has variance 1/d
        return (q.mean(0) / (q.std(0) / math.sqrt(len(q)))).abs().max()

    assert far(directions) < 6
    rows = drawn("careless", dim)[: FEWER // dim * dim]
    assert far((rows / rows.norm(dim=1, keepdim=True)).view(-1, dim, dim)) > 6


def test_norms_are_those_of_gaussian_vectors(drawn):
    square = drawn("orthogonal", 16).square().sum(1)  # χ² with 16 degrees: mean 16, variance 32
    assert square.mean() == pytest.approx(16, abs=5 * math.sqrt(32 / DRAWS))
    assert square.var() == pytest.approx(32, rel=0.02)


def test_blocks_beyond_the_width_are_drawn_anew():
    rows = draw(40, 16, stream(0, "x"))
    directions = rows / rows.norm(dim=1, keepdim=True)
    first, second, rest = directions[:16], directions[16:32], directions[32:]
    assert torch.allclose(second @ second.T, torch.eye(16, dtype=torch.float64), atol=1e-12)
    assert (first @ second.T).abs().max() < 0.95
    assert torch.allclose(rest @ rest.T, torch.eye(8, dtype=torch.float64), atol=1e-12)
    assert torch.equal(rows, draw(40, 16, stream(0, "x")))
    assert not torch.equal(rows, draw(40, 16, stream(1, "x")))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ConfigError, match=r'"orthgonal" is not one of .*orthogonal'):
        draw(4, 4, stream(0, "x"), coupling="orthgonal")
    with pytest.raises(ConfigError, match="0 of width 4; expected 1 or more"):
        draw(0, 4, stream(0, "x"))


def test_maps_are_their_formulas():
    x, omega = torch.randn(5, 3, generator=stream(0, "x")).double(), draw(7, 3, stream(1, "x"))
    for row, w in ((i, j) for i in range(5) for j in range(7)):
        turn, half = float(omega[w] @ x[row]), float(x[row] @ x[row]) / 2
        assert positive(x, omega)[row, w] == pytest.approx(math.exp(turn - half) / math.sqrt(7))
        assert hyperbolic(x, omega)[row, w + 7] == pytest.approx(math.exp(-turn - half) / math.sqrt(14))
        assert gaussian(x, omega)[row, w] == pytest.approx(math.sin(turn) / math.sqrt(7))
        assert trigonometric(x, omega)[row, w + 7] == pytest.approx(math.exp(half) * math.cos(turn) / math.sqrt(7))
        assert generalised(x, omega)[row, w] == pytest.approx(max(0, turn) / math.sqrt(7) + 1e-3)
        a = -0.1
        size = float(omega[w] @ omega[w])
        optimal = (1 - 4 * a) ** (3 / 4) / math.sqrt(7) * math.exp(a * size + math.sqrt(1 - 4 * a) * turn - half)
        assert exponential(x, Exponential.optimal(omega, a))[row, w] == pytest.approx(optimal)


def test_a_scale_within_the_features_is_one_of_the_vectors():
    x, made = (
        torch.randn(5, 3, generator=stream(0, "x")).double(),
        Exponential.optimal(draw(7, 3, stream(1, "x")), -0.1),
    )
    assert torch.allclose(exponential(x, made.scaled(0.3)), exponential(math.sqrt(0.3) * x, made))


def log_second_moment(a, norm, dim):
    return dim * math.log(1 - 4 * a) - dim / 2 * math.log(1 - 8 * a) + norm / (1 - 8 * a)


@pytest.mark.parametrize("dim", [4, 16, 64, 256])
@pytest.mark.parametrize("norm", [0.1, 1.0, 4.0, 16.0, 60.0])
def test_the_optimal_shape_minimises_the_second_moment(norm, dim):
    best = minimize_scalar(lambda a: log_second_moment(a, norm, dim), bounds=(-20, 0.1), method="bounded")
    least = log_second_moment(optimal_shape(norm, dim), norm, dim)
    assert least <= best.fun + 1e-6
    assert least <= norm


def test_nothing_is_gained_where_the_vectors_cancel():
    assert optimal_shape(0.0, 64) == 0


def test_the_second_moment_is_80_times_lower_at_16_and_a_third_lower_at_4():
    gain = {norm: math.exp(norm - log_second_moment(optimal_shape(norm, 64), norm, 64)) for norm in (4.0, 16.0)}
    assert gain[16.0] == pytest.approx(80, rel=0.1)
    assert 1 / gain[4.0] == pytest.approx(2 / 3, rel=0.06)


@pytest.mark.parametrize(("name", "how"), [("positive", {}), ("hyperbolic", {"hyperbolic": True}), ("optimal", {})])
def test_the_predicted_variance_is_what_is_found(name, how, drawn):
    x, y = pair(16)
    norm = (x + y).square().sum()
    if name == "optimal":
        how = {"shape": optimal_shape(float(norm), 16)}
    error, _ = sample(name, x, y, drawn("iid", 16)).error  # of blocks of 16 rows
    found = math.log(error / math.exp(2 * float(x @ y)))
    assert float(relative_variance(norm, 16, 16, **how)) == pytest.approx(found, abs=0.05)


def test_the_predicted_variance_is_a_logarithm_that_overflows_nowhere():
    norm = torch.tensor([0.0, 1e-30, 1e3, 1e6])
    for how in ({}, {"hyperbolic": True}, {"shape": -0.1}):
        found = relative_variance(norm, 256, 64, **how)
        assert found.isfinite().all()
        assert (np.diff(found.numpy()) >= 0).all()
