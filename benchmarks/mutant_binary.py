"""Mutants of arrays (``.npz``), of Parquet files and of values in memory; numpy, zipfile and pyarrow say what is in them."""

import datetime
import decimal
import io
import random
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mutant import Mutant, Want, damage, read_table
from mutant_text import CELLS

__all__ = ["draw_frame", "draw_npz", "draw_parquet"]

NAN = float("nan")
TEXTS = [cell for cell in CELLS if not cell.endswith("\0")]  # numpy's texts end before their last NULs


def array(draw: random.Random, rows: int) -> tuple[np.ndarray, list[Any]]:
    """An array and its rows as Python values."""
    n, source = rows, np.random.default_rng(draw.randrange(1 << 30))
    kind = draw.randrange(9)
    if kind == 0:
        x = source.integers(-5, 5, n).astype(draw.choice(["i1", "<i4", ">i8", "<i8"]))
    elif kind == 1:
        x = source.normal(size=n).astype(draw.choice(["<f2", "<f4", ">f8", "<f8"]))
        x[source.random(n) < 0.2] = draw.choice([np.nan, np.inf, -np.inf])
    elif kind == 2:
        x = source.random(n) < 0.5
    elif kind == 3:
        x = np.array([draw.choice(TEXTS) for _ in range(n)])
    elif kind == 4:
        x = source.normal(size=(n, draw.choice([1, 3, 7])))
        x = np.asfortranarray(x) if draw.random() < 0.5 else x
    elif kind == 5:
        x = source.integers(0, 256, (n, 4, 5)).astype(np.uint8)
    elif kind == 6:
        x = np.array(["2024-05-01", "1970-01-02", "0001-01-01", "9999-12-31"] * n, "M8[D]")[:n].astype(
            draw.choice(["M8[D]", "M8[s]", "M8[us]"])
        )
        return x, [datetime.datetime.fromisoformat(f"{str(v)[:10]}T00:00:00") for v in x.astype("M8[D]").astype(str)]
    elif kind == 7:
        x = np.array([draw.choice([1, 1500, 86_400_000_000_001]) for _ in range(n)], "M8[ns]")
        start = datetime.datetime(1970, 1, 1)
        exact = [int(v) for v in x.astype(np.int64)]
        return x, [str(v) if v % 1000 else start + datetime.timedelta(microseconds=v // 1000) for v in exact] if all(
            v % 1000 == 0 for v in exact
        ) else [str(t) for t in x]
    else:
        x = np.array([b"ab", b"\xff", b"x" * 9])[source.integers(0, 3, n)]
    return x, list(x) if x.ndim > 1 else x.tolist()


def npz(arrays: Mapping[str, np.ndarray], packed: bool) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def member(header: Mapping[str, Any], data: bytes, version: tuple[int, int] = (1, 0)) -> bytes:
    text = repr(dict(header)).encode().ljust(118) + b"\n"
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + data


def archive(*members: tuple[str, bytes], packed: bool = False) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names given twice
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as whole:
            for name, data in members:
                whole.writestr(name, data)
    return file.getvalue()


EIGHT = {"descr": "<i8", "fortran_order": False}


def lying(draw: random.Random) -> tuple[str, bytes, Want]:
    """An archive made by hand."""
    eight, data = np.arange(8, dtype=np.int64), np.arange(8, dtype=np.int64).tobytes()
    right, refused = Want({"x": eight.tolist()}), Want(None)
    sound = member(EIGHT | {"shape": (8,)}, data)
    choices: list[tuple[str, Callable[[], bytes], Want]] = [
        ("an honest header", lambda: archive(("x.npy", sound)), right),
        ("shape too large", lambda: archive(("x.npy", member(EIGHT | {"shape": (9,)}, data))), refused),
        ("shape too small", lambda: archive(("x.npy", member(EIGHT | {"shape": (7,)}, data))), refused),
        ("shape enormous", lambda: archive(("x.npy", member(EIGHT | {"shape": (1 << 60,)}, data))), refused),
        ("shape beyond 64 bits", lambda: archive(("x.npy", member(EIGHT | {"shape": (1 << 70, 4)}, data))), refused),
        ("shape negative", lambda: archive(("x.npy", member(EIGHT | {"shape": (-8,)}, data))), refused),
        ("rows without items", lambda: archive(("x.npy", member(EIGHT | {"shape": (1 << 40, 0)}, b""))), refused),
        (
            "texts of no width",
            lambda: archive(("x.npy", member(EIGHT | {"descr": "<U0", "shape": (1 << 40,)}, b""))),
            refused,
        ),
        (
            "objects",
            lambda: archive(("x.npy", member(EIGHT | {"descr": "|O", "shape": (1,)}, b"cos\nsystem\n."))),
            refused,
        ),
        (
            "records",
            lambda: archive(("x.npy", member(EIGHT | {"descr": [("a", "<i4"), ("b", "<i4")], "shape": (8,)}, data))),
            refused,
        ),
        ("a single value", lambda: archive(("x.npy", member(EIGHT | {"shape": ()}, data[:8]))), refused),
        ("no rows", lambda: archive(("x.npy", member(EIGHT | {"shape": (0,)}, b""))), refused),
        (
            "code in the header",
            lambda: archive(("x.npy", member(EIGHT | {"shape": 8}, data).replace(b"8}", b"print(1)}"))),
            refused,
        ),
        (
            "a name twice",
            lambda: archive(("x.npy", sound), ("x.npy", member(EIGHT | {"shape": (8,)}, data[::-1]))),
            refused,
        ),
        ("a name twice, once without its ending", lambda: archive(("x.npy", sound), ("x", sound)), refused),
        ("a text beside", lambda: archive(("x.npy", sound), ("read.me", b"hello")), refused),
        ("a path", lambda: archive(("../x.npy", sound)), Want({"../x": eight.tolist()})),
        ("an absolute path", lambda: archive(("/etc/passwd.npy", sound)), Want({"/etc/passwd": eight.tolist()})),
        ("nothing in it", lambda: archive(), refused),
        ("version 9", lambda: archive(("x.npy", member(EIGHT | {"shape": (8,)}, data, (9, 0)))), refused),
        ("version 2", lambda: archive(("x.npy", member(EIGHT | {"shape": (8,)}, data, (2, 0)))), right),
        ("nested header", lambda: archive(("x.npy", member(EIGHT | {"shape": (8,), "z": "(" * 90}, data))), refused),
        (
            "a bomb",
            lambda: archive(("x.npy", member(EIGHT | {"shape": (8,)}, data + bytes(1 << 25))), packed=True),
            refused,
        ),
        ("not a zip", lambda: b"PK\x03\x04" + bytes(99), refused),
        ("empty", lambda: b"", refused),
        ("a single array", lambda: io.BytesIO(member(EIGHT | {"shape": (8,)}, data)).getvalue(), refused),
    ]
    size = struct.pack("<I", len(sound))
    choices.append(
        ("sizes of 4 GB", lambda: archive(("x.npy", sound)).replace(size, struct.pack("<I", 0xFFFFFFF0)), refused)
    )
    how, make, want = draw.choice(choices)
    return how, make(), want


def draw_npz(draw: random.Random) -> Mutant:
    if draw.random() < 0.25:
        how, data, want = lying(draw)
        return Mutant(how, {"t.npz": data}, "t.npz", want, "t.npz")
    rows = draw.choice([1, 2, 5, 20])
    made = {name: array(draw, rows) for name in "xyz"[: draw.choice([1, 2, 3])]}
    arrays, right = {n: a for n, (a, _) in made.items()}, {n: v for n, (_, v) in made.items()}
    want, how = Want(right), "none"
    match draw.randrange(6):
        case 0:
            arrays["w"], want, how = np.zeros(rows + 1), Want(None), "another length"
        case 1:
            if draw.random() < 0.5:
                arrays = {f"{n}_{part}": a for n, a in arrays.items() for part in ("train", "test")}
                right = {n: list(v) * 2 for n, v in right.items()}
                want, how = Want(right | {"split": ["train"] * rows + ["test"] * rows}), "parts"
    data = npz(arrays, draw.random() < 0.5)
    if draw.random() < 0.75:
        data, want, how = (
            damage(draw, data, times=draw.choice([1, 1, 1, 3])),
            Want(want.values, optional=True),
            f"{how}, damage",
        )
    return Mutant(how, {"t.npz": data}, "t.npz", want, "t.npz")


def columns(draw: random.Random, rows: int) -> dict[str, tuple[pa.Array, list[Any]]]:
    """Arrow columns, with their values; some are missing."""

    def values(make: Callable[[], Any], kind: pa.DataType | None = None) -> tuple[pa.Array, list[Any]]:
        cells = [make() if draw.random() < 0.9 else None for _ in range(rows)]
        return pa.array(cells, kind), cells

    when = datetime.datetime(2024, 5, 1, 12, 30)
    makers: list[Callable[[], tuple[pa.Array, list[Any]]]] = [
        lambda: values(lambda: draw.randrange(-9, 9), draw.choice([pa.int8(), pa.int64()])),
        lambda: values(lambda: draw.choice([0.5, NAN, float("inf"), 1e300]), pa.float64()),
        lambda: values(lambda: draw.choice(CELLS), draw.choice([pa.string(), pa.large_string()])),
        lambda: values(lambda: draw.random() < 0.5, pa.bool_()),
        lambda: values(
            lambda: [draw.choice([1.5, -2.0, NAN]) for _ in range(draw.randrange(4))], pa.list_(pa.float64())
        ),
        lambda: values(lambda: [draw.choice([1.5, None]) for _ in range(draw.randrange(4))], pa.list_(pa.float64())),
        lambda: values(lambda: [draw.choice(CELLS) for _ in range(draw.randrange(3))], pa.list_(pa.string())),
        lambda: values(lambda: when, pa.timestamp(draw.choice(["us", "ns"]))),
        lambda: values(lambda: when.date(), pa.date32()),
        lambda: values(lambda: decimal.Decimal("1.50"), pa.decimal128(9, 2)),
        lambda: values(lambda: {"a": draw.randrange(3), "b": "x"}, pa.struct({"a": pa.int64(), "b": pa.string()})),
        lambda: values(lambda: draw.choice([b"\xff\x00", b"x"]), pa.binary()),
        lambda: values(lambda: [[1, 2], [draw.randrange(9)]], pa.list_(pa.list_(pa.int64()))),
    ]
    found = {}
    for i in range(draw.choice([1, 2, 3, 4])):
        cells, expected = draw.choice(makers)()
        if pa.types.is_string(cells.type) and draw.random() < 0.3:
            cells = cells.dictionary_encode()
        found[f"c{i}"] = cells, expected
    return found


def odd(draw: random.Random, rows: int) -> tuple[str, pa.Array, Want]:
    """A column with a value that cannot be held, or only just."""
    at = draw.randrange(rows)

    def whole(value: int) -> list[int]:
        return [value if i == at else 0 for i in range(rows)]

    refused = Want(None, frozenset([f"row {at + 1}"]))
    texts = [b"ok"] * at + [draw.choice([b"\xff", b"caf\xe9", b"\xed\xa0\x80"])] + [b"ok"] * (rows - at - 1)
    start = datetime.datetime(1970, 1, 1)
    fine = [f"1970-01-01T00:00:00.{1001:09d}" if i == at else start for i in range(rows)]
    spans = [datetime.timedelta(0)] * rows
    choices: list[tuple[str, pa.Array, Want]] = [
        ("a far year", pa.array(whole(1 << 60), pa.timestamp("us")), refused),
        ("a far second", pa.array(whole(1 << 49), pa.timestamp("ms")), refused),
        ("a far date", pa.array(whole(1 << 30), pa.int32()).view(pa.date32()), refused),
        ("a time of day of nanoseconds", pa.array(whole(1001), pa.time64("ns")), refused),
        ("text that is none", pa.array(texts, pa.binary()).view(pa.string()), refused),
        ("nanoseconds", pa.array(whole(1001), pa.timestamp("ns")), Want({"c": fine})),
        ("spans", pa.array(whole(0), pa.duration("ns")), Want({"c": spans})),
        (
            "no such zone",
            pa.array(whole(1), pa.timestamp("us", "Nowhere/Else")),
            Want(None, frozenset(["row 1", f"row {at + 1}"])),
        ),
    ]
    return draw.choice(choices)


def parquet(draw: random.Random, whole: pa.Table, checked: bool) -> bytes:
    file = io.BytesIO()
    pq.write_table(
        whole,
        file,
        compression=draw.choice(["none", "snappy", "gzip", "zstd"]),
        use_dictionary=draw.random() < 0.5,
        write_page_checksum=checked,
        row_group_size=draw.choice([3, 1000]),
        data_page_version=draw.choice(["1.0", "2.0"]),
    )
    return file.getvalue()


def stock(data: bytes) -> Mapping[str, Sequence[Any]]:
    """What pyarrow reads, all at once."""
    found = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read(use_threads=False)
    return {name: found.column(name).to_pylist() for name in found.column_names}


def draw_parquet(draw: random.Random) -> Mutant:
    rows = draw.choice([1, 2, 5, 20, 200])
    checked = draw.random() < 0.5
    if draw.random() < 0.2:
        how, column, want = odd(draw, rows)
        return Mutant(
            how, {"t.parquet": parquet(draw, pa.table({"c": column}), checked)}, "t.parquet", want, "t.parquet"
        )
    found = columns(draw, rows)
    whole = pa.table({n: c for n, (c, _) in found.items()})
    right: dict[str, Sequence[Any]] = {n: v for n, (_, v) in found.items()}
    match draw.randrange(12):
        case 0:
            double = pa.Table.from_arrays([whole.column(0)] * 2, ["a", "a"])
            data, want, how = parquet(draw, double, checked), Want(None), "a name twice"
        case 1:
            data, want, how = parquet(draw, whole.slice(0, 0), checked), Want(None), "no rows"
        case 2 | 3:
            data, want, how = parquet(draw, whole, checked), Want(right), "none"
        case 4:
            data, want, how = (
                draw.choice([b"", b"PAR1", b"PAR1PAR1", b"\0" * 40, b"a,b\n1,2\n"]),
                Want(None),
                "no Parquet",
            )
        case _:
            data = damage(draw, parquet(draw, whole, checked), times=draw.choice([1, 1, 1, 3]))
            broken = data
            want, how = (
                Want(right, optional=True, other=lambda: stock(broken)),
                f"damage{', checked' if checked else ''}",
            )
    return Mutant(how, {"t.parquet": data}, "t.parquet", want, "t.parquet")


class Frame:
    """Speaks Arrow as data frames do, or fails as they do."""

    def __init__(self, table: pa.Table, error: Exception | None = None):
        self.table, self.error = table, error

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        if self.error:
            raise self.error
        return self.table.__arrow_c_stream__(schema)


def draw_frame(draw: random.Random) -> Mutant:
    """Values in memory."""
    rows = draw.choice([1, 2, 5, 20])
    scalars = [1, 2.5, NAN, None, "007", "NA", True, 10**400, -(10**5000), "x\0", b"\xff", decimal.Decimal("NaN")]
    cells = [draw.choice(scalars) for _ in range(rows)]
    found = columns(draw, rows)
    right: dict[str, Sequence[Any]] = {n: v for n, (_, v) in found.items()}
    table = pa.table({n: c for n, (c, _) in found.items()})
    x, values = array(draw, rows)
    refused = Want(None)
    choices: list[tuple[str, Any, Want]] = [
        ("Arrow", table, Want(right)),
        ("a frame", Frame(table), Want(right)),
        ("a frame that is none", Frame(table, pa.ArrowTypeError("Expected bytes, got a 'int' object")), refused),
        ("a frame with a name twice", Frame(pa.Table.from_arrays([table.column(0)] * 2, ["a", "a"])), refused),
        ("a frame without rows", Frame(table.slice(0, 0)), refused),
        ("lists", {"a": cells, "b": [None] * rows}, Want({"a": cells, "b": [None] * rows})),
        ("arrays", {"a": x, "b": cells}, Want({"a": values, "b": cells})),
        ("objects", {"a": np.array([*cells, None], object)[:-1]}, Want({"a": cells})),
        ("lengths", {"a": cells, "b": [*cells, 1]}, refused),
        ("dicts", [{"a": c, 5: i} for i, c in enumerate(cells)], Want({"a": cells, "5": list(range(rows))})),
        ("dicts with late keys", [{"a": 1}, None, {"b": 2}], Want({"a": [1, None, None], "b": [None, None, 2]})),
        ("keys of one name", [{"1": 0, 1: 2}] * rows, refused),
        ("columns of one name", {"1": cells, 1: cells}, refused),
        ("numpy's scalars", {"a": [np.float32(0.5), np.int8(3), np.datetime64("NaT")]}, Want({"a": [0.5, 3, None]})),
        ("records", {"a": np.zeros(rows, [("x", "i4")])}, refused),
        ("masked", {"a": np.ma.array([1, 2], mask=[0, 1])}, Want({"a": [1, None]})),
        ("masked rows", {"a": np.ma.array([[1, 2]], mask=[[0, 1]])}, refused),
        ("dates of numpy", {"a": [np.datetime64("2024-05-01", "ns")]}, Want({"a": [datetime.datetime(2024, 5, 1)]})),
        ("far dates", {"a": np.array(["30000-01-01"], "M8[D]")}, Want({"a": ["30000-01-01"]})),
        ("nothing", draw.choice([[], {}, {"a": []}, {"a": 3}, {"a": "text"}, 5, None, b"x", {"a": {1: 2}}]), refused),
    ]
    how, source, want = draw.choice(choices)
    return Mutant(how, {}, source, want, "data", read=lambda m, p: read_table(m, Path()))
