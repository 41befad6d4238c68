from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapsto.errors import ConfigError, DataError
from mapsto.ragged import Ragged
from mapsto.training.backoff import Backoff, Unigram, tuned_order
from mapsto.vocabulary import BEGIN, END, UNKNOWN


def packed(rows):
    column = Ragged.pack([np.array(r, np.int64) for r in rows])
    return column.values.astype(np.int64), column.offsets


def zipf(rows, size, seed=0, longest=12):
    """Rows whose ids follow the one before, many of them rare: all of n_1 ... n_4 occur."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, size - 2) ** 1.3
    share /= share.sum()
    drawn = []
    for _ in range(rows):
        row = [int(rng.choice(size - 3, p=share))]
        for _ in range(rng.integers(0, longest)):
            row.append(
                row[-1] if rng.random() < 0.3 else (row[-1] * 7 + int(rng.choice(size - 3, p=share))) % (size - 3)
            )
        drawn.append([i + 3 for i in row])
    return drawn


class Plain:
    """The formula, by dictionaries of tuples."""

    def __init__(self, rows, order, size):
        self.order, self.size = order, size
        raw = [Counter() for _ in range(order + 1)]
        for row in rows:
            line = [BEGIN, *row, END]
            for end in range(1, len(line) + 1):
                for k in range(1, min(order, end) + 1):
                    raw[k][tuple(line[end - k : end])] += 1
        self.counts = [Counter() for _ in range(order + 1)]
        for k in range(1, order + 1):
            before = defaultdict(set)
            for gram in raw[k + 1] if k < order else ():
                before[gram[1:]].add(gram[0])
            for gram, count in raw[k].items():
                whole = k == order or gram[0] == BEGIN
                self.counts[k][gram] = count if whole else len(before[gram])
        del self.counts[1][(BEGIN,)]
        self.d = [None] + [self.discounts(c.values()) for c in self.counts[1:]]

    @staticmethod
    def discounts(counts):
        n1, n2, n3, n4 = (sum(c == i for c in counts) for i in (1, 2, 3, 4))
        if min(n1, n2, n3, n4) > 0:
            y = n1 / (n1 + 2 * n2)
            d = 0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
            if min(d[1:]) > 0:
                return d
        return 0, 0.5, 1, 1.5

    def p(self, word, context, k=None):
        k = min(self.order, len(context) + 1) if k is None else k
        if k == 0:
            return 1 / (self.size - 1)
        h = tuple(context[len(context) - k + 1 :])
        lower = self.p(word, context, k - 1)
        seen = {g: c for g, c in self.counts[k].items() if g[:-1] == h}
        total = sum(seen.values())
        if not total:
            return lower
        count, d = seen.get((*h, word), 0), self.d[k]
        return (count - d[min(count, 3)] + sum(d[min(c, 3)] for c in seen.values()) * lower) / total

    def log_prob(self, rows):
        found = []
        for row in rows:
            line = [BEGIN, *row, END]
            found += [np.log(self.p(line[i], line[:i])) for i in range(1, len(line))]
        return np.array(found)


def everything(model, context):
    """(V,) the probability of every id after the ids of a row; 0 for BEGIN."""
    ids = [w for w in range(model.size) if w != BEGIN]
    values, offsets = packed([[*context, w] for w in ids])
    p = np.zeros(model.size)
    p[ids] = np.exp(model.log_prob(values, offsets)[len(context) :: len(context) + 2])
    return p


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_it_is_the_formula_by_dictionaries(order):
    train, asked = zipf(80, 15), [*zipf(12, 15, seed=1), [], [UNKNOWN, 3, END, 3]]
    model = Backoff(order, 15).fit(*packed(train))
    np.testing.assert_allclose(model.log_prob(*packed(asked)), Plain(train, order, 15).log_prob(asked), rtol=1e-12)


def test_the_reference_has_discounts_of_both_kinds():
    plain = Plain(zipf(80, 15), 5, 15)
    assert (0, 0.5, 1, 1.5) in plain.d
    assert any(d != (0, 0.5, 1, 1.5) for d in plain.d[1:])


rows_of_ids = st.lists(st.lists(st.sampled_from([0, 2, 3, 4, 5]), max_size=6), max_size=8)


@settings(max_examples=60, deadline=None)
@given(train=rows_of_ids, context=st.lists(st.sampled_from([0, 2, 3, 4, 5, 6]), max_size=5), order=st.integers(1, 5))
def test_the_probabilities_of_all_ids_but_begin_sum_to_one_and_none_is_zero(train, context, order):
    model = Backoff(order, 7).fit(*packed(train))
    p = everything(model, context)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert (np.delete(p, BEGIN) > 0).all()


@settings(max_examples=40, deadline=None)
@given(train=rows_of_ids, asked=rows_of_ids, order=st.integers(1, 4))
def test_any_small_rows_give_the_formula(train, asked, order):
    model = Backoff(order, 6).fit(*packed(train))
    np.testing.assert_allclose(model.log_prob(*packed(asked)), Plain(train, order, 6).log_prob(asked), rtol=1e-12)


def test_order_one_is_the_discounted_share_of_the_counts_wherever_an_id_stands():
    train = [[3] * 10 + [4] * 2, [5, 3, 4]]
    counts = np.array([0, 0, 2, 11, 3, 1, 0])  # of each id; END twice
    taken = np.array([0, 0.5, 1, 1.5])[np.minimum(counts, 3)]  # no id comes four times
    share = (counts - taken + taken.sum() / 6) / counts.sum()
    model = Unigram(7).fit(*packed(train))
    for context in ([], [3], [4, 4, 4], [6]):
        np.testing.assert_allclose(np.delete(everything(model, context), BEGIN), np.delete(share, BEGIN), rtol=1e-12)
    assert (Unigram(7).order, Backoff(1, 7).fit(*packed(train)).log_prob(*packed(train)).tolist()) == (
        1,
        model.log_prob(*packed(train)).tolist(),
    )


def test_rows_know_nothing_of_each_other():
    train, asked = zipf(60, 12), zipf(9, 12, seed=2)
    model = Backoff(4, 12).fit(*packed(train))
    alone = [model.log_prob(*packed([row])) for row in asked]
    np.testing.assert_array_equal(model.log_prob(*packed(asked)), np.concatenate(alone))
    turned = Backoff(4, 12).fit(*packed(train[::-1]))
    np.testing.assert_array_equal(turned.log_prob(*packed(asked)), model.log_prob(*packed(asked)))


def test_a_slice_of_a_column_is_taken_by_its_offsets():
    values, offsets = packed(zipf(10, 12))
    model = Backoff(3, 12).fit(values, offsets[3:7])
    apart = Backoff(3, 12).fit(values[offsets[3] : offsets[6]], offsets[3:7] - offsets[3])
    asked = values, offsets[2:6]
    np.testing.assert_array_equal(model.log_prob(*asked), apart.log_prob(*asked))


def test_of_a_first_order_chain_order_two_is_chosen_and_comes_near_its_entropy():
    rng = np.random.default_rng(0)
    chain = rng.dirichlet(np.full(6, 0.3), 6)

    def rows(n):
        drawn = []
        for _ in range(n):
            row = [int(rng.integers(6))]
            while len(row) < 60:
                row.append(int(rng.choice(6, p=chain[row[-1]])))
            drawn.append([i + 3 for i in row])
        return packed(drawn)

    train, val, test = rows(250), rows(60), rows(60)
    model = tuned_order(train, val, 9)
    assert model.order == 2
    ids, offsets = test
    inner = np.setdiff1d(np.arange(1, len(ids)), offsets)  # first ids have no one before
    truth = -np.log(chain[ids[inner - 1] - 3, ids[inner] - 3] * 59 / 60)  # one in sixty is END
    events = np.arange(len(ids)) + np.repeat(np.arange(60), 60)
    said = -model.log_prob(*test)[events[inner]]
    assert 0 < (said - truth).mean() < 0.005


def test_without_validation_rows_the_shortest_order_is_taken():
    train = packed(zipf(30, 10))
    assert tuned_order(train, packed([]), 10, orders=(3, 2)).order == 2


def test_wrong_ids_are_named_with_their_row():
    model = Backoff(2, 6).fit(*packed([[3, 4]]))
    with pytest.raises(DataError, match=r"row 1: id 1 cannot be written.   Expected 0 to 5, and not BEGIN, 1"):
        model.fit(*packed([[3], [4, BEGIN]]))
    with pytest.raises(DataError, match="row 2: id 6"):
        model.log_prob(*packed([[3], [], [6]]))
    with pytest.raises(ConfigError, match="order 0"):
        Backoff(0, 6)
    with pytest.raises(ConfigError, match="no orders"):
        tuned_order(packed([]), packed([]), 6, orders=())
