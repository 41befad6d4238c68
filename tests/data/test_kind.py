import numpy as np
import pytest

from mapsto.data.kind import describe, infer
from mapsto.data.problem import problems
from mapsto.data.table import open_table


def one(values, role="source"):
    summary = describe(open_table({"x": values}))["x"]
    return summary, infer(summary, role).kind


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        ([f"a film of {i} words" for i in range(30)], "sequence", "sequence"),
        (["neg", "pos"] * 10, "label", "label"),
        ([f"L{i % 100}" for i in range(1000)], "label", "label"),
        ([f"L{i}" for i in range(30)], "sequence", "sequence"),
        (["GLWSKIKEV", "GKEAAK", "AAKAAGKA", "ALGA"], "sequence", "sequence"),
        (["1", "2", "3"] * 10, "number", "label"),
        ([0, 1] * 5, "number", "label"),
        ([0.5, 1.5] * 10, "number", "number"),
        (list(range(100)), "number", "number"),
        (list(range(10)), "number", "number"),
        ([True, False, True], "label", "label"),
        ([[1, 2], [3]], "series", "series"),
        ([[[1, 2], [3, 4]], [[3, 4]]], "series", "series"),
        (["1 2 3", "4 5"], "series", "series"),
        (["[1, 2, 3]", "[4]", "[]"], "series", "series"),
        (["[[1, 2], [3, 4e5]]", "[[-1, .5]]"], "series", "series"),
        ([np.zeros(3), np.zeros(5)], "series", "series"),
        ([["a", "b"], ["c"]], "sequence", "labels"),
        ([[], ["a"], [None, "b"], []], "sequence", "labels"),
        ([[], [], [1.0]], "series", "series"),
        (["x/a.png", "b.JPG", None], "image", "image"),
        (np.zeros((3, 8, 8), np.uint8), "image", "image"),
        (np.zeros((3, 8), np.float32), "series", "series"),
        ([b"\x89PNG\r\n\x1a\n123"], "image", "image"),
        ([[{"a": 1}], []], "set", "set"),
        (["3,14", "2,5", "7,25"], "sequence", "sequence"),
        (["1,000", "2,500,000", "7 000"], "sequence", "sequence"),
        ([None, None], "nothing", "nothing"),
    ],
)
def test_the_kind_follows_the_documented_rules(values, source, target):
    assert one(values)[1] == source
    assert one(values, "target")[1] == target


def test_a_summary_counts_what_is_there():
    summary, _ = one(["a b", None, "c", "a b", "d e f g"])
    assert (summary.rows, summary.missing, summary.missing_rows, summary.distinct) == (5, 1, [2], 3)
    assert summary.counts == {"a b": 2, "c": 1, "d e f g": 1}
    assert (summary.unit, summary.lengths) == ("words", (1, 2, 4))
    summary, _ = one([1.0, 2.0, float("nan"), 6.0])
    assert summary.range == (1.0, 3.0, 6.0)
    assert summary.missing_rows == [3]
    assert summary.counts == {"1": 1, "2": 1, "6": 1}
    assert one(["GLW", "AAAAA", "CC"])[0].lengths == (2, 3, 5)
    assert one(["1 2 3", "4 5"])[0].lengths == (2, 2, 3)


def test_a_few_values_that_are_no_numbers_are_named_with_their_rows():
    values = [str(i) for i in range(100)]
    values[41], values[73] = "n/a", "?"
    summary, kind = one(values)
    assert kind == "number"
    assert summary.odd == [(42, '"n/a"'), (74, '"?"')]
    assert summary.warnings == ['"x": 2 of 100 values are not numbers (row 42: "n/a", row 74: "?").']
    values[:10] = ["x"] * 10
    summary, kind = one(values)
    assert kind == "sequence"
    assert summary.oddities == 0


def test_an_empty_list_is_a_list_of_anything():
    for values in ([[], ["a"], ["b", "c"], []], [[], [1.0], []], [[], [{"a": 1}]], [[], []]):
        assert one(values)[0].oddities == 0
    assert one([[], "a", "b"])[0].odd == [(1, "[]")]


def test_empty_and_constant_columns_are_warned_of():
    assert one([None, None])[0].warnings == ['"x" is empty in all 2 rows.']
    assert one(["a", "a"])[0].warnings == ['"x" has one value only ("a").']


def test_a_long_text_of_digits_is_judged_in_linear_time():
    assert one(["1 " * 3000 + "x", "111111 " * 3000 + "x"])[1] == "sequence"


def test_problems_name_copies_with_other_labels_rare_labels_and_gaps():
    table = open_table(
        {
            "text": ["a", "b", "a", None, "a", "c", "b"] + [f"t{i}" for i in range(20)],
            "label": ["x", "y", "y", "x", "x", "z", "y"] + ["x", "y"] * 10,
        }
    )
    found = problems(table, ["text"], "label")
    assert found == [
        '"text" is missing in 1 of 27 rows (row 4).',
        "3 rows are copies of the source of another row; copies stay on one side of the split.",
        '3 rows share their source with a row of another "label" (such as rows 1, 3, 5): no prediction can be right '
        "for all of them.",
        '"label": 1 labels have fewer than 5 rows: "z" (1).',
    ]
    assert problems(table, ["label"]) == [
        "24 rows are copies of the source of another row; copies stay on one side of the split."
    ]
    assert problems(open_table({"a": list(range(10))}), ["a"]) == []
