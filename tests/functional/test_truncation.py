import math

import pytest
import torch

from mapsto.functional.truncation import draw, likeliest, min_p, nucleus, temper, top_k
from mapsto.stream import stream

INF = math.inf


def odds(rows=40, size=30, seed=0):
    """Random distributions, some with equal and some with impossible tokens."""
    x = 2 * torch.randn(rows, size, generator=stream(seed, "test"), dtype=torch.float64)
    x[::3] = x[::3].round()
    x[1::4, ::5] = -INF
    return torch.log_softmax(x, -1)


def over(p, kept):
    """The distribution over what is kept, in plain Python."""
    total = sum(p[v] for v in kept)
    return [p[v] / total if v in kept else 0.0 for v in range(len(p))]


def plain_top_k(p, k):
    return over(p, sorted(range(len(p)), key=lambda v: (-p[v], v))[:k])


def plain_nucleus(p, mass):
    kept, total = [], 0.0
    for v in sorted(range(len(p)), key=lambda v: (-p[v], v)):
        if kept and total >= mass:
            break
        kept.append(v)
        total += p[v]
    return over(p, kept)


def plain_min_p(p, ratio):
    return over(p, [v for v in range(len(p)) if p[v] >= ratio * max(p) * (1 - 1e-12)])


def plain_temper(p, temperature):
    if temperature == 0:
        return over(p, [p.index(max(p))])
    x = [(v / max(p)) ** (1 / temperature) for v in p]
    return [v / sum(x) for v in x]


CASES = [
    *((top_k, plain_top_k, k) for k in (1, 2, 7, 29, 30, 99)),
    *((nucleus, plain_nucleus, mass) for mass in (0.0, 0.1, 0.5, 0.9, 0.999)),
    *((min_p, plain_min_p, ratio) for ratio in (0.001, 0.05, 0.3, 1.0)),
    *((temper, plain_temper, temperature) for temperature in (0.0, 0.01, 0.5, 1.0, 1.7, 50.0)),
]


@pytest.mark.parametrize(("cut", "plain", "much"), CASES)
def test_a_cut_is_what_a_plain_loop_says(cut, plain, much):
    log_p = odds()
    kept = log_p.clone()
    given = cut(log_p, much).exp()
    wanted = torch.tensor([plain(row, much) for row in log_p.exp().tolist()], dtype=torch.float64)
    torch.testing.assert_close(given, wanted, atol=1e-12, rtol=0)
    assert torch.equal((given > 0), (wanted > 0))
    assert torch.equal(log_p, kept)


@pytest.mark.parametrize(("cut", "plain", "much"), CASES)
def test_rows_are_cut_alone_and_in_any_shape(cut, plain, much):
    log_p = odds()
    whole = cut(log_p, much)
    assert torch.equal(cut(log_p.view(4, 5, 2, 30), much).view(40, 30), whole)
    assert torch.equal(torch.stack([cut(row, much) for row in log_p]), whole)


@pytest.mark.parametrize("cut", [lambda x: top_k(x, 30), lambda x: nucleus(x, 1.0), lambda x: min_p(x, 0.0)])
def test_a_cut_that_cuts_nothing_changes_nothing(cut):
    assert torch.equal(cut(odds()), odds())


def test_a_wide_nucleus_is_found_in_a_large_vocabulary():
    log_p = torch.log_softmax(torch.randn(3, 5000, generator=stream(2, "test"), dtype=torch.float64), -1)
    log_p[0] = torch.log_softmax(torch.arange(5000.0, dtype=torch.float64), -1)
    for mass in (0.2, 0.95):
        wanted = torch.tensor([plain_nucleus(row, mass) for row in log_p.exp().tolist()], dtype=torch.float64)
        torch.testing.assert_close(nucleus(log_p, mass).exp(), wanted, atol=1e-12, rtol=0)
    assert (wanted > 0).sum(1).tolist()[0] < 10 < 1000 < (wanted > 0).sum(1).max()


def test_equally_likely_tokens_are_kept_from_the_lowest_id():
    flat = torch.zeros(2, 5).log_softmax(-1)
    for cut in (top_k(flat, 2), nucleus(flat, 0.39)):
        assert cut.exp().tolist() == [[0.5, 0.5, 0, 0, 0]] * 2
    assert temper(flat, 0).exp().tolist() == [[1, 0, 0, 0, 0]] * 2


def test_the_coldest_distribution_is_the_limit_of_cold_ones():
    log_p = odds()[1::3]  # no two are equal
    for temperature in (1e-6, 1e-300, 5e-324):
        assert torch.equal(temper(log_p, temperature).exp(), temper(log_p, 0).exp())


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 17, 26, 29, 30, 50])
def test_the_likeliest_come_in_falling_order_and_equal_ones_by_place(k):
    x = odds(seed=1)
    values, index = likeliest(x, k)
    for row, got, places in zip(x.tolist(), values.tolist(), index.tolist(), strict=True):
        assert places == sorted(range(30), key=lambda v: (-row[v], v))[:k]
        assert got == [row[v] for v in places]


def test_what_is_not_a_number_stays_so():
    values, index = likeliest(torch.full((2, 5), torch.nan), 3)
    assert values.isnan().all()
    assert ((index >= 0) & (index < 5)).all()


def test_a_draw_inverts_the_running_sums():
    p = odds().exp()
    u = torch.rand(100, 40, generator=stream(0, "test"), dtype=torch.float64)
    drawn = draw(odds().expand(100, 40, 30), u)
    for row in range(40):
        sums = torch.tensor([math.fsum(p[row, : v + 1].tolist()) for v in range(30)])
        assert drawn[:, row].tolist() == [next(v for v in range(30) if sums[v] > x) for x in u[:, row].tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_draw_is_impossible_even_at_the_ends(dtype):
    log_p = odds().to(dtype)
    log_p[:, 0], log_p[:, -1] = -INF, -INF
    for uniform in (0.0, 5e-324, 1 - 2**-24, 1 - 2**-53, 1.0):
        drawn = draw(log_p, torch.full((40,), uniform, dtype=torch.float64))
        assert log_p.gather(1, drawn[:, None]).isfinite().all()
