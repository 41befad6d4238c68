"""Broken and hostile files, by reader: each gives its right value, or one line that says where and what is wrong."""

import datetime
import gzip
import io
import os
import re
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mapsto.data import block
from mapsto.data.table import ENDINGS, open_table
from mapsto.errors import ConfigError, DataError


def rows(table):
    return {name: table.column(name) for name in table.columns}


def refused(source):
    with pytest.raises(DataError) as caught:
        rows(open_table(source))
    text = str(caught.value)
    assert text.isprintable()
    return text


def test_a_byte_order_mark_inside_is_part_of_its_cell(write):
    assert rows(open_table(write("t.csv", "a,b\n\ufeffx,1\n"))) == {"a": ["\ufeffx"], "b": ["1"]}
    assert rows(open_table(write("t.csv", "\ufeff\ufeffa\n1\n"))) == {"\ufeffa": ["1"]}


def test_a_block_that_starts_with_a_mark_keeps_it(write, monkeypatch):
    monkeypatch.setattr(block, "PIECE", 8)
    assert open_table(write("t.csv", "a,b\n1,2\n" + "\ufeffx,3\n" * 5)).column("a") == ["1"] + ["\ufeffx"] * 5


def test_a_file_of_carriage_returns_loses_no_row_when_quotes_stand_for_themselves(write):
    path = write("t.tsv", b"a\tb\r1\t2\r3\t4\n5\t6")
    assert rows(open_table(path, quote=None)) == rows(open_table(path)) == {"a": ["1", "3", "5"], "b": ["2", "4", "6"]}
    assert open_table(path, quote="").columns == ["a", "b"]
    with pytest.raises(ConfigError, match="quote="):
        open_table(path, quote="'")


def test_mixed_line_ends_are_counted_as_editors_count_them(write):
    text = refused(write("t.csv", b"a,b\r1,2\r\n3,4\n5,\xff\r"))
    assert text.startswith("t.csv line 4: byte 0xFF")
    assert refused(write("t.txt", b"a\rb\r\nc\n\xff")).startswith("t.txt line 4")
    assert open_table(write("t.txt", b"a\rb\r\n\r\nc")).column("text") == ["a", "b", None, "c"]


def test_a_nul_stays_what_it_is(write):
    assert open_table(write("t.csv", b"a,b\nx\0y,\0\n")).column("b") == ["\0"]
    assert open_table(write("t.txt", b"\0\n")).column("text") == ["\0"]


def test_an_empty_header_cell_is_a_name_and_two_are_refused(write):
    assert rows(open_table(write("t.csv", ",a\n0,1\n"))) == {"": ["0"], "a": ["1"]}
    assert '2 columns named ""' in refused(write("t.csv", ",a,\n0,1,2\n"))
    assert "more than 100000 cells in the header" in refused(write("t.csv", "," * 200_000 + "\n"))


def test_gz_with_a_tail_is_refused_and_two_members_are_one_file(write):
    data = gzip.compress(b"a\n1\n")
    assert "t.csv.gz: the gzip data is damaged" in refused(write("t.csv.gz", data + b"tail"))
    assert open_table(write("t.CSV.GZ", data + gzip.compress(b"2\n") + bytes(9))).column("a") == ["1", "2"]


def test_a_gz_bomb_is_refused_after_sixteen_megabytes(write):
    assert "longer than 16 MB" in refused(write("t.csv.gz", gzip.compress(b"a\n" + bytes(40 << 20))))


def handmade(*members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, shape, kind, data in members:
            header = str({"descr": kind, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
            archive.writestr(name, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([("x.npy", (7,), "<i8", bytes(64))], "x.npy holds more than its header says"),
        ([("x.npy", (9,), "<i8", bytes(64))], "x.npy is cut off"),
        ([("x.npy", (1 << 40, 0), "<i8", b"")], "x.npy has rows without items"),
        ([("x.npy", (1 << 40,), "<U0", b"")], "x.npy has rows without items"),
        ([("x.npy", (1,), "|O", b"cos\nsystem\n.")], "an array of Python objects"),
        ([("x.npy", (), "<i8", bytes(8))], "a single value"),
        ([("x.npy", (8,), "<i8", bytes(64))] * 2, "x is in it twice"),
        ([], "holds no arrays"),
    ],
)
def test_headers_of_arrays_that_lie_are_refused(write, members, text):
    message = refused(write("t.npz", handmade(*members)))
    assert message.startswith("t.npz")
    assert text in message


def test_a_flipped_bit_that_hides_an_array_is_found(write):
    data = bytearray(handmade(("x.npy", (1,), "<i8", bytes(8)), ("y.npy", (1,), "<i8", bytes(8))))
    data[data.index(b"PK\1\2") + 33] ^= 0x80  # a comment of 32 KB, that swallows the entry behind it
    assert "its list of arrays is damaged" in refused(write("t.npz", bytes(data)))


def test_times_beyond_microseconds_are_texts_and_far_ones_are_not_wrapped(tmp_path):
    np.savez(tmp_path / "t.npz", t=np.array([1_000, 1_001], "M8[ns]"), f=np.array(["30000-01-01"] * 2, "M8[D]"))
    got = rows(open_table(tmp_path / "t.npz"))
    assert got["t"] == [datetime.datetime(1970, 1, 1, microsecond=1), "1970-01-01T00:00:00.000001001"]
    assert got["f"] == ["30000-01-01"] * 2
    table = pa.table({"t": pa.array([1_000, 1_001, None], pa.timestamp("ns"))})
    assert open_table(table).column("t") == [*got["t"], None]
    zoned = pa.table({"t": pa.array([1_001], pa.timestamp("ns", "Europe/Paris"))})
    assert open_table(zoned).column("t") == ["1970-01-01T01:00:00.000001001+01:00"]


def test_a_value_of_parquet_that_cannot_be_held_is_named_with_its_row(tmp_path):
    path = tmp_path / "t.parquet"
    for column, text in [
        (pa.array([0, 1 << 60], pa.timestamp("us")), "out of range"),
        (pa.array([b"a", b"\xff"], pa.binary()).view(pa.string()), "utf-8"),
        (pa.array([0, 1001], pa.time64("ns")), "ns|Nano"),
    ]:
        pq.write_table(pa.table({"c": column}), path)
        message = refused(path)
        assert message.startswith('t.parquet row 2: "c": a value that cannot be read')
        assert re.search(text, message)
        assert refused(pa.table({"c": column})).startswith('data row 2: "c"')


def test_page_checksums_of_parquet_are_verified(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(
        pa.table({"a": [7] * 5000}), path, write_page_checksum=True, compression="none", use_dictionary=False
    )
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(bytes(data))
    assert "t.parquet: damaged" in refused(path)


def test_a_frame_that_is_no_table_of_arrow_is_refused():
    class Frame:
        def __arrow_c_stream__(self, schema=None):
            raise pa.ArrowTypeError("Expected bytes, got a 'int' object")

    assert "the Frame is no table of Arrow (Expected bytes" in refused(Frame())


def test_names_that_are_no_texts_are_read_and_never_mixed_up():
    assert rows(open_table([{0: "a", 1: 5}])) == {"0": ["a"], "1": [5]}
    assert '2 columns named "1"' in refused([{1: "a", "1": "b"}])
    assert '2 columns named "1"' in refused({1: ["a"], "1": ["b"]})


def test_masked_values_are_missing():
    assert rows(open_table({"a": np.ma.array([1, 2], mask=[0, 1])})) == {"a": [1, None]}
    assert "masked array" in refused({"a": np.ma.array([[1, 2]], mask=[[0, 1]])})
    assert "holds records" in refused({"a": np.zeros(2, [("x", "i4")])})
    assert open_table([{"t": np.datetime64("2024-05-01", "ns")}]).column("t") == [datetime.datetime(2024, 5, 1)]


@pytest.mark.parametrize("path", ["a\0.png", "x" * 5000, "loop.png", ".", "\ud800.png"])
def test_a_cell_that_can_be_no_path_is_one_line(tmp_path, path):
    (tmp_path / "loop.png").symlink_to("loop.png")
    with pytest.raises(DataError, match="no such file") as caught:
        open_table({"p": ["x"]}, root=tmp_path).file(path)
    assert str(caught.value).isprintable()


def test_links_out_of_a_folder_of_pictures_are_refused_and_never_read(tmp_path):
    folder = tmp_path / "shots"
    folder.mkdir()
    (folder / "endless.png").symlink_to("/dev/zero")
    Image.new("L", (2, 2)).save(tmp_path / "out.png")
    (folder / "out.png").symlink_to(tmp_path / "out.png")
    table = open_table(folder)
    assert table.fingerprint()
    for name in table.column("path"):
        with pytest.raises(DataError, match="outside of the folder"):
            table.file(name)
    assert open_table(folder, root=tmp_path).file("out.png") == (tmp_path / "out.png").resolve()


def test_names_of_pictures_that_are_not_utf8_are_refused(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.png")).touch()
    assert refused(tmp_path).endswith("is not UTF-8.   Rename it")


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    assert "is no regular file" in refused(tmp_path / "t.csv")
    assert "no such file" in refused("a\0.csv")
    assert "cannot be read" in refused("x" * 500 + ".csv")


def test_the_endings_are_those_that_open(write):
    for ending in ENDINGS:
        assert "cannot read" not in refused(write(f"t{ending if ending != '.gz' else '.csv.gz'}", b""))
