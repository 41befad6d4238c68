import datetime
import decimal
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapsto.data.value import label, labels, missing, number, numbers, seconds, show
from mapsto.errors import DataError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", 1.0),
        ("-2.5e3", -2500.0),
        ("+.5", 0.5),
        (" 7. ", 7.0),
        ("007", 7.0),
        (3, 3.0),
        (np.int8(-4), -4.0),
        (2.5, 2.5),
        (decimal.Decimal("0.1"), 0.1),
        ("1E+2", 100.0),
    ],
)
def test_numbers_are_read(value, expected):
    assert number(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("1_000", "１２", "nan", "inf", "-Infinity", "1e400", "", " ", ".", "e5", "1e", "0x10", "1,5", "1 2", "--1"),
        *("1\0", "٣", None, True, np.bool_(False), math.nan, math.inf, 10**400, [1], b"1", "1\u00a0", "²"),
    ],
)
def test_what_is_no_number_is_refused(value):
    with pytest.raises(DataError):
        number(value)


def test_a_refused_number_says_what_to_write():
    for value, text in [
        ("1,5", "with a point"),
        ("1,000", "point"),
        ("1_000", "without marks"),
        ("NA", "Leave the cell empty"),
    ]:
        with pytest.raises(DataError, match=text):
            number(value)
    with pytest.raises(DataError, match="Use the column as a label"):
        number(True)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**12), 10**12))
def test_a_number_survives_its_text(value):
    assert number(repr(value)) == value


@given(st.text(max_size=12))
def test_a_text_is_a_number_only_if_python_agrees(text):
    try:
        value = number(text)
    except DataError:
        return
    assert value == float(text)
    assert text.isascii()


def test_lists_of_numbers_are_read_from_all_their_forms():
    for value in (
        [1, 2.5, -3],
        (1, "2.5", -3),
        "[1, 2.5, -3]",
        "1 2.5 -3",
        "1;2.5;-3",
        " 1, 2.5 ,-3 ",
        np.array([1, 2.5, -3]),
    ):
        result = numbers(value)
        assert result.dtype == np.float64
        assert result.tolist() == [1, 2.5, -3]
    assert numbers([[1, 2], [3, 4], [5, 6]]).shape == numbers("[[1,2],[3,4],[5,6]]").shape == (3, 2)
    assert numbers([np.array([1, 2]), np.array([3, 4])]).tolist() == [[1, 2], [3, 4]]
    assert numbers([]).shape == numbers("").shape == (0,)
    assert numbers(np.array([[1, 2]], np.int16)).dtype == np.float64


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, "x"], 'item 2: "x" is not a number'),
        ([1, None], "item 2: is missing"),
        ([1, math.nan], "item 2"),
        (np.array([0.0, np.nan]), "item 2 is not a finite"),
        ([1e39], "item 1 is not a finite 32-bit number"),
        ([[1, 2], [3]], "item 2 has 1 numbers, item 1 has 2"),
        ([1, [2]], "mixed"),
        ([[[1]]], "item 1"),
        (np.zeros((2, 2, 2)), "3 axes"),
        ("1 2 x", 'item 3: "x"'),
        ("[1, 2", "is not a list of numbers"),
        ("[NaN]", "item 1"),
        ('{"a": 1}', "item 1"),
        ("1,,2", "item 2"),
        (None, "is missing"),
        (3, "3 is, expected a list of numbers"),
    ],
)
def test_broken_lists_name_the_item(value, text):
    with pytest.raises(DataError) as caught:
        numbers(value)
    assert text in str(caught.value)


def test_labels_are_names():
    assert [label(v) for v in ("007", 3, 3.0, 2.5, True, np.float32(4), np.int8(1), " x ")] == [
        "007", "3", "3", "2.5", "true", "4", "1", " x ",
    ]  # fmt: skip
    for value in ("", None, math.nan, math.inf, [1], {"a": 1}):
        with pytest.raises(DataError, match="expected a label"):
            label(value)


def test_several_labels_are_parted_and_counted_once():
    assert labels("a|b; c |a") == ["a", "b", "c"]
    assert labels(["a", 3, "a"]) == ["a", "3"]
    assert labels("") == labels(None) == labels([]) == []
    assert labels(3) == ["3"]


def test_times_are_seconds_since_1970():
    assert seconds("12.5") == seconds(12.5) == 12.5
    assert seconds("1970-01-02") == seconds(datetime.date(1970, 1, 2)) == 86_400
    assert seconds("1970-01-01T02:00:00+02:00") == 0
    assert seconds("1970-01-01 00:00:01.5") == 1.5
    assert seconds("2024-05-01T12:30:00") == datetime.datetime(2024, 5, 1, 12, 30, tzinfo=datetime.UTC).timestamp()
    assert seconds(datetime.timedelta(minutes=2)) == 120
    for value in ("01/05/2024", "yesterday", "", None, "nan"):
        with pytest.raises(DataError):
            seconds(value)


def test_missing_is_none_and_nan_only():
    assert [missing(v) for v in (None, math.nan, np.float32("nan"), "", "nan", 0, [])] == [True] * 3 + [False] * 4


def test_values_are_shown_short_on_one_line_with_control_characters_escaped():
    assert show("a") == '"a"'
    assert "\n" not in show("a\nb")
    assert "\x1b" not in show("\x1b[31m")
    assert len(show("x" * 10_000)) <= 60
    assert len(show(np.zeros(1000))) <= 60
