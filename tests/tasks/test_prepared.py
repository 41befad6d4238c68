import json
from dataclasses import asdict

import numpy as np
import pytest

from mapsto.errors import DataError
from mapsto.tasks import dataset
from mapsto.tasks.config import Config, override
from mapsto.tasks.dataset import prepare


def source(path, rows=80, last="good film"):
    lines = [f"{'good' if i % 2 else 'bad'} film {i},{'pos' if i % 2 else 'neg'},a{i % 7}" for i in range(rows - 1)]
    path.write_text("text,label,author\n" + "\n".join([*lines, f"{last},pos,a0"]) + "\n")
    return path


def config(path, **more):
    one = override(Config(), [f"{k}={json.dumps(v)}" for k, v in more.items()])
    one.data.source, one.data.inputs, one.data.targets = str(path), ["text:sequence"], ["label"]
    return one


def read_only_once(monkeypatch):
    """Counts how often rows are surveyed."""
    calls = []
    inner = dataset.survey
    monkeypatch.setattr(dataset, "survey", lambda *a: (calls.append(1), inner(*a))[1])
    return calls


def same(one, other):
    assert one.schema == other.schema
    assert dataset.fingerprint(one.measured) == dataset.fingerprint(other.measured)
    np.testing.assert_array_equal(one.split.sides, other.split.sides)
    assert one.split.duplicates == other.split.duplicates
    assert one.places == other.places
    assert {n: asdict(s) for n, s in one.summaries.items()} == {n: asdict(s) for n, s in other.summaries.items()}
    assert one.facts() == other.facts()
    assert (one.errors.rows, one.errors.count, one.errors.found) == (
        other.errors.rows,
        other.errors.count,
        other.errors.found,
    )
    if one.groups is not None:
        np.testing.assert_array_equal(one.groups, other.groups)


@pytest.mark.parametrize(
    "more", [{}, {"data.group": "author"}, {"input.vocabulary": "subwords", "input.vocabulary_size": 40}]
)
def test_what_was_read_once_is_the_same_without_reading(tmp_path, monkeypatch, more):
    calls = read_only_once(monkeypatch)
    path = source(tmp_path / "a.csv")
    one = prepare(config(path, **more))
    assert len(calls) == 1
    other = prepare(config(path, **more))
    assert len(calls) == 1
    same(one, other)


def test_other_content_settings_or_seed_are_read_anew(tmp_path, monkeypatch):
    calls = read_only_once(monkeypatch)
    path = source(tmp_path / "a.csv", rows=70)
    prepare(config(path))
    prepare(config(source(path, rows=70, last="another film")))
    prepare(config(path, **{"input.limit": 3}))
    prepare(config(path, seed=1))
    assert len(calls) == 4


def test_a_damaged_memory_is_read_anew(tmp_path, monkeypatch):
    calls = read_only_once(monkeypatch)
    path = source(tmp_path / "a.csv", rows=90)
    places = []
    inner = dataset.prepared.remember
    monkeypatch.setattr(dataset.prepared, "remember", lambda folder, *a: (places.append(folder), inner(folder, *a)))
    one = prepare(config(path))
    facts = places[0] / "facts.json"
    facts.write_bytes(facts.read_bytes().replace(b"pos", b"neg"))
    same(one, prepare(config(path)))
    assert len(calls) == 2


def test_pictures_named_by_path_are_looked_at_again(tmp_path):
    from PIL import Image

    for i in range(40):
        Image.new("L", (4, 4), i * 5).save(tmp_path / f"{i}.png")
    path = tmp_path / "p.csv"
    path.write_text("photo,label\n" + "\n".join(f"{i}.png,{'ab'[i % 2]}" for i in range(40)) + "\n")
    one = config(path)
    one.data.inputs = ["photo"]
    first = prepare(one)
    Image.new("L", (4, 4), 255).save(tmp_path / "7.png")
    assert prepare(one).facts()["fingerprint"] != first.facts()["fingerprint"]
    (tmp_path / "8.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="row 9"):
        prepare(one)
