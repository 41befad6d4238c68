"""Recipes that read a file beside the repository."""

import gzip
import json

import pytest

import recipe


def test_chorales_are_four_symbols_a_step(tmp_path, monkeypatch):
    (tmp_path / "jsb").mkdir()
    parts = {"train": [[[74, 70, 65, 58], [74, 70, 65, -1]]], "valid": [[[1, 2, 3, 4]]], "test": []}
    (tmp_path / "jsb" / "Jsb16thSeparated.json.gz").write_bytes(gzip.compress(json.dumps(parts).encode()))
    monkeypatch.setenv("MAPSTO_SHARED_DATA", str(tmp_path))
    assert recipe.chorales() == [
        {"symbols": ["74", "70", "65", "58", "74", "70", "65", "rest"], "split": "train"},
        {"symbols": ["1", "2", "3", "4"], "split": "val"},
    ]


def test_chorales_that_are_not_there_are_unavailable(tmp_path, monkeypatch):
    monkeypatch.setenv("MAPSTO_SHARED_DATA", str(tmp_path))
    with pytest.raises(recipe.Unavailable, match="MAPSTO_SHARED_DATA=FOLDER"):
        recipe.chorales()


def test_the_published_chorales_are_split_as_published(monkeypatch):
    monkeypatch.delenv("MAPSTO_SHARED_DATA", raising=False)
    try:
        rows = recipe.chorales()
    except recipe.Unavailable as error:
        pytest.skip(str(error))
    assert [sum(r["split"] == s for r in rows) for s in ("train", "val", "test")] == [229, 76, 77]
    assert sum(len(r["symbols"]) for r in rows) == 4 * (55_228 + 18_408 + 18_900)
    assert len({s for r in rows for s in r["symbols"]}) == 47
