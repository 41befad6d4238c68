import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapsto.data.order import batches
from mapsto.errors import ConfigError


def places(lengths, parts):
    return sum(len(part) * max(1, int(lengths[part].max())) for part in parts)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 300), max_size=400),
    st.integers(1, 2000) | st.none(),
    st.integers(1, 80) | st.none(),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_row_comes_once_and_no_batch_is_over_its_budget(lengths, tokens, rows, epoch, shuffle):
    lengths = np.array(lengths, np.int64)
    if tokens is None and rows is None:
        rows = 8
    parts = batches(lengths, tokens=tokens, rows=rows, seed=1, epoch=epoch, shuffle=shuffle)
    assert sorted(np.concatenate([*parts, np.zeros(0, np.int64)]).tolist()) == list(range(len(lengths)))
    for part in parts:
        assert len(part) >= 1
        assert rows is None or len(part) <= rows
        assert tokens is None or len(part) == 1 or len(part) * lengths[part].max() <= tokens


def test_batches_are_as_full_as_the_budget_lets_them():
    # Reference: go through the rows in order of length and close a batch when one more would be too much.
    lengths = np.random.default_rng(0).integers(1, 50, 500)
    expected, now = [], []
    for row in np.argsort(lengths, kind="stable").tolist():
        if now and ((len(now) + 1) * lengths[row] > 300 or len(now) == 20):
            expected.append(now)
            now = []
        now.append(row)
    expected.append(now)
    got = batches(lengths, tokens=300, rows=20, seed=0, epoch=0, shuffle=False)
    assert [part.tolist() for part in got] == expected


def test_the_order_is_a_function_of_seed_and_epoch_only():
    lengths = np.random.default_rng(0).integers(5, 201, 3000)

    def order(seed, epoch):
        return np.concatenate(batches(lengths, tokens=4000, seed=seed, epoch=epoch)).tolist()

    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    assert order(0, 5) == order(0, 5)
    assert len({tuple(order(s, e)) for s in (0, 1) for e in (0, 1)}) == 4
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@pytest.mark.parametrize("budget", [{"rows": 64}, {"tokens": 64 * 102}, {"tokens": 64 * 102, "rows": 64}])
def test_at_least_95_percent_of_the_places_hold_a_token(budget):
    lengths = np.random.default_rng(0).integers(5, 201, 20_000)
    parts = batches(lengths, **budget, seed=0, epoch=0)
    assert lengths.sum() / places(lengths, parts) >= 0.95


def test_batches_of_one_epoch_come_in_no_order_of_length_and_mix_rows_anew():
    lengths = np.random.default_rng(0).integers(5, 201, 20_000)
    first, second = (batches(lengths, rows=64, seed=0, epoch=epoch) for epoch in (0, 1))
    means = np.array([lengths[part].mean() for part in first])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.25
    mates = {row: set(part.tolist()) for part in first for row in part.tolist()}
    again = np.mean([len(mates[row] & set(part.tolist())) - 1 for part in second for row in part.tolist()[:1]])
    assert again < 5


def test_without_shuffling_rows_come_by_length():
    lengths = np.array([3, 1, 2, 1])
    assert [p.tolist() for p in batches(lengths, rows=3, seed=0, epoch=0, shuffle=False)] == [[1, 3, 2], [0]]


def test_a_budget_of_nothing_is_refused():
    for wrong in ({}, {"tokens": 0}, {"rows": 0}):
        with pytest.raises(ConfigError, match="at least one of both"):
            batches(np.array([1, 2]), **wrong, seed=0, epoch=0)
