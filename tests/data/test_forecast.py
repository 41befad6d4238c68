"""Series cut into pasts and futures: what each row holds, and that no part knows what a later one asks for."""

import numpy as np
import pytest

from mapsto.data.forecast import Form, Futures, Presents, lines
from mapsto.data.table import open_table
from mapsto.errors import DataError


def rows(table):
    cells = {c: table.column(c) for c in table.columns}
    return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]


def cut(values, horizon=3, history=5, **more):
    return Futures(open_table({"x": values}), Form(("x",)), horizon=horizon, history=history, **more)


def test_a_row_is_what_was_known_before_a_cut_and_what_came_after():
    found = rows(cut(np.arange(40.0)))
    for row in found:
        past, future = row["x"], row["future"]
        assert len(future) == 3
        assert 3 <= len(past) <= 5
        np.testing.assert_array_equal(np.concatenate([past, future]), np.arange(past[0], future[-1] + 1))


@pytest.mark.parametrize(("length", "horizon", "history"), [(40, 3, 5), (144, 12, 36), (200, 1, 64), (61, 12, 12)])
def test_no_part_knows_or_asks_for_what_a_later_part_asks_for(length, horizon, history):
    """Values are their own times, so a leak can be seen."""
    found = rows(cut(np.arange(float(length)), horizon, history))
    asked = {p: np.concatenate([r["future"] for r in found if r["split"] == p]) for p in ("train", "val", "test")}
    known = {p: np.concatenate([r["x"] for r in found if r["split"] == p]) for p in asked}
    assert asked["train"].max() < asked["val"].min()
    assert asked["val"].max() < asked["test"].min()
    assert known["train"].max() < asked["val"].min()
    assert known["val"].max() < asked["test"].min()
    assert asked["test"].max() == length - 1
    assert len(np.unique(asked["test"])) == max(horizon, round(0.1 * length))


def test_every_series_is_parted_by_its_own_time_and_no_row_crosses_two():
    table = open_table({"x": [np.arange(50.0), 1000 + np.arange(80.0)]})
    found = rows(Futures(table, Form(("x",)), horizon=4, history=6))
    for part, last in (("test", (49, 1079)), ("val", (44, 1071)), ("train", (39, 1063))):
        ends = [r["future"][-1] for r in found if r["split"] == part]
        assert (max(e for e in ends if e < 500), max(ends)) == last
    assert all(np.ptp(np.concatenate([r["x"], r["future"]])) < 20 for r in found)


def test_numbers_of_groups_are_put_in_the_order_of_their_times():
    table = open_table(
        [{"shop": s, "day": f"2024-01-{d:02d}", "x": d + 100 * (s == "b")} for d in (3, 1, 2, 5, 4) for s in ("a", "b")]
    )
    found = lines(table, Form(("x",), group="shop", times="day"))
    assert [line.name for line in found] == ["a", "b"]
    np.testing.assert_array_equal(found[0].values[:, 0], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(found[1].values[:, 0], [101, 102, 103, 104, 105])


def test_several_columns_are_channels_and_empty_cells_are_not_known(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("u,v\n1,2\n,3\n4,NA\n5,6\n")
    (line,) = lines(open_table(path), Form(("u", "v"), missing=("NA",)))
    np.testing.assert_array_equal(line.values, [[1, 2], [np.nan, 3], [4, np.nan], [5, 6]])


def test_times_are_told_only_where_they_are_uneven():
    even = open_table({"x": np.arange(30.0), "t": np.arange(30.0)})
    uneven = open_table({"x": np.arange(30.0), "t": np.arange(30.0) ** 2})
    form = Form(("x",), times="t")
    assert Futures(even, form, horizon=2, history=4).times == ""
    found = Futures(uneven, form, horizon=2, history=4)
    assert found.times == "t"
    assert all(len(r["t"]) == len(r["x"]) and r["t"][-1] == r["x"][-1] ** 2 for r in rows(found))


def test_futures_and_pasts_of_which_nothing_is_known_are_left_out():
    x = np.arange(60.0)
    x[20:32] = np.nan
    found = rows(cut(x))
    assert all(np.isfinite(r["x"]).any() and np.isfinite(r["future"]).any() for r in found)
    assert any(np.isnan(r["future"]).any() for r in found)


def test_what_is_forecast_from_is_the_end_of_each_series():
    table = open_table({"x": [np.arange(9.0), np.arange(3.0)]})
    found = rows(Presents(table, Form(("x",)), history=4))
    assert [r["x"].tolist() for r in found] == [[5, 6, 7, 8], [0, 1, 2]]


def test_longer_data_are_cut_at_fewer_places(monkeypatch):
    monkeypatch.setattr("mapsto.data.forecast.MOST", 100)
    found = cut(np.arange(1000.0))
    assert 80 <= len(found.windows) <= 100
    assert {part for _, _, part in found.windows} == {"train", "val", "test"}


def test_another_cut_is_another_fingerprint():
    assert len({cut(np.arange(40.0), h, k).fingerprint() for h in (2, 3) for k in (4, 5)}) == 4


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("x\n1\n2\nx\n" + "4\n" * 40, {}, 'bad.csv row 3: "x": "x" is not a number'),
        ("x\n1\n2\n1e60\n" + "4\n" * 40, {}, 'bad.csv row 3: "x": 1e+60 is beyond the range'),
        ("x,s\n1,a\n2,\n3,a\n", {"group": "s"}, 'bad.csv row 2: "s": is empty'),
        ("x,t\n1,2024-01-01\n2,soon\n", {"times": "t"}, 'bad.csv row 2: "t": "soon" is not a time'),
        ("x,t\n1,1\n2,1\n3,2\n", {"times": "t"}, "a time that another has too.   If the rows are of several series"),
        ("x\nred\nblue\n", {}, '"x" holds texts that differ, and a forecast is of numbers'),
        (
            "x\n" + "4\n" * 8,
            {},
            "no future of 3 steps for train and val: the longest series has 8 numbers, expected 12 or more",
        ),
    ],
)
def test_broken_series_are_refused_with_their_row(tmp_path, text, form, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        rows(Futures(open_table(path), Form(("x",), **form), horizon=3, history=5))
    assert message in str(caught.value)
