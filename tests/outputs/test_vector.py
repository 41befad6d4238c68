"""One answer a row, and one an item: what their settings come to."""

import pytest

from mapsto.outputs.items import ItemsOutput
from mapsto.outputs.vector import VectorOutput


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
