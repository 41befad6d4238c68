"""One answer a row, and one an item: what their settings come to."""

import numpy as np
import pytest
import torch

from mapsto.errors import DataError
from mapsto.outputs.items import ItemsOutput
from mapsto.outputs.vector import KNOWN, VectorOutput
from mapsto.ragged import Ragged
from mapsto.stream import stream


@pytest.mark.parametrize(("sigma", "width"), [("dims", 2), ("shared", 2), ("datum", 4)])
def test_numbers_have_the_spread_that_was_asked_for(sigma, width):
    rows = [[([1.0, 2.0],), ([3.0, 5.0],)]]
    made = VectorOutput(8, **VectorOutput.measure(rows, columns=[("y", "number")], sigma=sigma))
    assert made.targets["y"].likelihood.width == width
    assert made.settings()["targets"]["y"]["sigma"] == sigma
    log_sigma = made.targets["y"].likelihood.log_sigma
    assert (None if log_sigma is None else len(log_sigma)) == {"dims": 2, "shared": 1, "datum": None}[sigma]


def test_numbers_of_items_too():
    rows = [[([1.0, 2.0],), ([3.0],)]]
    made = ItemsOutput(8, **ItemsOutput.measure(rows, columns=[("y", "number")], sigma="datum"))
    assert made.head.likelihood.width == 2


def test_labels_have_none():
    made = VectorOutput.measure([[("a",), ("b",)]], columns=[("y", "label")], sigma="datum")
    assert made["targets"]["y"] == {"kind": "label", "classes": ["a", "b"]}


COLUMNS = [("a", "number"), ("b", "number"), ("c", "label"), ("d", "number")]
ROWS = [
    (1.0, 10.0, "x", [1.0, 2.0]),
    (2.0, None, "y", [0.0, 3.0]),
    (None, 30.0, None, None),
    (4.0, 20.0, "x", [5.0, 5.0]),
]


def table(*, holes=True, sigma="dims"):
    torch.manual_seed(0)
    rows = ROWS if holes else [ROWS[0], ROWS[3], (0.0, 5.0, "y", [2.0, 2.0])]
    made = VectorOutput(8, **VectorOutput.measure([rows], columns=COLUMNS, holes=holes, sigma=sigma))
    parts = [made.parse(row) for row in rows]
    target = made.gather(
        {name: Ragged.pack([part[name] for part in parts]).take(np.arange(len(parts))) for name in parts[0]}
    )
    answers = torch.randn(len(rows), 1, 8, generator=stream(0, "answers"))
    return made, made(answers), target


@pytest.mark.parametrize("sigma", ["dims", "shared", "datum"])
def test_what_stands_in_a_hole_is_never_looked_at(sigma):
    made, theta, target = table(sigma=sigma)
    known = target[KNOWN]
    assert known.tolist() == [[True] * 4, [True, False, True, True], [False, True, False, False], [True] * 4]
    other = {name: t.clone() for name, t in target.items()}
    for i, name in enumerate(made.names):
        other[name][~known[:, i]] += 1 if name == "c" else 1000
    one, two = (made.log_likelihood(theta, t) for t in (target, other))
    assert torch.equal(one, two)
    assert torch.equal(*(made.loss(theta, t).per_example() for t in (target, other)))
    # The broken twin: a hole that counts is seen.
    assert not torch.equal(*(made.log_likelihood(theta, {**t, KNOWN: known | True}) for t in (target, other)))


def test_a_row_counts_as_many_cells_as_are_known():
    made, theta, target = table()
    assert made.count(target, torch.zeros(4)).tolist() == [4, 3, 1, 4]
    assert made.loss(theta, target).count.tolist() == [4, 3, 1, 4]


@pytest.mark.parametrize("holes", [True, False])
def test_numbers_together_are_numbers_one_by_one(holes):
    made, theta, target = table(holes=holes)
    answers = torch.randn(len(target["a"]), 1, 8, generator=stream(0, "answers"))
    for name, head in made.targets.items():
        assert torch.allclose(theta[name], head(answers), atol=1e-6)
    each = torch.stack([h.log_likelihood(theta[n], target[n]).sum(1) for n, h in made.targets.items()], 1)
    wanted = (each * target[KNOWN] if holes else each).sum(1)
    assert torch.allclose(made.log_likelihood(theta, target), wanted, atol=1e-5)


def test_a_label_that_was_never_seen_counts_as_not_known():
    made, _, _ = table()
    assert made.parse((1.0, None, "z", None))[KNOWN].tolist() == [[True, False, False, False]]
    with pytest.raises(DataError, match="has no cell that is known"):
        made.parse((None, None, "z", None))


def test_hidden_cells_are_missing_ones():
    made, theta, target = table()
    hidden = torch.zeros(4, 4, dtype=torch.bool)
    hidden[0, 1] = hidden[3, 2] = True
    less = made.hide(target, hidden)
    gone = made.log_likelihood(theta, target) - made.log_likelihood(theta, less)
    b = made.targets["b"].log_likelihood(theta["b"], target["b"])[0, 0]
    c = made.targets["c"].log_likelihood(theta["c"], target["c"])[3, 0]
    assert torch.allclose(gone, torch.stack([b, b * 0, b * 0, c]), atol=1e-5)


def test_settings_bring_holes_back():
    made, _, _ = table()
    again = VectorOutput(8, **made.settings())
    assert again.holes
    assert np.array_equal(again.parse(ROWS[2])[KNOWN], made.parse(ROWS[2])[KNOWN])
