"""Cells as kinds, and what a wrong cell or column is told: through ``prepare``, as every command reads data."""

import json

import numpy as np
import pytest
from PIL import Image

from mapsto.data.kind import describe
from mapsto.data.table import open_table
from mapsto.errors import DataError
from mapsto.tasks.cell import convert
from mapsto.tasks.config import Config
from mapsto.tasks.dataset import prepare
from mapsto.tasks.schema import Errors, resolve


def config(inputs, target, **data):
    settings = {"inputs": inputs, "targets": [target], **data}
    return Config.model_validate({"data": settings, "input": {"vocabulary": "bytes"}})


def refused(source, inputs, target, **data):
    with pytest.raises(DataError) as caught:
        prepare(config(inputs, target, **data), source)
    text = str(caught.value)
    assert text.isprintable()
    return text


def sheet(path, header, rows):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ([1, None, 3], [1, np.nan, 3]),
        ("[1, null, 3]", [1, np.nan, 3]),
        ([1.0, float("nan"), 3], [1, np.nan, 3]),
        (np.array([1.0, np.nan]), [1, np.nan]),
        ([[1, 2], None, [3, None]], [[1, 2], [np.nan, np.nan], [3, np.nan]]),
        ([1e9, 1e9 + 1], [1e9, 1e9 + 1]),
    ],
)
def test_series_keep_their_holes_and_their_digits(cell, expected):
    found = convert(cell, "series", "s")
    assert found.dtype == np.float64
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("cell", "kind", "text"),
    [
        ([1, None, 1e39], "series", '"s": 1e+39 at item 3 is not a finite 32-bit number'),
        ([[1, 2], [3], None], "series", "item 2 has 1 numbers, item 1 has 2"),
        ([1, [2], None], "series", "lists and numbers are mixed"),
        (np.array([1.0, np.inf, np.nan]), "series", "inf at item 2"),
        ([], "number", "neither a number nor a list of numbers"),
        ([[1], [2]], "number", "neither a number nor a list of numbers"),
        ("1e39", "number", "beyond the range of 32 bits"),
        (10**400, "number", "is not a finite number"),
        (10**5000, "number", "is not a finite number"),
        (10**5000, "label", "more than 4300 digits"),
        (["a", None], "sequence", "item 2: is missing, expected a label"),
        ({"a": 1}, "sequence", "is neither text nor a list"),
        (np.zeros((2, 2)), "items-label", "is neither text nor a list"),
        ([1, "x"], "items-number", 'item 2: "x" is not a number'),
    ],
    ids=map(str, range(14)),  # pytest cannot write numbers of 5,000 digits either
)
def test_a_cell_of_another_kind_is_one_line(cell, kind, text):
    with pytest.raises(DataError) as caught:
        convert(cell, kind, "s")
    assert text in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_column_that_changes_its_kind_at_row_90000_is_named(tmp_path):
    rows = [f"{i % 977},{i % 2}" for i in range(90_010)]
    rows[89_999] = "1_000,1"
    text = refused(sheet(tmp_path / "t.csv", "n,y", rows), ["n"], "y:label")
    assert text.startswith('t.csv row 90000: "n": "1_000" is no number.   1 such rows of 90010')


def test_one_class_and_a_constant_are_named_with_their_file(tmp_path):
    path = sheet(tmp_path / "t.csv", "n,y,v", [f"{i},pos,7" for i in range(30)])
    assert refused(path, ["n"], "y").startswith('t.csv: "y" has one class ("pos"), two are needed')
    assert refused(path, ["n"], "v:number").startswith('t.csv: "v" is 7 in every row: nothing to learn')
    pairs = [{"n": i, "v": [1, 2]} for i in range(30)]
    assert refused(pairs, ["n"], "v:number").startswith('data: "v" is [1, 2] in every row')
    empty = sheet(tmp_path / "u.csv", "n,y", [f",{i % 2}" for i in range(30)])
    assert refused(empty, ["n"], "y").startswith('u.csv: "n" has no value in any row')


def test_a_label_of_the_test_file_that_training_never_saw_is_named_with_file_and_row(tmp_path):
    train = sheet(tmp_path / "t.csv", "n,y", [f"{i},{'yes' if i % 2 else 'no'}" for i in range(40)])
    test = sheet(tmp_path / "test.csv", "n,y", ["1,yes", "2,no", "3,yess"])
    text = refused(train, ["n"], "y", test=str(test))
    assert text.startswith('test.csv row 3: "y": label "yess" never occurs in the training rows (no, yes).')
    assert 'Did you mean "yes"?' in text
    sheet(test, "n,y", ["1,yes", "2,no", "3,a\x1b[31m"])
    assert r"a\x1b[31m" in refused(train, ["n"], "y", test=str(test))


def test_lists_of_another_width_and_texts_among_lists_are_named_with_their_row(tmp_path):
    def lines(column, good, bad):
        rows = [{column: good, "y": i % 2, "n": i} for i in range(30)]
        rows[20][column] = bad
        path = tmp_path / "t.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    path = lines("s", [[1, 2], [3, 4]], [[1], [2]])
    assert refused(path, ["s:series", "n"], "y:label").startswith(
        't.jsonl row 21: "s": 1 channels where row 1 has 2 ch'
    )
    path = lines("x", [1, 2], [1, 2, 3])
    assert refused(path, ["x:number", "n"], "y:label").startswith('t.jsonl row 21: "x": 3 numbers where row 1 has 2')
    path = lines("w", "a text", ["a", "list"])
    assert refused(path, ["w:sequence", "n"], "y:label").startswith(
        't.jsonl row 21: "w": a list where row 1 has a text'
    )


def test_times_that_are_no_list_are_one_line(tmp_path):
    rows = [{"s": [1, 2], "t": [0, 1], "y": i % 2} for i in range(30)]
    for bad, text in [
        (5, "5 is, expected a list of times"),
        ({"a": 1}, "expected a list"),
        (["x", 1], 'item 1: "x" is'),
    ]:
        rows[3]["t"] = bad
        assert refused(rows, ["s:series"], "y:label", times="t").startswith('data row 4: "t": ')
        assert text in refused(rows, ["s:series"], "y:label", times="t")


def test_broken_pictures_are_named_before_the_first_step_and_may_be_left_out(tmp_path):
    for i in range(24):
        Image.new("L", (4, 4), 10 * i).save(tmp_path / f"{i:02d}.png")
    rows = [f"{i:02d}.png,{'ab'[i % 2]}" for i in range(24)]
    path = sheet(tmp_path / "t.csv", "p,y", rows)
    broken = tmp_path / "07.png"
    broken.write_bytes(broken.read_bytes()[:50])
    text = refused(path, ["p"], "y")
    assert text.startswith('t.csv row 8: "p": ')
    assert "07.png" in text
    assert "data.skip_bad=0.05" in text
    assert len(prepare(config(["p"], "y", skip_bad=0.1), path).store) == 23
    sheet(path, "p,y", [*rows, "a.png,b"])
    assert 't.csv row 25: "p": "a.png": no such file' in refused(path, ["p:image"], "y")


def test_a_huge_whole_number_is_described_and_refused_with_its_row():
    rows = [{"n": i, "y": i % 2} for i in range(30)]
    rows[4]["n"] = 10**5000
    assert describe(open_table(rows))["n"].oddities == 1
    assert refused(rows, ["n"], "y:label").startswith('data row 5: "n"')


def test_an_error_of_a_row_is_printable_whatever_its_cells_say():
    table = open_table([{"a\nb": "x\x1b[31m\n", "y": str(i % 2)} for i in range(4)])
    schema, _ = resolve(config(["a\nb:number"], "y").data, table, describe)
    errors = Errors()
    assert not list(schema.rows(table, errors))
    with pytest.raises(DataError) as caught:
        errors.settle()
    assert str(caught.value).isprintable()
