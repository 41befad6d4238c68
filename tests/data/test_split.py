import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapsto.data.split import PARTS, by_column, content, folds, split
from mapsto.errors import DataError


def keys_of(values):
    return np.array([content((v,)) for v in values], np.uint64)


def test_different_values_have_different_content():
    values = [
        ("a",), ("a", None), (None, "a"), ("a", ""), ("aa",), ("a", "a"), (b"a",), (1,), ("1",), (1.0,), (True,),
        (None,),
        ([1, 2],), ([1], 2), ([[1], 2],), ({"a": 1},), ({"a": 2},), (np.array([1, 2]),), (np.array([1.0, 2.0]),),
        (np.array([[1, 2]]),), (-0.5,), (["1", "2"],), (["12"],),
    ]  # fmt: skip
    assert len({content(v) for v in values}) == len(values)
    assert content(({"a": 1, "b": 2},)) == content(({"b": 2, "a": 1},))
    assert content((np.arange(6).reshape(2, 3).T,)) == content((np.ascontiguousarray(np.arange(6).reshape(2, 3).T),))


CODE = """
keys = np.array([content((f"text {i}", i % 3)) for i in range(99)], np.uint64)
sides = split(keys, labels=[str(i % 3) for i in range(99)], groups=[f"g{i // 2}" for i in range(99)]).sides
out = keys.tolist(), sides.tolist(), folds(keys, 5).tolist()
"""


def test_content_and_split_do_not_depend_on_the_process():
    here = {"np": np, "content": content, "split": split, "folds": folds}
    exec(CODE, here)
    elsewhere = subprocess.run(
        [sys.executable, "-c", f"import numpy as np\nfrom mapsto.data.split import *\n{CODE}\nprint(out)"],
        env=os.environ | {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == str(here["out"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_copies_and_groups_are_never_parted(data):
    rows = data.draw(st.integers(12, 200))
    draw = np.random.default_rng(data.draw(st.integers(0, 999)))
    texts, groups = draw.integers(0, rows, rows), draw.integers(0, rows, rows)
    groups = groups if data.draw(st.booleans()) else None
    labels = draw.integers(0, 4, rows) if data.draw(st.booleans()) else None
    keys = keys_of(texts.tolist())
    for make in (
        lambda: split(keys, labels=labels, groups=groups).sides,
        lambda: folds(keys, 3, labels=labels, groups=groups),
    ):
        try:
            sides = make()
        except DataError:
            # Independent reference: count what hangs together by walking.
            parent = list(range(rows))

            def find(i, parent=parent):
                while parent[i] != i:
                    i = parent[i]
                return i

            for i in range(rows):
                for j in range(i):
                    if texts[i] == texts[j] or (groups is not None and groups[i] == groups[j]):
                        parent[find(i)] = find(j)
            assert len({find(i) for i in range(rows)}) < 3
            continue
        for of in (texts,) if groups is None else (texts, groups):
            for value in np.unique(of):
                assert len(set(sides[of == value].tolist())) == 1


def test_shares_are_met_within_rounding_for_each_label():
    labels = np.repeat(["a", "b", "c", "d"], [100, 57, 13, 3])
    result = split(keys_of(range(173)), labels=labels)
    for name in "abcd":
        of = result.sides[labels == name]
        counts = np.bincount(of, minlength=3)
        expected = np.array([0.8, 0.1, 0.1]) * len(of)
        assert (counts > 0).all(), name
        assert (np.abs(counts - expected) < 2).all(), (name, counts)
    assert abs(result.counts["test"] - 17.3) <= 2
    assert abs(result.counts["val"] - 17.3) <= 2
    assert sorted(np.concatenate([result.rows(p) for p in PARTS]).tolist()) == list(range(173))


def test_many_small_labels_still_meet_the_shares():
    labels = np.repeat(np.arange(200), 5)
    counts = split(keys_of(range(1000)), labels=labels, shares=(0.6, 0.2, 0.2)).counts
    assert counts == {"train": 600, "val": 200, "test": 200}
    labels = np.repeat(np.arange(500), 2)
    result = split(keys_of(range(1000)), labels=labels)
    assert abs(result.counts["test"] - 100) <= 2
    assert abs(result.counts["val"] - 100) <= 2
    assert set(labels[result.rows("train")]) == set(range(500))


def test_no_part_is_empty_however_small_the_data():
    for rows in range(3, 40):
        for labels in (None, list(range(rows)), [i % 2 for i in range(rows)], [0] * rows):
            counts = split(keys_of(range(rows)), labels=labels).counts
            assert min(counts.values()) >= 1, (rows, labels)
    with pytest.raises(DataError, match="2 different rows cannot fill 3 parts"):
        split(keys_of([1, 1, 2, 2]))
    with pytest.raises(DataError, match="2 groups of different rows cannot fill"):
        split(keys_of(range(10)), groups=["a"] * 5 + ["b"] * 5)


def test_the_order_of_the_rows_changes_nothing():
    draw = np.random.default_rng(0)
    for rows in (500, 30_000):
        keys, labels = keys_of(range(rows)), draw.integers(0, 3, rows)
        groups = draw.integers(0, rows // 2, rows)
        order = draw.permutation(rows)
        for more in ({}, {"groups": groups}, {"labels": labels}):
            moved = {name: value[order] for name, value in more.items()}
            assert (split(keys, **more).sides[order] == split(keys[order], **moved).sides).all()


def test_large_data_are_split_row_by_row():
    keys = keys_of(range(40_000))
    whole, half = split(keys), split(keys[::2].copy())
    assert (whole.sides[::2] == half.sides).all()
    assert abs(whole.counts["test"] / 40_000 - 0.1) < 0.006
    assert abs(whole.counts["val"] / 40_000 - 0.1) < 0.006


def test_another_seed_gives_another_split():
    keys = keys_of(range(1000))
    a, b = split(keys, seed=0).sides, split(keys, seed=1).sides
    assert 0.2 < (a != b).mean() < 0.45  # 1 - (.8² + .1² + .1²) = .34 if they are independent


def test_copies_are_counted():
    assert split(keys_of([*range(20), 1, 2, 2])).duplicates == 3


def test_folds_are_even_and_spread_the_labels():
    labels = np.repeat([0, 1, 2], [50, 30, 21])
    fold = folds(keys_of(range(101)), 5, labels=labels)
    for of in (fold, *(fold[labels == i] for i in range(3))):
        counts = np.bincount(of, minlength=5)
        assert counts.max() - counts.min() <= 1
    large = np.bincount(folds(keys_of(range(25_000)), 4))
    assert len(large) == 4
    assert large.min() > 6000
    with pytest.raises(DataError, match="5 folds of 3 different rows: expected 2 to 3"):
        folds(keys_of(range(3)), 5)


def test_a_split_column_is_obeyed_and_its_leaks_counted():
    values = ["train"] * 6 + ["Validation", "dev", "test", "test "]
    result = by_column(values, keys=keys_of([0, 1, 2, 3, 4, 4, 0, 7, 1, 1]))
    assert result.sides.tolist() == [0] * 6 + [1, 1, 2, 2]
    assert (result.duplicates, result.crossing) == (4, 3)


def test_a_missing_val_is_cut_out_of_train():
    values = ["train"] * 50 + ["test"] * 10
    result = by_column(values, keys=keys_of(range(60)), labels=[i % 2 for i in range(60)])
    assert result.counts == {"train": 45, "val": 5, "test": 10}
    assert (result.sides[50:] == 2).all()
    assert by_column(["train"] * 50 + ["val"] * 10, keys=keys_of(range(60))).counts == {
        "train": 45,
        "val": 10,
        "test": 5,
    }


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            ["train", "tset"],
            'row 2: the split is "tset", expected train, val or test.   found: "train", "tset".   Did you',
        ),
        (["train", None], "row 2: the split is missing"),
        (["train", "train"], 'the split needs train and test (and val).   found: "train".'),
        (["test", "val"], "the split needs train"),
    ],
)
def test_a_wrong_split_column_is_named(values, text):
    with pytest.raises(DataError) as caught:
        by_column(values, keys=keys_of(range(len(values))))
    assert text in str(caught.value)


def test_groups_tied_together_by_copies_are_for_training():
    keys = np.arange(1000, dtype=np.uint64)
    groups = np.repeat(np.arange(20), 50)
    keys[::50] = 7  # the first row of every group is the same, but for the last four groups
    keys[800::50] = [1001, 1002, 1003, 1004]
    for seed in range(5):
        found = split(keys, groups=groups, shares=(0.8, 0.1, 0.1), seed=seed)
        assert found.counts["train"] >= 800
        assert min(found.counts["val"], found.counts["test"]) == 50 or found.counts["train"] == 800
