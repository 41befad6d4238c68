"""Folders of MIDI files and columns of their paths, as tables."""

import pytest

from mapsto.data.kind import describe, infer
from mapsto.data.table import open_table
from mapsto.errors import DataError
from mapsto.midi import midi_file, read_midi
from mapsto.music import Music
from mapsto.note import Note
from mapsto.tasks.demo import pieces
from mapsto.tasks.schema import Errors, Field, Schema
from mapsto.tasks.section import DataConfig

NOTES = [Note(0, 10, 60)]


def laid(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(midi_file(NOTES))
    return folder


def cells(table):
    return {name: table.column(name) for name in table.columns}


def test_a_folder_of_music_gives_music_label_and_split(tmp_path):
    laid(tmp_path, "train/bach/b.mid", "train/jazz/a.MIDI", "valid/bach/c.mid", "test/jazz/d.midi", "train/.x.mid")
    (tmp_path / "train" / "notes.txt").write_text("not music")
    (tmp_path / "train" / "cover.png").touch()
    table = open_table(tmp_path)
    assert cells(table) == {
        "music": ["test/jazz/d.midi", "train/bach/b.mid", "train/jazz/a.MIDI", "valid/bach/c.mid"],
        "label": ["jazz", "bach", "jazz", "bach"],
        "split": ["test", "train", "train", "val"],
    }
    assert [read_midi(table.file(cell)) for cell in table.column("music")] == [NOTES] * 4
    assert cells(open_table(tmp_path / "valid")) == {"music": ["bach/c.mid"], "label": ["bach"]}
    assert cells(open_table(tmp_path / "train" / "bach")) == {"music": ["b.mid"]}


def test_a_folder_with_parts_and_no_labels_has_a_split(tmp_path):
    laid(tmp_path, "train/a.mid", "train/b.mid", "val/c.mid", "test/d.mid")
    assert cells(open_table(tmp_path)) == {
        "music": ["test/d.mid", "train/a.mid", "train/b.mid", "val/c.mid"],
        "split": ["test", "train", "train", "val"],
    }


def test_of_pictures_and_music_a_folder_is_what_there_is_more_of(tmp_path):
    laid(tmp_path, "a.mid", "a.png", "b.png")
    assert open_table(tmp_path).columns == ["path"]
    laid(tmp_path, "b.mid")
    assert open_table(tmp_path).columns == ["path"]  # as many: pictures
    laid(tmp_path, "c.mid")
    assert open_table(tmp_path).columns == ["music"]


def test_an_empty_folder_is_told_what_is_read(tmp_path):
    with pytest.raises(DataError, match=r"no pictures and no music.*\.png.*\.midi"):
        open_table(tmp_path)
    laid(tmp_path, "a.mid")
    with pytest.raises(DataError, match="Give the folder that it lies in"):
        open_table(tmp_path / "a.mid")


def test_the_fingerprint_of_a_folder_is_that_of_its_music(tmp_path):
    before = open_table(laid(tmp_path, "a.mid", "b.mid")).fingerprint()
    (tmp_path / "b.mid").write_bytes(midi_file([Note(0, 11, 60)]))
    assert open_table(tmp_path).fingerprint() != before


@pytest.mark.parametrize("column", [["a.mid", "x/b.MIDI", None], pieces()["music"][:3]])
def test_paths_and_bytes_of_music_are_of_kind_music(column):
    summary = describe(open_table({"x": column}))["x"]
    assert (summary.form, infer(summary).kind, infer(summary, "target").kind) == ("music", "music", "music")
    assert not summary.warnings


def schema():
    return Schema([Field("song", "music", [("song", "music")])], Field("y", "vector", [("y", "label")]), "", ())


def test_cells_are_read_beside_the_data_and_nowhere_else(tmp_path):
    laid(tmp_path, "out.mid", "in/a.mid")
    rows = "song,y\na.mid,x\n../out.mid,x\nb.mid,x\n,x\n"
    (tmp_path / "in" / "songs.csv").write_text(rows)
    table = open_table(tmp_path / "in" / "songs.csv")
    errors = Errors(skip=1.0)
    (row,) = schema().rows(table, errors)
    assert Music().decode(Music().encode(row.inputs[0])) == NOTES
    assert row.raw == (midi_file(NOTES),)  # copies are found by what the files hold
    assert [number for _, number, _ in errors.found] == [2, 3, 4]
    assert [
        part in message for part, (_, _, message) in zip(("outside", "no such", "empty"), errors.found, strict=True)
    ]
    around = open_table(tmp_path / "in" / "songs.csv", root=tmp_path)
    assert around.file("out.mid").is_file()
    assert DataConfig().root == ""
