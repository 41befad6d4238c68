"""Every example is a valid config that says only what it must, and runs."""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import pytest

from mapsto.cli import main
from mapsto.tasks.config import Config, read_config

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml"))
QUICK = ["train.steps=4", "model.dim=16", "model.depth=1", "model.heads=2", "threads=1", "device=cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """What ``python examples/generate.py FOLDER`` writes."""
    folder = tmp_path_factory.mktemp("data")
    runpy.run_path(str(EXAMPLES / "generate.py"))["write"](folder)
    return folder


def test_there_is_an_example_for_each_kind_of_map():
    known = {"reviews", "films", "tags", "peptides", "houses", "pictures", "vowels", "visits"}
    assert known | {"phrases", "tales", "tunes", "sales", "tracks", "faces"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_as_it_stands(name, data, monkeypatch):
    monkeypatch.chdir(data)
    monkeypatch.setattr(
        sys, "argv", ["mapsto", "train", str(EXAMPLES / f"{name}.yaml"), "--json", "--run", name, *QUICK]
    )
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        raise AssertionError(err.getvalue()) from ended
    result = json.loads(out.getvalue())
    assert result["metrics"]
    assert result["baselines"]
    assert (Path(result["run"]) / "model" / "model.safetensors").is_file()
    kept = read_config(Path(result["run"]) / "config.yaml").model_dump()
    asked = read_config(EXAMPLES / f"{name}.yaml").model_dump()
    if not asked["data"]["split"]:  # some sources bring a split of their own, which is then named
        kept["data"]["split"] = ""
    for section in ("data", "input", "output"):
        assert kept[section] == asked[section]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_why_for_what_it_sets(name):
    text = (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert len(text.splitlines()) < 40
    set_here, default = read_config(EXAMPLES / f"{name}.yaml").model_dump(), Config().model_dump()
    assert set_here != default
    assert set_here["data"]["source"] in {
        "reviews.csv",
        "films.csv",
        "tags.jsonl",
        "peptides.csv",
        "houses.csv",
        "photos",
        "faces",
        "vowels.jsonl",
        "visits.jsonl",
        "phrases.tsv",
        "tales.txt",
        "tunes",
        "sales.csv",
        "tracks.jsonl",
    }


def test_the_data_are_the_same_bytes_every_time(data, tmp_path):
    runpy.run_path(str(EXAMPLES / "generate.py"))["write"](tmp_path)
    files = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file())
    assert len(files) > 100
    assert all((tmp_path / f).read_bytes() == (data / f).read_bytes() for f in files)


def test_the_retrieval_example_shows_what_a_store_of_fixed_size_can_hold():
    example = runpy.run_path(str(EXAMPLES / "retrieval.py"))
    found = example["found"]
    assert float(found("softmax", 64).min()) == 1
    assert float(found("memory", 4).mean()) == 1
    assert float(found("memory", 64).mean()) < 0.5
    assert float(found("favor:2048", 64).mean()) > float(found("favor:64", 64).mean())
    fading = found("memory:0.9", 64)
    assert float(fading[-3:].mean()) > 0.8
    assert float(fading[:32].mean()) < 0.2
