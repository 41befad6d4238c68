from functools import partial

import numpy as np
import pytest
from scipy.special import expit, log_softmax
from sklearn import metrics

from mapsto.errors import DataError, NonFiniteError
from mapsto.training.metric import bootstrap, classification, confusion, multilabel, regression, why


def scored(rows, classes, seed=0, decimals=None):
    rng = np.random.default_rng(seed)
    target = rng.integers(0, classes, rows)
    s = rng.normal(size=(rows, classes))
    s[np.arange(rows), target] += 1.0
    if decimals is not None:
        s = s.round(decimals)  # ties
    return log_softmax(s, 1), target


def labelled(rows, labels, seed=0):
    rng = np.random.default_rng(seed)
    target = rng.random((rows, labels)) < 0.3
    return (rng.normal(size=(rows, labels)) + 2 * target - 1).round(1), target


def reference(lp, target, weight=None):
    p, guess = np.exp(lp), lp.argmax(1)
    one = {} if lp.shape[1] == 2 else {"multi_class": "ovr", "labels": np.arange(lp.shape[1])}
    score = lp[:, 1] - lp[:, 0] if lp.shape[1] == 2 else p / p.sum(1, keepdims=True)
    return {
        "accuracy": metrics.accuracy_score(target, guess, sample_weight=weight),
        "balanced_accuracy": metrics.balanced_accuracy_score(target, guess, sample_weight=weight),
        "f1": metrics.f1_score(target, guess, average="macro", sample_weight=weight),
        "roc_auc": metrics.roc_auc_score(target, score, sample_weight=weight, **one),
        "nll": metrics.log_loss(target, p, labels=np.arange(lp.shape[1]), sample_weight=weight),
    }


@pytest.mark.parametrize(("rows", "classes"), [(200, 2), (300, 3), (500, 10)])
@pytest.mark.parametrize("decimals", [None, 1])
def test_classification_is_what_scikit_learn_says(rows, classes, decimals):
    lp, target = scored(rows, classes, decimals=None if classes > 2 else decimals)
    assert classification(lp, target) == pytest.approx(reference(lp, target), rel=1e-12)


def test_one_against_the_rest_counts_ties_by_midranks():
    rng = np.random.default_rng(3)
    lp, target = np.log(rng.choice([0.2, 0.3, 0.5], (90, 4))), rng.integers(0, 4, 90)
    pairs = []
    for c in range(4):
        a, b = lp[target == c, c][:, None], lp[target != c, c]
        pairs.append(((a > b) + 0.5 * (a == b)).mean())
    assert classification(lp, target)["roc_auc"] == pytest.approx(np.mean(pairs), rel=1e-12)


@pytest.mark.parametrize("classes", [2, 5])
def test_a_weight_is_the_row_written_that_often(classes):
    lp, target = scored(150, classes)
    times = np.random.default_rng(1).integers(0, 4, (6, 150))
    together = classification(lp, target, weight=times.astype(float))
    for r, line in enumerate(times):
        rows = np.repeat(np.arange(150), line)
        found = {name: values[r] for name, values in together.items()}
        assert found == pytest.approx(classification(lp[rows], target[rows]), rel=1e-12)
        assert found == pytest.approx(reference(lp[rows], target[rows]), rel=1e-12)


def test_weights_need_not_be_whole_and_keep_their_shape():
    lp, target = scored(120, 3)
    weight = np.random.default_rng(2).random((2, 4, 120))
    found = classification(lp, target, weight=weight)
    assert all(v.shape == (2, 4) for v in found.values())
    assert {k: v[1, 2] for k, v in found.items()} == pytest.approx(reference(lp, target, weight[1, 2]), rel=1e-10)
    assert classification(lp, target, weight=weight[0, 0])["accuracy"].shape == ()


def ignores_order(compute, scores, target):
    order = np.random.default_rng(5).permutation(len(target))
    return compute(scores[order], target[order]) == pytest.approx(compute(scores, target), rel=1e-12)


@pytest.mark.parametrize("metric", ["classification", "multilabel", "regression"])
def test_the_order_of_the_rows_changes_nothing(metric):
    scores, target, compute = {
        "classification": (*scored(257, 4, decimals=1), classification),
        "multilabel": (*labelled(257, 3), multilabel),
        "regression": (*np.random.default_rng(0).normal(size=(2, 257, 2)), partial(regression, nll=np.ones(257))),
    }[metric]
    assert ignores_order(compute, scores, target)


def test_the_check_of_order_catches_ranks_that_break_ties_by_place_and_means_of_batches():
    scores, target = labelled(257, 1)

    def ordinal(s, y):
        rank = np.argsort(np.argsort(s[:, 0], kind="stable"), kind="stable") + 1
        plus = y[:, 0].sum()
        return {"roc_auc": (rank[y[:, 0]].sum() - plus * (plus + 1) / 2) / (plus * (len(y) - plus))}

    def batched(s, y):
        return {"rmse": np.mean([regression(s[i : i + 32], y[i : i + 32])["rmse"] for i in range(0, 257, 32)])}

    assert not ignores_order(ordinal, scores, target)
    assert not ignores_order(batched, scores, target)


def test_multilabel_is_what_scikit_learn_says():
    s, target = labelled(300, 5)
    guess = s > 0
    found = multilabel(s, target)
    assert found == pytest.approx(
        {
            "accuracy": (guess == target).mean(),
            "exact_match": metrics.accuracy_score(target, guess),
            "f1": metrics.f1_score(target, guess, average="macro"),
            "roc_auc": metrics.roc_auc_score(target, s, average="macro"),
            "nll": -np.log(np.where(target, expit(s), expit(-s))).sum(1).mean(),
        },
        rel=1e-12,
    )


def test_multilabel_leaves_out_labels_that_never_occur():
    s, target = labelled(100, 3)
    more = np.concatenate([s, np.full((100, 1), -1.0)], 1), np.concatenate([target, np.zeros((100, 1), bool)], 1)
    for name in "f1", "roc_auc", "exact_match":
        assert multilabel(*more)[name] == pytest.approx(multilabel(s, target)[name], rel=1e-12)


def test_multilabel_weights_are_repeated_rows():
    s, target = labelled(80, 4)
    times = np.random.default_rng(1).integers(0, 3, (5, 80))
    together = multilabel(s, target, weight=times.astype(float))
    for r, line in enumerate(times):
        rows = np.repeat(np.arange(80), line)
        assert {k: v[r] for k, v in together.items()} == pytest.approx(multilabel(s[rows], target[rows]), rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_regression_is_what_scikit_learn_says(shift):
    rng = np.random.default_rng(0)
    target = rng.normal(size=(200, 3)) * [1, 10, 0.1] + shift
    mean, nll, times = target + rng.normal(size=(200, 3)), rng.normal(size=200), rng.integers(0, 3, (4, 200))

    def expected(rows):
        return {
            "mae": metrics.mean_absolute_error(target[rows], mean[rows]),
            "rmse": metrics.root_mean_squared_error(target[rows], mean[rows]),
            "r2": metrics.r2_score(target[rows], mean[rows]),
            "nll": nll[rows].mean(),
        }

    assert regression(mean, target, nll) == pytest.approx(expected(np.arange(200)), rel=1e-8)
    together = regression(mean, target, nll, weight=times.astype(float))
    for r, line in enumerate(times):
        rows = np.repeat(np.arange(200), line)
        assert {k: v[r] for k, v in together.items()} == pytest.approx(expected(rows), rel=1e-8)


def test_without_rows_nothing_has_a_value_and_why_says_so():
    found = {
        **classification(np.zeros((0, 3)), []),
        **multilabel(np.zeros((0, 2)), np.zeros((0, 2))),
        **regression(np.zeros((0, 1)), np.zeros((0, 1)), []),
    }
    assert set(found) == {"accuracy", "balanced_accuracy", "f1", "roc_auc", "nll", "exact_match", "mae", "rmse", "r2"}
    assert set(found.values()) == {None}
    assert why("accuracy") == "accuracy needs at least one row"
    assert why("r2") == "r2 needs targets that are not all the same"


def test_a_resample_without_rows_is_undefined_and_disturbs_no_other():
    lp, target = scored(20, 2)
    found = classification(lp, target, weight=np.stack([np.zeros(20), np.ones(20)]))
    assert all(np.isnan(v[0]) for v in found.values())
    assert {k: v[1] for k, v in found.items()} == pytest.approx(classification(lp, target))


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_one_class_has_an_accuracy_and_no_roc_auc(classes):
    lp = log_softmax(np.random.default_rng(0).normal(size=(30, classes)), 1)
    found = classification(lp, np.zeros(30, int))
    right = (lp.argmax(1) == 0).mean()
    assert found["accuracy"] == found["balanced_accuracy"] == pytest.approx(right)
    assert found["roc_auc"] is None
    present = {0, *lp.argmax(1)}
    assert found["f1"] == pytest.approx(2 * right / (1 + right) / len(present))


def test_a_single_row_is_defined():
    assert classification(np.log([[0.25, 0.75]]), [1]) == {
        "accuracy": 1.0,
        "balanced_accuracy": 1.0,
        "f1": 1.0,
        "roc_auc": None,
        "nll": pytest.approx(-np.log(0.75)),
    }
    assert regression([[2.0]], [[5.0]]) == {"mae": 3.0, "rmse": 3.0, "r2": None, "nll": None}


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e8 + 0.1])
def test_a_constant_target_has_no_r2(constant):
    target = np.full((37, 1), constant)
    assert regression(target + 1, target)["r2"] is None


def test_a_target_without_any_probability_makes_the_nll_infinite_where_its_row_counts():
    lp = np.array([[0.0, -np.inf], [np.log(0.5), np.log(0.5)]])
    assert classification(lp, [1, 0])["nll"] == np.inf
    assert classification(lp, [1, 0], weight=np.array([[0.0, 1.0], [1.0, 1.0]]))["nll"] == pytest.approx(
        [np.log(2), np.inf]
    )


def test_confusion_is_what_scikit_learn_says():
    rng = np.random.default_rng(0)
    target, predicted = rng.integers(0, 4, (2, 100))
    np.testing.assert_array_equal(
        confusion(target, predicted, 6), metrics.confusion_matrix(target, predicted, labels=range(6))
    )
    assert confusion([], [], 2).tolist() == [[0, 0], [0, 0]]


def test_the_bootstrap_spreads_as_theory_says():
    error = np.random.default_rng(0).normal(size=(400, 1))
    low, high = bootstrap(partial(regression, error, np.zeros((400, 1)), error[:, 0]), 400, resamples=4000)["nll"]
    half = 1.96 * error.std() / 20
    assert (low, high) == pytest.approx((error.mean() - half, error.mean() + half), abs=0.1 * half)


def test_the_bootstrap_is_that_of_resampled_rows():
    lp, target = scored(50, 3)
    found = bootstrap(partial(classification, lp, target), 50, resamples=200, seed=4, level=0.9)
    drawn = []

    def record(weight):
        drawn.append(weight)
        return classification(lp, target, weight=weight)

    assert bootstrap(record, 50, resamples=200, seed=4, level=0.9) == found
    values = np.sort(
        [
            (lp[rows].argmax(1) == target[rows]).mean()
            for rows in (np.repeat(np.arange(50), line.astype(int)) for line in np.concatenate(drawn))
        ]
    )
    assert found["accuracy"] == pytest.approx((values[9], values[190]), rel=1e-12)
    assert all(line.sum() == 50 for line in np.concatenate(drawn))


def test_the_bootstrap_does_not_depend_on_blocks_and_depends_on_its_seed(monkeypatch):
    lp, target = scored(60, 2)
    metric = partial(classification, lp, target)
    whole = bootstrap(metric, 60, resamples=100)
    monkeypatch.setattr("mapsto.training.metric._BLOCK", 60 * 7)
    assert bootstrap(metric, 60, resamples=100) == whole
    assert bootstrap(metric, 60, resamples=100, seed=1) != whole


def test_rows_of_one_group_come_and_go_together():
    lp, target = scored(40, 2)
    groups = np.repeat([f"g{i}" for i in range(10)], 4)

    def metric(weight):
        by_group = weight.reshape(len(weight), 10, 4)
        assert (by_group == by_group[:, :, :1]).all()
        assert (by_group[:, :, 0].sum(1) == 10).all()
        return classification(lp, target, weight=weight)

    assert set(bootstrap(metric, 40, groups=groups, resamples=50)) == set(classification(lp, target))


def test_copies_in_groups_widen_the_interval():
    lp, target = scored(100, 2)
    rows = np.repeat(np.arange(100), 9)
    metric = partial(classification, lp[rows], target[rows])
    by_row, by_group = (bootstrap(metric, 900, groups=g, resamples=400)["accuracy"] for g in (None, rows))
    once = bootstrap(partial(classification, lp, target), 100, resamples=400)["accuracy"]
    assert by_group == pytest.approx(once)
    assert 2 < (by_group[1] - by_group[0]) / (by_row[1] - by_row[0]) < 4  # theory: 3


def test_what_cannot_be_resampled_has_no_interval():
    lp, target = scored(30, 2)
    metric = partial(classification, lp, target)
    assert bootstrap(metric, 30, groups=np.zeros(30)) == {}
    assert bootstrap(partial(classification, lp[:1], target[:1]), 1) == {}
    assert bootstrap(partial(classification, lp[:0], target[:0]), 0) == {}
    one = bootstrap(partial(classification, lp, np.zeros(30, int)), 30, resamples=20)
    assert set(one) == {"accuracy", "balanced_accuracy", "f1", "nll"}
    rare = np.zeros(30, int)
    rare[3] = 1  # in about 64 % of the resamples there is a roc_auc
    assert "roc_auc" in bootstrap(partial(classification, lp, rare), 30, resamples=100)


def test_mistakes_name_their_row():
    lp, target = scored(10, 3)
    with pytest.raises(DataError, match=r"target row 4: 3 is not a class. +Expected 0 to 2"):
        classification(lp, np.where(np.arange(10) == 4, 3, target))
    with pytest.raises(DataError, match="target row 1: nan is not a class"):
        classification(lp[:2], [0, np.nan])
    with pytest.raises(DataError, match="expected the numbers of classes, 0 to 2"):
        classification(lp[:2], ["a", "b"])
    with pytest.raises(DataError, match=r"target: shape \(9,\) does not fit. +Expected \(10,\)"):
        classification(lp, target[:9])
    with pytest.raises(DataError, match=r"log_probability: expected one line of numbers a row"):
        classification(lp[:, 0], target)
    with pytest.raises(NonFiniteError, match=r"log_odds: NaN in 1 of 2 rows \(1\)"):
        multilabel([[0.0], [np.nan]], [[True], [False]])
    with pytest.raises(NonFiniteError, match=r"mean: NaN or infinite in 7 of 10 rows \(0, 1, 2, 3, 4, ...\)"):
        regression(np.where(np.arange(10) < 7, np.inf, 0.0)[:, None], np.zeros((10, 1)))
    with pytest.raises(DataError, match=r"weight: expected \(..., 10\) numbers that are not negative"):
        classification(lp, target, weight=-np.ones((2, 10)))
    with pytest.raises(DataError, match="groups: shape"):
        bootstrap(partial(classification, lp, target), 10, groups=[1, 2])
