"""Counts: their likelihood beside scipy's, when a column is taken for counts, and autoencoders of tables that have some."""

import numpy as np
import pytest
import torch
from scipy import stats

from mapsto.errors import ConfigError, DataError
from mapsto.functional.mixture import count_quantile
from mapsto.nn.counted import CountedLikelihood, marginal, suits
from mapsto.nn.target import NumberTarget
from mapsto.outputs.vector import VectorOutput
from mapsto.stream import stream

RNG = np.random.default_rng(0)
VISITS = RNG.negative_binomial(0.8, 0.1, 4000).astype(float)


def told(counts, mean, scale):
    return torch.tensor((np.asarray(counts, float) - mean) / scale)[:, None]


def test_log_p_mean_and_sigma_are_those_of_the_count_that_a_standardised_number_stands_for():
    p = CountedLikelihood(7.2, 8.5).double()
    with torch.no_grad():
        p.count.log_shape.fill_(np.log(1.7) / 10)
    theta = torch.tensor([[-1.0], [0.5], [3.0]], dtype=torch.float64)
    m = 7.2 * np.array([np.exp(-1), 1.5, 4.0])
    reference = stats.nbinom(1.7, 1.7 / (1.7 + m))
    counts = [0, 3, 41]
    assert p.log_prob(theta, told(counts, 7.2, 8.5)).tolist() == pytest.approx(reference.logpmf(counts).tolist())
    assert (p.mean(theta)[:, 0] * 8.5 + 7.2).tolist() == pytest.approx(m.tolist())
    assert (p.sigma(theta)[:, 0] * 8.5).tolist() == pytest.approx(reference.std().tolist())
    drawn = p.sample(theta.expand(3, 4000)[..., None].double(), stream(0, "counts")) * 8.5 + 7.2
    assert torch.allclose(drawn, drawn.round(), atol=1e-9)
    assert drawn[..., 0].mean(1).tolist() == pytest.approx(m.tolist(), rel=0.1)


@pytest.mark.parametrize(
    ("column", "counted"),
    [
        (VISITS, True),
        (RNG.poisson(2.0, 500).astype(float), True),
        (RNG.integers(1990, 2026, 500).astype(float), False),  # years: far narrower than counts of 2,000
        (RNG.normal(170, 8, 500).round(), False),
        (VISITS * 5, False),
        (VISITS + 0.5, False),
        (VISITS - 1, False),
        (np.full(9, 3.0), False),
        (np.array([4.0]), False),
        (VISITS * 1e6, False),
    ],
)
def test_a_column_is_of_counts_if_it_spreads_as_counts_do(column, counted):
    assert suits(column, np.zeros((len(column), 0))) is counted


def test_a_column_that_others_tell_closely_is_no_count():
    noise = RNG.normal(0, 3, (4000, 1))
    assert not suits(VISITS, VISITS[:, None] + noise / 10)
    assert suits(VISITS, np.where(RNG.random((4000, 2)) < 0.3, np.nan, noise))
    assert suits(VISITS, np.full((4000, 1), np.nan))


def test_the_marginal_has_the_moments_of_the_known_counts():
    x = torch.from_numpy(VISITS)
    m, v = VISITS.mean(), VISITS.var()
    r = m * m / (v - m)
    wanted = stats.nbinom(r, r / (r + m)).logpmf([0, 2, 50])
    assert marginal(x, torch.tensor([0.0, 2.0, 50.0], dtype=torch.float64)).tolist() == pytest.approx(wanted.tolist())


def test_quantiles_of_mixtures_of_counts_are_the_least_that_reach():
    w = torch.tensor([[0.3, 1.0], [0.7, 0.0]], dtype=torch.float64)
    m = torch.tensor([[2.0, 5000.0], [30.0, 1.0]], dtype=torch.float64)
    r = torch.tensor([[0.5, 4.0], [9.0, 1.0]], dtype=torch.float64)
    each = stats.nbinom(r.numpy(), (r / (r + m)).numpy())
    for p in (0.025, 0.5, 0.975):
        x = count_quantile(p, w, m, r).numpy()
        assert ((w.numpy() * each.cdf(x)).sum(0) >= p).all()
        assert ((w.numpy() * each.cdf(x - 1)).sum(0) < p).all()


def test_what_is_no_count_is_refused_and_several_numbers_are_none():
    head = NumberTarget(4, mean=[3.0], scale=[2.0], counted=True)
    assert head.encode(5.0).tolist() == [1.0]
    for bad in (2.5, -1.0):
        with pytest.raises(DataError, match=f"is {bad:g}, and counts are 0, 1, 2 and so on"):
            head.encode(bad)
    for mean in ([3.0, 1.0], [-2.0]):
        with pytest.raises(ConfigError, match="a count is one number"):
            NumberTarget(4, mean=mean, scale=[2.0] * len(mean), counted=True)


def test_a_table_says_which_columns_are_counts():
    rows = [
        (v, y, None if i % 7 else 1.5)
        for i, (v, y) in enumerate(zip(VISITS, RNG.permutation(VISITS) + 1990, strict=True))
    ]
    columns = [("visits", "number"), ("year", "number"), ("rest", "number")]
    rows[7] = (rows[7][0], None, 2.0)

    def counted(**options):
        found = VectorOutput.measure([rows[:2000], rows[2000:]], columns=columns, **options)["targets"]
        return [target["counted"] for target in found.values()]

    assert counted(holes=True) == [True, False, False]
    assert counted(holes=True, number="gaussian") == [False] * 3
    one = [(row[:1]) for row in rows]
    assert not VectorOutput.measure([one], columns=columns[:1])["targets"]["visits"]["counted"]
    assert VectorOutput.measure([one], columns=columns[:1], number="count")["targets"]["visits"]["counted"]


def test_nats_of_counts_are_probabilities_beside_densities_of_numbers():
    targets = {
        "visits": {"kind": "number", "mean": [7.0], "scale": [8.0], "counted": True},
        "size": {"kind": "number", "mean": [1.0], "scale": [2.0]},
    }
    output = VectorOutput(4, targets=targets, holes=True)
    parsed = [output.parse(row) for row in ((5.0, 2.0), (None, 2.0), (0.0, None))]
    target = {name: torch.from_numpy(np.stack([row[name] for row in parsed])) for name in targets}
    target["\tknown"] = torch.from_numpy(np.stack([row["\tknown"][0] for row in parsed]))
    theta = output(torch.zeros(3, 1, 4))
    m = 7.0 * (torch.exp(theta["visits"].clamp(max=0)) + theta["visits"].clamp(min=0))[:, 0, 0].detach().numpy()
    counts = stats.nbinom(1, 1 / (1 + m)).logpmf([5, 0, 0])
    mu = theta["size"][:, 0, 0].detach().numpy() * 2 + 1
    sizes = stats.norm(mu, 2 * np.exp(output.heads[1].likelihood.sigma(theta["size"]).log().mean().item())).logpdf(2.0)
    wanted = [counts[0] + sizes[0], sizes[1], counts[2]]
    assert output.log_likelihood(theta, target).tolist() == pytest.approx(wanted, rel=1e-5)
