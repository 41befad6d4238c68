import json
import os
import subprocess
import sys
import time

import pytest

from mapsto import disk
from mapsto.errors import ConfigError, ModelFileError, ResourceError
from mapsto.tasks.config import Config, override
from mapsto.tasks.runfolder import RunFolder, default_name
from mapsto.training.journal import Journal

FACTS = {"threads": 2, "versions": {"torch": "2.13.0"}, "device": "cpu", "data": {"rows": {"train": 8}}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "reviews"


def made(path, **more):
    one = RunFolder.new(path, override(Config(), ["train.steps=5"]), FACTS | more)
    one.close()
    return one.path


def test_a_run_folder_comes_with_its_settings_and_a_second_one_is_another(path):
    one = RunFolder.new(path, Config(), FACTS)
    two = RunFolder.new(path, Config(), FACTS)
    assert [one.path.name, two.path.name] == ["reviews", "reviews-2"]
    assert {p.name for p in one.path.iterdir()} == {".lock", "config.yaml", "environment.json"}
    assert one.environment["run"] != two.environment["run"]
    assert sorted(p.name for p in path.parent.iterdir()) == ["reviews", "reviews-2"]


def test_many_processes_that_want_the_same_name_get_one_each(path):
    children = []
    for _ in range(8):
        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if RunFolder.new(path, Config(), FACTS).path.is_dir() else 2
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children] == [0] * 8
    assert len(list(path.parent.iterdir())) == 8


def test_a_folder_in_use_is_refused_with_who_uses_it_and_free_again_when_that_process_is_killed(path):
    made(path)
    code = (
        "import sys, time; from pathlib import Path; from mapsto.tasks.runfolder import RunFolder;"
        "one = RunFolder.open(Path(sys.argv[1])); print('open', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(ConfigError, match=rf"in use by process {other.pid} of .* since \d{{4}}-"):
            RunFolder.open(path)
    finally:
        other.kill()
        other.communicate()
    RunFolder.open(path).close()


def test_changed_settings_are_refused_with_what_changed(path):
    made(path)
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("  steps: 5", "  steps: 7").replace("seed: 0", "seed: 1"))
    with pytest.raises(ConfigError, match=r"changed since the run began: train\.steps: 5 -> 7; seed: 0 -> 1"):
        RunFolder.open(path)


def test_changed_data_are_refused_with_what_changed(path):
    one = RunFolder.open(made(path))
    one.check_data(FACTS["data"])
    with pytest.raises(ConfigError, match=r"data have changed .*: rows\.train: 8 -> 9; fingerprint: null -> \"x\""):
        one.check_data({"rows": {"train": 9}, "fingerprint": "x"})


def test_what_changes_bits_is_told(path):
    one = RunFolder.open(made(path))
    assert one.inexact(FACTS) == []
    now = FACTS | {"threads": 4, "versions": {"torch": "2.14.0"}}
    assert one.inexact(now) == ["torch 2.13.0, here 2.14.0", "threads 2, here 4"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": 3}', '{"run": "a", "run": "b"}'])
def test_a_damaged_environment_is_a_model_file_error(path, content):
    (made(path) / "environment.json").write_text(content)
    with pytest.raises(ModelFileError, match=r"environment\.json"):
        RunFolder.open(path)


def test_what_killed_writes_left_is_swept(path):
    made(path)
    (path / ".result.json.99").write_text("{")
    old = path.parent / ".reviews.99.0123abcd"
    old.mkdir()
    os.utime(old, (time.time() - 600, time.time() - 600))
    new = path.parent / ".reviews.98.0123abcd"
    new.mkdir()
    RunFolder.open(path).close()
    made(path)
    assert not (path / ".result.json.99").exists()
    assert not old.exists()
    assert new.exists()


def test_a_folder_that_cannot_be_written_is_a_resource_error(path, monkeypatch):
    def refuse(folder):
        raise OSError(30, "Read-only file system", str(folder))

    monkeypatch.setattr(disk, "make", refuse)
    with pytest.raises(ResourceError, match=r"reviews cannot be written \(Read-only file system\)"):
        RunFolder.new(path, Config(), FACTS)


def test_the_usual_name_is_that_of_the_data():
    names = {"data/reviews.csv.gz": "reviews", "demo:peptides": "peptides", "a b/": "a-b", "": "run", "../../x": "x"}
    assert {source: default_name(source) for source in names} == names
    assert json.dumps(names)


def test_what_a_user_keeps_in_a_run_folder_stays_and_a_refusal_lets_go_of_the_lock(path):
    made(path)
    (path / ".git").mkdir()
    (path / ".notes.md").write_text("mine")
    text = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(text.replace("  steps: 5", "  steps: 7"))
    with pytest.raises(ConfigError, match="changed since the run began"):
        RunFolder.open(path)
    (path / "config.yaml").write_text(text)
    RunFolder.open(path).close()
    assert (path / ".git").is_dir()
    assert (path / ".notes.md").read_text() == "mine"


def test_a_journal_that_is_a_link_is_not_cut(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("years of work")
    (tmp_path / "metrics.jsonl").symlink_to(precious)
    with pytest.raises(ModelFileError, match=r"metrics\.jsonl is a link"):
        Journal(tmp_path / "metrics.jsonl").cut(0)
    with pytest.raises(OSError, match="symbolic links"):
        disk.truncate(tmp_path / "metrics.jsonl", 0)
    assert precious.read_text() == "years of work"
