from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as Reference
from sklearn.preprocessing import StandardScaler

from mapsto.errors import DataError
from mapsto.ngram import ngrams
from mapsto.training.baseline import (
    Logistic,
    LogisticLabels,
    Mean,
    MostCommon,
    MostCommonLabels,
    Normal,
    Ridge,
    idf,
    tfidf,
    tuned,
)
from mapsto.training.metric import classification


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x, y


def text(rows=1200, words=400, classes=2, seed=0):
    """Words by Zipf's law, a tenth of them of the row's class."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 60, rows)
    label = rng.integers(0, classes, rows)
    common = rng.choice(words, lengths.sum(), p=(p := 1 / np.arange(1.0, words + 1)) / p.sum())
    own = words + np.repeat(label, lengths) * 100 + rng.integers(0, 100, lengths.sum())
    ids = np.where(rng.random(lengths.sum()) < 0.05, own, common)
    return ids, np.concatenate([[0], np.cumsum(lengths)]), label


def reference(l2):
    return LogisticRegression(C=1 / l2, tol=1e-5, max_iter=2000)


def test_most_common_is_the_smoothed_frequency():
    lp = MostCommon(3).fit(np.zeros((4, 1)), [2, 2, 0, 2]).predict(np.zeros((5, 1)))
    np.testing.assert_allclose(np.exp(lp), np.tile([2 / 7, 1 / 7, 4 / 7], (5, 1)))
    odds = MostCommonLabels().fit(np.zeros((3, 1)), [[1, 0], [1, 0], [0, 0]]).predict(np.zeros((2, 1)))
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)), np.tile([3 / 5, 1 / 5], (2, 1)))


def test_the_mean_has_the_normal_nll_of_scipy():
    y = np.random.default_rng(0).normal(size=(50, 2)) * [3, 0.1] + 7
    found = Mean().fit(np.zeros((50, 0)), y).predict(np.zeros((50, 0)))
    np.testing.assert_allclose(found.nll(y), -stats.norm(y.mean(0), y.std(0)).logpdf(y).sum(1))


def test_a_constant_target_gives_a_finite_nll():
    for model in Mean(), Ridge():
        found = model.fit(np.arange(6.0)[:, None], np.full(6, 4.0)).predict(np.zeros((2, 1)))
        np.testing.assert_allclose(found.mean, 4)
        assert np.isfinite(found.nll(np.array([4.0, 5.0]))).all()


@pytest.mark.parametrize("l2", [1.0, 30.0])
def test_logistic_is_that_of_scikit_learn_on_standardised_digits(digits, l2):
    x, y = digits
    scaler = StandardScaler().fit(x[:700])
    theirs = reference(l2).fit(scaler.transform(x[:700]), y[:700])
    mine = Logistic(10, l2).fit(x[:700], y[:700]).predict(x[700:])
    np.testing.assert_allclose(np.exp(mine), theirs.predict_proba(scaler.transform(x[700:])), atol=0.05)
    assert (mine.argmax(1) == theirs.predict(scaler.transform(x[700:]))).mean() > 0.995


@pytest.mark.parametrize("classes", [2, 5])
def test_logistic_on_text_is_that_of_scikit_learn(classes):
    ids, offsets, label = text(classes=classes)
    counts = ngrams(ids, offsets, buckets=2**11)
    x = tfidf(counts, idf(counts[:1000]))
    mine = Logistic(classes, 0.1).fit(x[:1000], label[:1000]).predict(x[1000:])
    theirs = reference(0.1).fit(x[:1000].astype(float), label[:1000]).predict_proba(x[1000:].astype(float))
    np.testing.assert_allclose(np.exp(mine), theirs, atol=0.01)
    assert (mine.argmax(1) == label[1000:]).mean() > 1.3 / classes


def test_float32_and_sparse_features_give_what_float64_gives(digits):
    x, y = digits
    wide = Logistic(10, 10.0).fit(x[:500], y[:500]).predict(x[500:])
    narrow = Logistic(10, 10.0).fit(x[:500].astype(np.float32), y[:500]).predict(x[500:].astype(np.float32))
    np.testing.assert_allclose(np.exp(narrow), np.exp(wide), atol=0.01)
    z = StandardScaler().fit(x[:500]).transform(x)
    thin = Logistic(10, 10.0).fit(sparse.csr_array(z[:500]), y[:500]).predict(sparse.csr_array(z[500:]))
    thick = Logistic(10, 10.0).fit(z[:500], y[:500]).predict(z[500:])
    np.testing.assert_allclose(np.exp(thin), np.exp(thick), atol=0.01)


def test_log_probabilities_are_normalised_and_the_same_every_time(digits):
    x, y = digits
    for classes in 2, 10:
        first, again = (Logistic(classes).fit(x[:300], y[:300] % classes).predict(x) for _ in range(2))
        np.testing.assert_allclose(np.exp(first).sum(1), 1)
        np.testing.assert_array_equal(first, again)


def test_labels_are_logistic_regressions_of_their_own(digits):
    x, y = digits
    labels = np.stack([y % 2 == 0, y > 4, y == 3], 1)
    odds = LogisticLabels(10.0, limit=1000).fit(x[:800], labels[:800]).predict(x[800:])
    for c in range(3):
        alone = Logistic(2, 10.0, limit=1000).fit(x[:800], labels[:800, c]).predict(x[800:])
        np.testing.assert_allclose(1 / (1 + np.exp(-odds[:, c])), np.exp(alone[:, 1]), atol=0.03)


def test_a_class_that_training_lacks_is_improbable_but_possible():
    x = np.random.default_rng(0).normal(size=(60, 3))
    lp = Logistic(4).fit(x, np.arange(60) % 3).predict(x)
    assert np.isfinite(lp).all()
    assert (np.exp(lp[:, 3]) < 0.01).all()
    alone = Logistic(2).fit(x, np.zeros(60, int)).predict(x)
    assert np.isfinite(alone).all()
    assert (np.exp(alone[:, 0]) > 0.99).all()
    np.testing.assert_array_equal(Logistic(1).fit(x, np.zeros(60, int)).predict(x), 0)


def test_constant_and_missing_features_change_nothing_they_should_not(digits):
    x, y = digits
    plain = Logistic(10).fit(x[:300], y[:300]).predict(x[300:])
    constant = np.full((len(x), 1), 0.1)
    constant[400:] = 1e9  # a column that starts to move after training
    more = np.concatenate([x, constant, np.full((len(x), 1), np.nan), np.full((len(x), 1), np.inf)], 1)
    np.testing.assert_allclose(Logistic(10).fit(more[:300], y[:300]).predict(more[300:]), plain, atol=1e-6)
    holes = x.copy()
    holes[5, 20] = np.nan
    filled = x.copy()
    filled[5, 20] = np.delete(x[:300, 20], 5).mean()
    a, b = (Ridge().fit(v[:300], y[:300]).predict(v[:300]).mean for v in (holes, filled))
    np.testing.assert_allclose(a, b, atol=0.05)


@pytest.mark.parametrize("l2", [0.5, 50.0])
def test_ridge_is_that_of_scikit_learn(digits, l2):
    x, _ = digits
    y = x[:, [20, 40]] * [1, 100] + np.random.default_rng(0).normal(size=(len(x), 2))
    z = np.delete(x, [20, 40], 1)
    scaler = StandardScaler().fit(z[:1000])
    theirs = Reference(l2).fit(scaler.transform(z[:1000]), y[:1000]).predict(scaler.transform(z[1000:]))
    found = Ridge(l2).fit(z[:1000], y[:1000]).predict(z[1000:])
    np.testing.assert_allclose(found.mean, theirs, rtol=1e-8, atol=1e-8 * np.abs(theirs).max())


@pytest.mark.parametrize("form", [sparse.csr_array, np.asarray])
def test_ridge_on_many_features_is_that_of_scikit_learn(form, monkeypatch):
    monkeypatch.setattr("mapsto.training.baseline._CLOSED", 10)
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((200, 80)) < 0.2, rng.random((200, 80)), 0)
    y = dense[:, :3].sum(1) + 5 + 0.1 * rng.normal(size=200)
    x = dense if form is np.asarray else form(dense)
    theirs = StandardScaler().fit_transform(dense) if form is np.asarray else dense
    expected = Reference(2.0).fit(theirs, y).predict(theirs)
    np.testing.assert_allclose(Ridge(2.0).fit(x, y).predict(x).mean[:, 0], expected, rtol=1e-5)
    warm = Ridge(2.0).fit(x, y, start=Ridge(20.0).fit(x, y))
    np.testing.assert_allclose(warm.predict(x).mean[:, 0], expected, rtol=1e-5)


def test_ridge_stands_copied_features_in_float32():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(3000, 4)), 50, 1)
    y = x[:, 0] + 0.1 * rng.normal(size=3000)
    found = Ridge(0.01).fit(x.astype(np.float32), y).predict(x.astype(np.float32)).mean[:, 0]
    np.testing.assert_allclose(found, Ridge(0.01).fit(x, y).predict(x).mean[:, 0], atol=1e-4)


def test_ridge_takes_its_spread_from_held_out_rows():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 90)), 10 * rng.normal(size=300)
    model = Ridge(0.01).fit(x[:100], y[:100])
    flattered = model.predict(x).sigma
    loss = model.validate(x[100:], y[100:])
    found = model.predict(x[100:])
    error = y[100:, None] - found.mean
    np.testing.assert_allclose(found.sigma, np.sqrt((error**2).mean(0)))
    assert flattered < 0.5 * found.sigma
    assert loss == pytest.approx(Normal(found.mean, found.sigma).nll(y[100:]).mean())


def test_tuning_finds_the_strength_with_the_least_validation_nll(digits):
    x, y = digits
    train, val = slice(0, 700), slice(700, 1200)
    found = tuned(Logistic(10), x[train], y[train], x[val], y[val])
    losses = {l2: Logistic(10, l2).fit(x[train], y[train]).validate(x[val], y[val]) for l2 in Logistic.strengths}
    assert found.l2 == min(losses, key=losses.get)
    lp = found.predict(x[val])
    assert found.validate(x[val], y[val]) == pytest.approx(classification(lp, y[val])["nll"])
    labels = np.eye(10)[y]
    both = tuned(LogisticLabels(), x[train], labels[train], x[val], labels[val], strengths=(10, 0.001))
    assert both.l2 == 10
    assert tuned(Ridge(), x[train], y[train], x[val], y[val]).l2 in Ridge.strengths


def test_tuning_without_validation_rows_fits_the_given_strength(digits):
    x, y = digits
    model = Logistic(10, 3.0)
    assert tuned(model, x[:100], y[:100], x[:0], y[:0]).l2 == 3.0
    assert not hasattr(model, "affine")


def test_ngrams_are_those_of_scikit_learn():
    ids, offsets, _ = text(rows=80, words=30)
    rows = [" ".join(f"w{i}" for i in ids[a:b]) for a, b in pairwise(offsets)]
    expected = CountVectorizer(ngram_range=(1, 3), token_pattern=r"\S+").fit_transform(rows).toarray()
    for bound in None, 230:
        mine = ngrams(ids, offsets, sizes=(1, 2, 3), buckets=2**30, bound=bound)
        columns, place = np.unique(mine.indices, return_inverse=True)
        found = sparse.csr_array((mine.data, place, mine.indptr), shape=(80, len(columns))).toarray()
        np.testing.assert_array_equal(sorted(map(tuple, found.T)), sorted(map(tuple, expected.T)))  # in any order


def test_ngrams_never_cross_rows():
    whole = ngrams(np.array([1, 2, 3, 4]), np.array([0, 2, 2, 4]), sizes=(2,), bound=5)
    assert whole.shape == (3, 25)
    assert list(zip(*whole.nonzero(), strict=True)) == [(0, 1 * 5 + 2), (2, 3 * 5 + 4)]


def test_a_row_has_the_same_ngrams_in_any_company():
    ids, offsets, _ = text(rows=40)
    count = partial(ngrams, bound=800, buckets=2**12)
    whole = count(ids, offsets)
    for i in 0, 17, 39:
        alone = count(ids[offsets[i] : offsets[i + 1]], np.array([0, offsets[i + 1] - offsets[i]])).toarray()
        np.testing.assert_array_equal(alone, whole[[i]].toarray())
        np.testing.assert_array_equal(alone, count(ids, offsets[i : i + 2]).toarray())


def test_small_vocabularies_have_columns_of_their_own_and_large_ones_share_the_rest():
    ids = np.array([4, 0, 3])
    assert ngrams(ids, np.array([0, 3]), sizes=(1, 2, 3), bound=5).shape == (1, 155)
    mixed = ngrams(ids, np.array([0, 3]), bound=5, buckets=16)
    assert mixed.shape == (1, 16)
    np.testing.assert_array_equal(mixed.toarray()[0, :5], [1, 0, 0, 1, 1])
    assert mixed.toarray()[0, 5:].sum() == 2


def test_hashes_fall_evenly():
    pairs = np.stack(np.meshgrid(np.arange(300), np.arange(300)), -1).reshape(-1)
    counts = ngrams(pairs, np.arange(0, len(pairs) + 1, 2), sizes=(2,), buckets=1000).sum(0)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_rows_and_texts_may_be_empty():
    none = ngrams(np.zeros(0, int), np.array([0]), bound=3)
    assert none.shape == (0, 12)
    blank = ngrams(np.zeros(0, int), np.array([0, 0, 0]))
    assert blank.shape == (2, 2**18)
    assert tfidf(blank, idf(blank)).nnz == 0
    single = Logistic(2).fit(blank, [0, 1]).predict(blank)
    np.testing.assert_allclose(np.exp(single), 0.5)


def test_ids_out_of_range_are_refused_with_their_row():
    with pytest.raises(DataError, match=r"row 1: id 7 is out of range. +Expected 0 to 4"):
        ngrams(np.array([1, 2, 7]), np.array([0, 2, 3]), bound=5)
    with pytest.raises(DataError, match="row 0: id -1"):
        ngrams(np.array([-1]), np.array([0, 1]))


def test_tfidf_is_that_of_scikit_learn():
    ids, offsets, _ = text(rows=100)
    counts = ngrams(ids, offsets, buckets=2**10)
    theirs = TfidfTransformer(sublinear_tf=True).fit(counts[:60].astype(float)).transform(counts.astype(float))
    np.testing.assert_allclose(tfidf(counts, idf(counts[:60])).toarray(), theirs.toarray(), atol=1e-6)
