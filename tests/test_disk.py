import json
import os
import struct

import pytest
import torch
from safetensors.torch import load_file, save

from mapsto import disk
from mapsto.errors import ModelFileError

TENSORS = {
    "w": torch.randn(3, 4),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(1.5, dtype=torch.float64),
    "mask": torch.tensor([True, False]),
    "half": torch.randn(5).bfloat16(),
    "small": torch.randn(2, 1, 2).half(),
    **{f"i{bits}": torch.arange(7, dtype=getattr(torch, f"int{bits}")) for bits in (8, 16, 32, 64)},
    "bytes": torch.arange(9, dtype=torch.uint8),
}


def test_tensors_are_read_as_safetensors_reads_them(tmp_path):
    path = tmp_path / "w.safetensors"
    disk.write_tensors(path, TENSORS)
    found, known = disk.read_tensors(path), load_file(path)
    assert found.keys() == known.keys() == TENSORS.keys()
    for name, tensor in found.items():
        assert tensor.dtype == known[name].dtype
        assert torch.equal(tensor, known[name])
    header = disk.read_header(path)
    assert {n: (e.dtype, e.shape) for n, e in header.items()} == {
        n: (t.dtype, tuple(t.shape)) for n, t in TENSORS.items()
    }


def test_tensors_that_were_read_do_not_change_with_their_file(tmp_path):
    path = tmp_path / "w.safetensors"
    disk.write_tensors(path, {"w": torch.ones(4)})
    found = disk.read_tensors(path)
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(found["w"], torch.ones(4))


def entry(dtype="F32", shape=(2,), place=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(place)}


def made(header, body=bytes(8), length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "header is said to end at byte 8, and it has 0"),
        (made({}, b"", 2**64 - 1), "header is said to end at byte 18,446,744,073,709,551,623"),
        (made({}, b"", 1 << 30), "header is said to end at byte 1,073,741,832"),
        (made(b" " * 5_000_000 + b"{}", b""), "a header of 5,000,010 bytes, expected at most"),
        (made(b"\xff\xff", b""), "its header: 'utf-8' codec"),
        (made(b"[" * 10_000, b""), "its header: lists or objects nested deeper"),
        (made(b'{"a": NaN}', b""), "NaN is not a number"),
        (made(b'{"w": 1, "w": 2}'), 'the key "w" is given 2 times'),
        (made(b"[" + b"0," * 1_100_000 + b"0]", b""), "more than 1,048,576 values"),
        (made(b"[]", b""), "its header is no object"),
        (made({"w": entry(), "x": 3}), "the header of 'x' is not dtype, shape and data_offsets"),
        (made({"w": {**entry(), "strides": [1]}}), "the header of 'w' is not"),
        (made({"w": entry("F4")}), "'w' is of type 'F4', known are F64"),
        (made({"w": entry(["F32"])}), "'w' is of type"),
        (made({"w": entry(shape=(-2,))}), "a shape or place that is not whole numbers"),
        (made({"w": entry(shape=(2.0,))}), "a shape or place that is not whole numbers"),
        (made({"w": entry(shape=(True, 2))}), "a shape or place that is not whole numbers"),
        (made({"w": entry(shape=(2**63, 0))}), "a shape or place that is not whole numbers"),
        (made({"w": entry(place=(0, 8, 8))}), "a shape or place that is not whole numbers"),
        (made({"w": entry(place=("0", "8"))}), "a shape or place that is not whole numbers"),
        (made({"w": entry(place=(8, 0))}), "needs 8 bytes, and has 8 to 0"),
        (made({"w": entry(place=(0, 4))}), "needs 8 bytes, and has 0 to 4"),
        (made({"w": entry(place=(4, 12))}), "needs 8 bytes, and has 4 to 12"),
        (
            made({"w": entry(shape=(2**62, 2**62, 4))}),
            "needs 340,282,366,920,938,463,463,374,607,431,768,211,456 bytes",
        ),
        (made({"w": entry(), "x": entry()}), "begins at byte"),
        (made({"w": entry(shape=(1,), place=(4, 8))}), "begins at byte"),
        (made({"w": entry(shape=(1,), place=(0, 4))}), "4 bytes at its end are of no tensor"),
        (made({}), "8 bytes at its end are of no tensor"),
        (made({"\x1b[31m\u202e": entry("X")}), r"'\\x1b\[31m\\u202e' is of type"),
    ],
)
def test_a_header_that_says_what_is_not_so_is_refused_before_memory_is_taken(tmp_path, data, message):
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    for reader in (disk.read_header, disk.read_tensors):
        with pytest.raises(ModelFileError, match=message) as caught:
            reader(path)
        assert str(caught.value).isprintable()
        assert str(path) in str(caught.value)


def test_a_file_that_is_cut_off_or_longer_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    data = save({"w": torch.randn(3, 5), "v": torch.randn(2)})
    for size in range(0, len(data), 7):
        path.write_bytes(data[:size])
        with pytest.raises(ModelFileError, match="is damaged"):
            disk.read_tensors(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(ModelFileError, match="1 bytes at its end"):
        disk.read_tensors(path)


def readers():
    return [lambda p: disk.read(p, 100), disk.read_json, disk.read_header, disk.read_tensors]


@pytest.mark.parametrize("reader", readers())
def test_only_plain_files_are_read(tmp_path, reader):
    real = tmp_path / "real"
    real.write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link", "device", "loop", "folder"):
        with pytest.raises(ModelFileError, match=f"{name} is a link or no plain file, and is not read"):
            reader(tmp_path / name)
    with pytest.raises(ModelFileError, match="cannot be read"):
        reader(tmp_path / "a\0b")
    with pytest.raises((ModelFileError, FileNotFoundError), match=r"missing|No such file"):
        reader(tmp_path / "nothing")


def test_a_hard_link_is_a_file_like_any_other(tmp_path):
    (tmp_path / "one").write_text('{"a": 1}')
    os.link(tmp_path / "one", tmp_path / "two")
    assert disk.read_json(tmp_path / "two") == {"a": 1}


def test_no_more_is_read_than_expected(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"[1]" + b" " * 98)
    with pytest.raises(ModelFileError, match="has 101 bytes, expected at most 100"):
        disk.read(path, 100)
    os.truncate(path, 20_000_000_000)
    with pytest.raises(ModelFileError, match="has 20,000,000,000 bytes, expected at most 16,777,216"):
        disk.read_json(path)
    path.write_bytes(b"[" + b"0," * 1_100_000 + b"0]")
    with pytest.raises(ModelFileError, match="is damaged: more than 1,048,576 values"):
        disk.read_json(path)
