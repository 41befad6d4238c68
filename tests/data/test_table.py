import csv
import gzip
import io
import json
import random
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mapsto.data import block
from mapsto.data.table import open_table
from mapsto.errors import DataError


def rows(table):
    return {name: table.column(name) for name in table.columns}


def refused(source):
    with pytest.raises(DataError) as caught:
        rows(open_table(source))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_cells_stay_the_text_they_are(write):
    path = write("t.csv", 'id,text,n\n007,NA,nan\n1e400,"a, ""b""\nc", x \n１,"",\n')
    assert rows(open_table(path)) == {
        "id": ["007", "1e400", "１"],
        "text": ["NA", 'a, "b"\nc', ""],
        "n": ["nan", " x ", None],
    }


def test_a_byte_order_mark_and_any_line_ends_change_nothing(write):
    expected = {"a": ["1", "3"], "b": ["2", "4"]}
    for data in ("a,b\n1,2\n3,4\n", "\ufeffa,b\r\n1,2\r\n3,4", "a,b\r1,2\r3,4\r", "\n\na, b\n1,2\n\n3,4\n\n"):
        assert rows(open_table(write("t.csv", data))) == expected, data


def test_tsv_and_gz_are_read_alike(write):
    path = write("t.tsv.gz", gzip.compress(b'a\tb\n1,5\t"x\ty"\n'))
    table = open_table(path)
    assert rows(table) == {"a": ["1,5"], "b": ["x\ty"]}
    assert table.name == "t.tsv.gz"


def test_quotes_can_be_read_as_they_stand(write):
    path = write("t.tsv", 'en\tfr\n"Hi," he said.\t"Salut", dit-il.\n')
    assert open_table(path, quote=None).column("en") == ['"Hi," he said.']
    assert "line 2: text after the closing quote" in refused(path)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("", "t.csv is empty"),
        ("\n\n", "t.csv is empty"),
        ("a,b\n", "t.csv has no rows.   columns: a, b."),
        ("a,b", "t.csv has no rows.   columns: a, b."),
        ("a,b,a\n1,2,3\n", 't.csv has 2 columns named "a"'),
        ("a,b\n1,2\n3\n4,5\n", "t.csv row 2: 1 cells, expected 2 (a, b)."),
        ("a,b\n1,2\n\n3,4\n5,6,7\n", "t.csv row 3: 3 cells, expected 2 (a, b).   A cell that holds a comma"),
        ('a,b\n1,2\n3,"x\n4,y\n', "t.csv line 3: a quote is opened and never closed."),
        (
            'a,b\n1,"x\n2,y\n3,"z, w"\n',
            "t.csv line 2: text after the closing quote of a cell, or a quote that was opened",
        ),
        ('a,b\n"x"y,2\n', "t.csv line 2: text after the closing quote"),
        ('"a,b\n1,2\n', "t.csv line 1: a quote is opened and never closed."),
        (b"a,b\n1,2\n3,caf\xe9\n", "t.csv line 3: byte 0xE9 is not UTF-8."),
        ("a,b\n".encode("utf-16"), "t.csv: is UTF-16. Save it as UTF-8."),
    ],
)
def test_a_broken_csv_is_named_with_its_row_or_line(write, data, text):
    assert refused(write("t.csv", data)).startswith(text)


def test_quotes_inside_an_unquoted_cell_stand_for_themselves(write):
    path = write("t.csv", 'a,b\n5" disk,"x"\n,y"z"\n')
    assert rows(open_table(path)) == {"a": ['5" disk', None], "b": ["x", 'y"z"']}


def test_a_cell_of_ten_megabytes_is_kept_whole_and_an_endless_one_refused(write):
    long = "x" * 10_000_000
    assert open_table(write("t.csv", f"a,b\n1,{long}\n")).column("b") == [long]
    assert "line 3" in refused(write("t.csv", 'a,b\n1,2\n3,"' + "x" * (18 << 20) + '"\n'))


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.sampled_from(
    ['"', '""', ",", "\n", "\r", "\r\n", 'a"b', '",', "é", " ", "NA"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(cells, min_size=3, max_size=3), min_size=1, max_size=12), st.sampled_from([3, 7, 64, 1 << 20]))
def test_what_the_csv_module_writes_is_read_back_in_pieces_of_any_size(tmp_path_factory, table, piece):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    buffer = io.StringIO(newline="")
    csv.writer(buffer, quoting=csv.QUOTE_ALL).writerows([["a", "b", "c"], *table])
    path.write_bytes(buffer.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "PIECE", piece)
        columns = rows(open_table(path))
    assert [list(row) for row in zip(*columns.values(), strict=True)] == table


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from('ab,"\n'), max_size=30), st.sampled_from([1, 2, 5, 1 << 20]))
def test_quotes_follow_a_strict_reader_whatever_the_text(tmp_path_factory, text, piece):
    # Independent reference: a state machine over characters.
    def reference(text):
        rows, row, cell, state, quoted = [], [], "", "start", False
        for c in text + ("" if text.endswith("\n") else "\n"):
            if state == "quoted":
                if c == '"':
                    state = "closed"
                else:
                    cell += c
                continue
            if state == "closed" and c == '"':
                cell, state = cell + '"', "quoted"
                continue
            if c in ",\n":
                row.append(cell if cell or quoted else None)
                cell, state, quoted = "", "start", False
                if c == "\n":
                    if row != [None]:
                        rows.append(row)
                    row = []
                continue
            if state == "closed":
                return None
            if state == "start" and c == '"':
                state, quoted = "quoted", True
                continue
            cell, state = cell + c, "plain"
        return None if state in ("quoted", "closed") else rows

    expected = reference("a,b\n" + text)
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    path.write_text("a,b\n" + text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "PIECE", piece)
        try:
            columns = rows(open_table(path))
        except DataError:
            assert expected is None or len(expected) == 1 or any(len(row) != 2 for row in expected)
            return
    assert [list(row) for row in zip(*columns.values(), strict=True)] == expected[1:]


def test_a_large_csv_is_streamed_with_right_row_numbers(tmp_path):
    path = tmp_path / "t.csv"
    with path.open("w") as file:
        file.write("id,text\n")
        file.writelines(f'{i},"line {i}\nand ""more"" of it {"x" * 50}"\n' for i in range(1, 60_001))
        file.write("60001,a,b\n")
    largest, seen = 0, 0
    try:
        for chunk in open_table(path).chunks(["id"]):
            assert chunk.columns["id"][0] == str(chunk.first)
            largest, seen = max(largest, len(chunk)), seen + len(chunk)
    except DataError as error:
        assert "row 60001: 3 cells" in str(error)  # noqa: PT017
    else:
        raise AssertionError("the last row has three cells")
    assert largest < 20_000 < seen


def test_a_table_can_be_read_again_and_only_in_part(write):
    table = open_table(write("t.csv", "a,b\n1,2\n3,4\n"))
    assert table.column("b") == table.column("b") == ["2", "4"]
    (chunk,) = table.chunks(["b", "b"])
    assert chunk.columns == {"b": ["2", "4"]}


def test_an_unknown_column_is_answered_with_the_known_ones(write):
    table = open_table(write("reviews.csv", "id,text,label\n1,a,b\n"))
    with pytest.raises(DataError) as caught:
        table.column("labels")
    assert str(caught.value) == (
        'reviews.csv has no column "labels".   columns: id, text, label.   Did you mean "label"?'
    )
    with pytest.raises(DataError, match=r'Did you mean "--to label"\?'):
        table.require("labels", form="--to {}")


def test_a_missing_file_is_answered_with_the_closest_one(write):
    path = write("reviews.csv", "a\n1\n")
    assert refused(path.with_name("reviws.csv")).endswith('no such file.   Did you mean "reviews.csv"?')
    assert "There is no folder" in refused(path.parent / "no" / "t.csv")


@pytest.mark.parametrize(
    ("name", "hint"), [("a.pkl", "run code"), ("a.xlsx", ".csv"), ("a.foo", "Known are"), ("a", "Known")]
)
def test_unknown_endings_say_what_to_do(write, name, hint):
    assert hint in refused(write(name, b"x"))


def test_a_cut_off_gz_is_named(write):
    data = gzip.compress(b"a,b\n" + bytes(range(48, 58)) * 1000)
    assert "t.csv.gz: the gzip data is damaged or cut off" in refused(write("t.csv.gz", data[:-9]))
    assert "t.csv.gz: the gzip data is damaged or cut off" in refused(write("t.csv.gz", b"a,b\n1,2\n"))


def test_jsonl_keeps_types_and_late_keys(write):
    path = write(
        "t.jsonl", '{"a": 1, "b": "x"}\n\n{"a": 1.5, "c": [1, 2]}\r\n{"b": null, "a": "\\u0000\\ud83d\\ude00"}\n'
    )
    assert rows(open_table(path)) == {"a": [1, 1.5, "\0😀"], "b": ["x", None, None], "c": [None, [1, 2], None]}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"a": 1, "a": 2}', 'the key "a" is given 2 times'),
        ('{"a": {"b": 1, "b": 2}}', 'the key "b" is given 2 times'),
        ('{"a": NaN}', "NaN is not a number in JSON"),
        ('{"a": -Infinity}', "-Infinity is not a number in JSON"),
        ('{"a": 1e400}', "the number 1e400 is beyond"),
        ('{"a": -1' + "0" * 310 + ".5}", "is beyond"),
        ('{"a": ' + "9" * 5000 + "}", "a whole number of more than 4300 digits"),
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested deeper than 64"),
        ("[1, 2]", "a JSON list, expected an object"),
        ('"text"', "a JSON text, expected an object"),
        ('{"a": 1} {"a": 2}', "column 10: not JSON (Extra data)"),
        ('{"a": tru}', "column 7: not JSON"),
        ('{"a": "' + "\x01" + '"}', "not JSON"),
    ],
)
def test_strict_json_names_the_line(write, line, text):
    message = refused(write("t.jsonl", '{"a": 0}\n\n' + line + "\n"))
    assert message.startswith("t.jsonl line 3")
    assert text in message


def test_brackets_in_texts_are_not_depth(write):
    line = json.dumps({"a": '[{\\"' * 100})
    assert len(open_table(write("t.jsonl", line)).column("a")) == 1


def test_a_json_list_is_recognised(write):
    assert "looks like one JSON list" in refused(write("t.jsonl", '[\n{"a": 1}\n]\n'))


def test_encoding_errors_of_lines_are_named(write):
    assert "t.txt line 2: byte 0xFF" in refused(write("t.txt", b"a\n\xff\n"))


def test_text_lines_are_items_and_an_empty_line_is_missing(write):
    path = write("t.txt", "\ufeffone\u2028still one\r\n\nthree\x85x")
    assert open_table(path).column("text") == ["one\u2028still one", None, "three\x85x"]


def test_parquet_is_streamed_with_lists_as_arrays(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table(
        {
            "a": [1, None, 3],
            "x": [[1.0, 2.0], None, []],
            "gap": [[1.0, None], [2.0], [3.0]],
            "t": pa.array([1, 2, 3], pa.timestamp("ns")),
            "w": [["u", "v"], [], ["w"]],
        }
    )
    pq.write_table(table, path)
    got = rows(open_table(path))
    assert got["a"] == [1, None, 3]
    assert got["x"][1] is None
    assert [list(x) for x in (got["x"][0], got["x"][2])] == [[1.0, 2.0], []]
    assert got["gap"] == [[1.0, None], [2.0], [3.0]]
    assert got["w"] == [["u", "v"], [], ["w"]]
    firsts = [chunk.first for chunk in open_table(pa.table({"a": np.arange(10_000)})).chunks()]
    assert firsts == [1, 4097, 8193]


def test_a_damaged_parquet_is_named(write, tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": list(range(10_000))}), path)
    assert "t.parquet is not a Parquet file" in refused(write("t.parquet", path.read_bytes()[:-10]))
    assert "no such file" in refused(tmp_path / "u.parquet")


def test_npz_arrays_are_columns_and_parts_become_a_split(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, x=np.zeros((3, 2, 2), np.uint8), y=np.array(["a", "b", "c"]))
    got = rows(open_table(path))
    assert got["y"] == ["a", "b", "c"]
    assert [x.shape for x in got["x"]] == [(2, 2)] * 3
    np.savez(path, x_train=np.arange(3), x_test=np.arange(2), y_train=np.arange(3), y_test=np.arange(2))
    assert rows(open_table(path)) == {"x": [0, 1, 2, 0, 1], "y": [0, 1, 2, 0, 1], "split": ["train"] * 3 + ["test"] * 2}


def test_npz_never_unpickles(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, a=np.array([{"x": 1}], object))
    assert "an array of Python objects" in refused(path)
    path.write_bytes(b"nothing")
    assert "t.npz is not an .npz file" in refused(path)
    np.savez(path, a=np.zeros(3), b=np.zeros(4))
    assert '"a" has 3 rows, "b" has 4' in refused(path)


def test_an_array_whose_header_promises_more_than_there_is_is_refused(tmp_path):
    path = tmp_path / "t.npz"
    header = str({"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}).encode().ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))
    assert "a.npy is cut off" in refused(path)


def test_broken_files_of_every_ending_are_refused_or_read_never_a_traceback(write, tmp_path):
    draw = random.Random(0)
    np.savez_compressed(tmp_path / "t.npz", x=np.arange(60.0).reshape(20, 3), y=np.arange(20))
    pq.write_table(pa.table({"a": list(range(50)), "l": [[1.0, 2.0]] * 50}), tmp_path / "t.parquet")
    text = b"id,text\n" + b"".join(b'%d,"a ""b"", %d\nmore"\n' % (i, i) for i in range(30))
    whole = {
        "t.csv": text,
        "t.csv.gz": gzip.compress(text),
        "t.jsonl": b"".join(json.dumps({"a": i, "b": "é😀", "c": [1.5]}).encode() + b"\n" for i in range(30)),
        "t.npz": (tmp_path / "t.npz").read_bytes(),
        "t.parquet": (tmp_path / "t.parquet").read_bytes(),
    }
    pieces = [b'"', b"\n", b"\r", b",", b"\xff", b"\0", b"{", b"]", b"NaN", b"1e999", b"\xef\xbb\xbf", b"\\ud800"]
    for _ in range(400):
        name = draw.choice(list(whole))
        data = bytearray(whole[name])
        at = draw.randrange(len(data))
        match draw.randrange(4):
            case 0:
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                data[at:at] = draw.choice(pieces)
            case 2:
                del data[at : at + draw.choice([1, 50])]
            case 3:
                del data[at + 1 :]
        path = write(name, bytes(data))
        try:
            rows(open_table(path))
        except DataError as error:
            assert str(error).startswith(name)  # noqa: PT017
            assert str(error).isprintable()  # noqa: PT017


def test_a_folder_of_pictures_gives_path_label_and_split(tmp_path):
    for name in (
        "train/cat/b.png",
        "train/dog/a.JPG",
        "val/cat/c.png",
        "test/dog/d.png",
        "train/cat/.x.png",
        "train/n.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2)).save(path, "png")
    table = open_table(tmp_path)
    assert rows(table) == {
        "path": ["test/dog/d.png", "train/cat/b.png", "train/dog/a.JPG", "val/cat/c.png"],
        "label": ["dog", "cat", "dog", "cat"],
        "split": ["test", "train", "train", "val"],
    }
    assert table.file("val/cat/c.png").is_file()
    assert rows(open_table(tmp_path / "train")) == {"path": ["cat/b.png", "dog/a.JPG"], "label": ["cat", "dog"]}
    assert rows(open_table(tmp_path / "train" / "cat")) == {"path": ["b.png"]}
    before = table.fingerprint()
    Image.new("L", (2, 3)).save(tmp_path / "val/cat/c.png")
    assert open_table(tmp_path).fingerprint() != before
    (tmp_path / "empty").mkdir()
    assert "no pictures" in refused(tmp_path / "empty")


def test_paths_may_not_leave_the_folder_of_the_data(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out.png").touch()
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "out.png")
    (tmp_path / "in" / "a.png").touch()
    table = open_table({"p": ["x"]}, root=tmp_path / "in")
    assert table.file("a.png").name == "a.png"
    for path in ("../out.png", str(tmp_path / "out.png"), "link.png"):
        with pytest.raises(DataError, match="outside of the folder"):
            table.file(path)
    with pytest.raises(DataError, match=r'Did you mean "a\.png"'):
        table.file("aa.png")


def test_values_in_memory_are_tables():
    assert rows(open_table([{"a": 1}, {"a": 2, "b": "x"}])) == {"a": [1, 2], "b": [None, "x"]}
    assert rows(open_table(["x", "y"])) == {"text": ["x", "y"]}
    got = rows(open_table({"t": torch.arange(2), "n": np.array([1.5, 2.5]), "m": torch.ones(2, 3), "l": ["a", None]}))
    assert got["t"] == [0, 1]
    assert got["n"] == [1.5, 2.5]
    assert [m.tolist() for m in got["m"]] == [[1.0] * 3] * 2
    assert got["l"] == ["a", None]
    assert rows(open_table(pa.table({"a": ["x", None]}))) == {"a": ["x", None]}

    class Stream:
        def __arrow_c_stream__(self, schema=None):
            return pa.table({"a": [1]}).__arrow_c_stream__(schema)

    table = open_table(Stream())
    assert table.column("a") == table.column("a") == [1]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ([], "data has no rows"),
        ({}, "data has no columns"),
        ({"a": [1], "b": [1, 2]}, 'data: "a" has 1 rows, "b" has 2'),
        ({"a": "text"}, 'data: "a" is a str'),
        ({"a": np.float64(3)}, "single value"),
        ([{"a": 1}, "b"], "data row 2: texts where the rows before are dicts"),
        (3, "a int is not a source of rows"),
    ],
)
def test_what_is_no_table_in_memory_is_refused(source, text):
    assert text in refused(source)


def test_the_fingerprint_is_the_content(write):
    a = write("a.csv", "a\n1\n")
    same, other = write("b.csv", "a\n1\n"), write("c.csv", "a\n2\n")
    assert open_table(a).fingerprint() == open_table(same).fingerprint() != open_table(other).fingerprint()
    one = {"x": np.arange(6).reshape(3, 2), "y": ["a", "b", "c"]}
    assert open_table(one).fingerprint() == open_table(dict(one)).fingerprint()
    for change in ({"x": one["x"].astype(float)}, {"y": ["a", "bc", ""]}, {"y": ["a", "b", None]}):
        assert open_table(one | change).fingerprint() != open_table(one).fingerprint()


def test_an_error_is_one_printable_line_whatever_the_file_says(write):
    text = refused(write("t.csv", 'id,"na\nme\x1b[31m\u202e"\n1,2,3\n'))
    assert text.isprintable()
    assert r"na\nme\x1b[31m\u202e" in text
    assert refused(write("t.jsonl", '{"' + "k" * 9000 + '\\n": 1, "' + "k" * 9000 + '\\n": 1}')).isprintable()
    assert len(refused(write("t.jsonl", '{"' + "k" * 9000 + '": 1, "' + "k" * 9000 + '": 1}'))) <= 2000
    assert open_table({"a\nb": [1]}).place(1, "a\nb") == r'data row 1: "a\nb"'
