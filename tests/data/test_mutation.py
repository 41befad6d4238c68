"""Law V, by a sample of ``benchmarks/mutations.py``, and readers that it must catch."""

import csv
import dataclasses
import io
import json
import random

import numpy as np
import pytest
from PIL import Image, ImageFile

import mutant_binary
import mutant_picture
import mutant_text
import mutations
from mapsto import picture
from mapsto.data.memory import Memory
from mapsto.data.table import open_table
from mutant import Mutant, Want, judge, read_table

COUNTS = {
    "csv": 120,
    "tsv": 40,
    "jsonl": 120,
    "txt": 60,
    "npz": 80,
    "parquet": 60,
    "memory": 80,
    "folder": 80,
    "cells": 80,
}


def verdicts(reader, seeds, folder):
    return {f"{reader}:{seed}": mutations.try_one(reader, seed, folder) for seed in seeds}


@pytest.mark.parametrize("reader", [*COUNTS, "map"])
def test_mutants_give_right_values_or_one_line_that_names_file_and_row(reader, tmp_path):
    found = verdicts(reader, range(COUNTS.get(reader, 60)), tmp_path)
    assert {name: v for name, (_, v) in found.items() if v.kind not in ("right", "refused")} == {}
    assert {v.kind for _, v in found.values()} == {"right", "refused"}


def test_the_same_seed_draws_the_same_mutant():
    for draw in mutations.READERS.values():
        one, two = draw(random.Random(5)), draw(random.Random(5))
        assert (one.mutation, one.files) == (two.mutation, two.files)


def caught(draw, opener, tmp_path, seeds=400):
    """The verdicts on a broken reader, by kind."""
    kinds = set()
    for seed in range(seeds):
        folder = tmp_path / f"{draw.__name__}{seed}"
        folder.mkdir()
        mutant = draw(random.Random(seed))
        read = lambda m, p: read_table(m, p, opener)  # noqa: E731
        kinds.add(judge(dataclasses.replace(mutant, read=read), folder).kind)
    return kinds


def changed(change):
    def open_changed(source):
        table = open_table(source)
        cells = {name: [change(cell) for cell in table.column(name)] for name in table.columns}
        return Memory(cells, table.root, table.name)

    return open_changed


def test_a_reader_that_guesses_numbers_is_caught(tmp_path):
    guess = changed(lambda cell: int(cell) if isinstance(cell, str) and cell.isdecimal() and cell.isascii() else cell)
    assert "different" in caught(mutant_text.draw_csv, guess, tmp_path, 60)


def test_a_reader_that_guesses_missing_values_is_caught(tmp_path):
    guess = changed(lambda cell: None if cell in ("NA", "nan", "null") else cell)
    assert "different" in caught(mutant_text.draw_csv, guess, tmp_path, 60)
    assert "different" in caught(mutant_text.draw_jsonl, guess, tmp_path, 100)


def python_rows(path, errors="strict"):
    text = path.read_bytes().decode("utf-8-sig", errors)
    return [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]


def lenient(rows_of):
    def open_lenient(path):
        if path.suffix != ".csv":
            return open_table(path)
        try:
            header, *rows = rows_of(path)
            names = [name.strip() for name in header]
            if not rows or len(set(names)) < len(names):
                return open_table(path)
            cells = {n: [row[i] or None for row in rows] for i, n in enumerate(names)}
        except (csv.Error, UnicodeDecodeError, ValueError, IndexError):
            return open_table(path)
        return Memory(cells, path.parent, path.name)

    return open_lenient


def test_a_reader_that_skips_bad_rows_is_caught(tmp_path):
    def skipping(path):
        rows = python_rows(path)
        return [row for row in rows if len(row) == len(rows[0])]

    assert "different" in caught(mutant_text.draw_csv, lenient(skipping), tmp_path, 60)


def test_a_reader_that_pads_ragged_rows_is_caught(tmp_path):
    def padding(path):
        rows = python_rows(path)
        return [[*row, *[""] * len(rows[0])][: len(rows[0])] for row in rows]

    assert "different" in caught(mutant_text.draw_csv, lenient(padding), tmp_path, 60)


def test_a_reader_that_replaces_what_it_cannot_decode_is_caught(tmp_path):
    def replacing(path):
        data = path.read_bytes()
        if path.suffix == ".csv":
            path.write_bytes(data.decode(errors="replace").encode())
        return open_table(path)

    assert "different" in caught(mutant_text.draw_csv, replacing, tmp_path, 120)


def test_a_json_reader_whose_last_key_wins_is_caught(tmp_path):
    def last(path):
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
            names = list(dict.fromkeys(key for row in rows for key in row))
            return Memory({n: [row.get(n) for row in rows] for n in names}, path.parent, path.name)
        except (ValueError, AttributeError, RecursionError):
            return open_table(path)

    assert "different" in caught(mutant_text.draw_jsonl, last, tmp_path, 150)


def test_a_picture_reader_that_accepts_what_is_cut_off_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    seeds = [s for s in range(80) if "cut off" in mutant_picture.draw_folder(random.Random(s)).mutation]
    assert "different" in {v.kind for _, v in verdicts("folder", seeds, tmp_path).values()}


def test_a_picture_reader_that_passes_over_checksums_is_caught(tmp_path, monkeypatch):
    deep = np.array([[4660]], np.uint16)
    data = mutant_picture.encode(Image.fromarray(deep), "PNG")
    want = Want({"pixels": [mutant_picture.wide(deep)]}, optional=True)

    def verdict(bit):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        rows = [{"path": bytes(changed), "label": "a"}]
        return judge(Mutant("a flipped bit", {}, rows, want, "data", mutant_picture.read_pictures), tmp_path).kind

    assert {verdict(bit) for bit in range(8 * len(data))} == {"refused"}
    monkeypatch.setattr(picture, "checked", lambda data: True)
    assert "different" in {verdict(bit) for bit in range(8 * len(data))}


def test_a_picture_reader_that_trusts_the_end_mark_of_a_jpeg_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(picture, "unfinished", lambda image, data: False)
    found = verdicts("cells", range(150), tmp_path)
    assert "different" in {v.kind for how, v in found.values() if "without its middle" in how}


def eight(rows, data=bytes(range(64))):
    header = {"descr": "<i8", "fortran_order": False, "shape": (rows,)}
    return mutant_binary.member(header, data)


def judged(data, folder):
    return judge(Mutant("by hand", {"t.npz": data}, "t.npz", Want(None), "t.npz"), folder).kind


def test_an_array_reader_that_believes_headers_is_caught(tmp_path, monkeypatch):
    short = mutant_binary.archive(("x.npy", eight(7)))
    assert judged(short, tmp_path) == "refused"
    monkeypatch.setattr("mapsto.data.memory.check_header", lambda archive, member: None)
    assert judged(short, tmp_path) == "different"


def test_an_array_reader_that_takes_the_last_of_two_is_caught(tmp_path, monkeypatch):
    double = mutant_binary.archive(("x.npy", eight(8)), ("x.npy", eight(8, bytes(64))))
    assert judged(double, tmp_path) == "refused"
    monkeypatch.setattr("mapsto.data.memory.Counter", lambda names: dict.fromkeys(names, 1))
    assert judged(double, tmp_path) == "different"


def test_a_traceback_and_a_message_without_its_row_are_caught(tmp_path):
    def fail(mutant, folder):
        raise KeyError("label")

    mutant = Mutant("none", {"t.csv": b"a\n1,2\n"}, "t.csv", Want(None, frozenset(["row 9"])), "t.csv")
    assert judge(mutant, tmp_path).kind == "unnamed"
    assert judge(dataclasses.replace(mutant, name="u.csv"), tmp_path).kind == "unnamed"
    assert judge(dataclasses.replace(mutant, want=Want({"a": ["1"]})), tmp_path).kind == "overstrict"
    assert judge(dataclasses.replace(mutant, read=fail), tmp_path).kind == "traceback"


def test_the_models_of_text_agree_with_the_csv_module_on_sound_files():
    for seed in range(200):
        draw = random.Random(seed)
        rows = [[draw.choice(mutant_text.CELLS) for _ in range(3)] for _ in range(4)]
        buffer = io.StringIO(newline="")
        csv.writer(buffer, quoting=csv.QUOTE_ALL).writerows([["a", "b", "c"], *rows])
        found = mutant_text.model_cells(buffer.getvalue().encode(), b",")
        assert [list(row) for row in zip(*found.values(), strict=True)] == rows


def test_a_report_holds_only_if_nothing_is_broken(tmp_path):
    report = mutations.Report()
    report.add(0, "x", mutations.Verdict("right"), 0.1, 1.0)
    report.add(1, "x", mutations.Verdict("refused"), 0.2, 2.0)
    assert report.holds
    assert report.slowest == (0.2, 1)
    report.add(2, "x", mutations.Verdict("unnamed"), 0.1, 1.0)
    assert not report.holds
    assert report.named == 0.5
    for kind in ("different", "traceback", "overstrict"):
        one = mutations.Report()
        one.add(3, "x", mutations.Verdict(kind), 0.1, 1.0)
        assert not one.holds
