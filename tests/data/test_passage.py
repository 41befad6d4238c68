"""A text file as one text."""

import gzip

import pytest

from mapsto.data.passage import Passages
from mapsto.errors import DataError

SHARES = (0.8, 0.1, 0.1)
TEXT = "".join(f"line {i} of a play,\twith é and 你好\n" for i in range(100))


def parts(text, shares=SHARES):
    return Passages("play.txt", lambda: text, shares).passages


def test_the_passages_are_the_text_and_end_where_lines_end():
    found = parts(TEXT)
    assert [part for part, _ in found] == ["train", "val", "test"]
    assert "".join(text for _, text in found) == TEXT
    assert all(text.endswith("\n") for _, text in found)
    for (_, text), share in zip(found, SHARES, strict=True):
        assert abs(len(text) - share * len(TEXT)) <= 2 * len(TEXT) / 100


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_every_line_end_is_one(end):
    assert parts(TEXT.replace("\n", end)) == parts(TEXT)


def test_a_text_of_one_line_is_cut_between_words():
    text = " ".join(["word"] * 200)
    found = parts(text)
    assert "".join(part for _, part in found) == text
    assert all(part.endswith(" ") for _, part in found[:-1])


def test_a_last_line_without_an_end_is_kept():
    assert parts(TEXT + "the end")[-1][1].endswith("\nthe end")


@pytest.mark.parametrize("text", ["", "abc", "a\nb"])
def test_too_little_text_is_refused_with_a_cure(text):
    with pytest.raises(DataError, match=rf"play.txt: {len(text)} characters are too few .*--to text"):
        parts(text)


def test_a_part_without_a_share_has_no_passage():
    found = parts(TEXT, (0.9, 0.1, 0.0))
    assert [part for part, _ in found] == ["train", "val"]
    assert "".join(text for _, text in found) == TEXT
    assert parts(TEXT, (0.0, 0.0, 1.0)) == [("test", TEXT)]


def test_a_file_and_its_gzip_are_one_text(tmp_path):
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_bytes(TEXT.encode())
    packed.write_bytes(gzip.compress(TEXT.encode()))
    one, other = (Passages.of(path, SHARES) for path in (plain, packed))
    assert one.passages == other.passages
    assert one.fingerprint() == other.fingerprint()
    rows = [row for chunk in one.chunks(["text", "split"]) for row in zip(*chunk.columns.values(), strict=True)]
    assert [split for _, split in rows] == ["train", "val", "test"]


def test_bytes_that_are_no_text_are_refused_with_their_place(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT.encode() + b"\xff\xfe bad\n")
    with pytest.raises(DataError, match=r"a\.txt"):
        _ = Passages.of(path, SHARES).passages
