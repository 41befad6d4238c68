import errno
import json
import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

from mapsto.data.store import Store, build, cache_folder, cached, open_store, sweep
from mapsto.errors import DataError, ResourceError
from mapsto.ragged import Ragged


def some(rows=50):
    draw = np.random.default_rng(0)
    for i in range(rows):
        yield {
            "ids": draw.integers(0, 99, i % 7).astype(np.int32),
            "x": draw.normal(size=(1 + i % 3, 2)).astype(np.float32),
            "label": np.int64(i % 4),
            "flag": np.array([i % 2 == 0]),
        }


def test_what_is_written_is_read_back(tmp_path):
    store = build(tmp_path / "s", some())
    assert len(store) == 50
    assert list(store.columns) == ["ids", "x", "label", "flag"]
    for opened in (store, open_store(tmp_path / "s")):
        for i, row in enumerate(some()):
            for name, values in row.items():
                got = opened.columns[name][i]
                assert got.dtype == values.dtype
                np.testing.assert_array_equal(got, np.atleast_1d(values))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s"]
    assert type(store.columns["x"].values) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        store.columns["x"].values[0] = 1


def test_rows_are_taken_in_any_order(tmp_path):
    store = build(tmp_path / "s", some())
    memory = Store.of(
        {name: Ragged.pack([np.atleast_1d(r[name]) for r in some()]) for name in ("ids", "x", "label", "flag")}
    )
    rows = np.array([13, 0, 7, 49])
    for name, taken in store.take(rows).items():
        for a, b in zip(taken.pad(), memory.take(rows)[name].pad(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert store.take(rows)["label"].dense()[:, 0].tolist() == [1, 0, 3, 1]


def test_empty_stores_and_columns_work(tmp_path):
    assert len(build(tmp_path / "none", [])) == 0
    store = build(tmp_path / "zero", ({"a": np.zeros((0, 3), np.int8)} for _ in range(4)))
    assert len(store) == 4
    assert store.take(np.array([0, 2]))["a"].pad()[0].shape == (2, 0, 3)


def test_rows_of_another_type_or_shape_are_named(tmp_path):
    for bad in (np.zeros((1, 3), np.float32), np.zeros((1, 2), np.float64)):
        with pytest.raises(DataError, match='row 2: "x" has items'):
            build(tmp_path / "s", [{"x": np.zeros((1, 2), np.float32)}, {"x": bad}])
    assert list(tmp_path.iterdir()) == []


def test_a_failing_source_leaves_nothing_behind(tmp_path):
    def rows():
        yield from some(5)
        raise KeyError("broken")

    with pytest.raises(KeyError):
        build(tmp_path / "s", rows())
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_an_error_of_the_source_is_its_own(tmp_path, monkeypatch):
    def missing():
        yield {"a": np.zeros(2)}
        raise FileNotFoundError("picture.png")

    with pytest.raises(FileNotFoundError, match=r"picture\.png"):
        build(tmp_path / "s", missing())

    def full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mapsto.data.store.flush", full)
    with pytest.raises(ResourceError, match=r"cannot be written \(No space left on device\), .* MiB are free"):
        build(tmp_path / "s", some())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot be written"):
        build(tmp_path / "file" / "s", some())


def test_every_flipped_or_cut_byte_is_found(tmp_path):
    build(tmp_path / "s", some())
    draw = np.random.default_rng(1)
    for path in sorted((tmp_path / "s").iterdir()):
        data = path.read_bytes()
        changes = [data[:-1], data + b"\0", b""]
        if path.name != "manifest.json":
            for at in draw.integers(0, len(data), 10).tolist():
                changes.append(data[:at] + bytes([data[at] ^ (1 << int(draw.integers(8)))]) + data[at + 1 :])
        else:
            changes[1] = data.replace(b'"rows": 50', b'"rows": 49')
        for change in changes:
            path.write_bytes(change)
            with pytest.raises(DataError, match="Delete the folder"):
                open_store(tmp_path / "s")
        path.unlink()
        with pytest.raises(DataError, match="Delete the folder"):
            open_store(tmp_path / "s")
        path.write_bytes(data)
    assert len(open_store(tmp_path / "s")) == 50


def test_a_manifest_of_another_version_or_of_objects_is_refused(tmp_path):
    build(tmp_path / "s", some())
    path = tmp_path / "s" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(DataError, match="another version"):
        open_store(tmp_path / "s")
    manifest["columns"][0]["dtype"] = "|O"
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="damaged"):
        open_store(tmp_path / "s")


def build_in_process(folder):
    build(folder, some())


def test_builders_at_the_same_time_do_no_harm(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=build_in_process, args=(tmp_path / "s",)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert len(open_store(tmp_path / "s")) == 50


def test_what_a_killed_builder_left_is_swept_and_a_living_one_spared(tmp_path):
    code = (
        "import sys, os, signal, numpy as np\nfrom pathlib import Path\nfrom mapsto.data.store import build\n"
        "def rows():\n    yield {'a': np.zeros(3)}\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "build(Path(sys.argv[1], 's'), rows())"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    left = [p.name for p in tmp_path.iterdir()]
    assert len(left) == 1
    assert left[0].startswith(".")
    machine = left[0].split(".")[1]
    living = tmp_path / f".{machine}.{os.getpid()}.00000000"
    living.mkdir()
    sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [living.name]


def test_the_cache_is_found_by_content_and_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder("abc", {"b": 1, "a": [2]})
    assert folder == cache_folder("abc", {"a": [2], "b": 1})
    assert folder.parent == tmp_path / "mapsto" / "store"
    assert len({folder, cache_folder("abd", {"b": 1, "a": [2]}), cache_folder("abc", {"b": 2, "a": [2]})}) == 3
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder("abc", {}).is_relative_to(tmp_path / "home" / ".cache" / "mapsto" / "store")


def test_a_cached_store_is_built_once(tmp_path):
    calls = []

    def rows():
        calls.append(1)
        return some()

    for _ in range(3):
        assert len(cached(tmp_path / "s", rows)) == 50
    assert len(calls) == 1
