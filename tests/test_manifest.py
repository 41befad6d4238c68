"""Law Q: every byte of a checkpoint is checked, by a sample of ``benchmarks/flips.py``, and twins that it must catch."""

import hashlib
import json
import os
import random
import shutil

import pytest

import flips
from mapsto import disk, document, manifest
from mapsto.errors import ModelFileError


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    for name in ("a.bin", "b.json"):
        (made / name).write_bytes(name.encode() * 3)
    manifest.seal(made, {"run": "abc"}, ["a.bin", "b.json"])
    return made


def test_what_was_sealed_verifies_and_says_whose_it_is(folder):
    found = manifest.verify(folder)
    assert found["run"] == "abc"
    assert found["files"].keys() == {"a.bin", "b.json"}


def test_a_flipped_bit_of_any_byte_is_found_and_its_file_named(folder):
    for name in ("a.bin", "b.json", "manifest.json"):
        path = folder / name
        data = path.read_bytes()
        for at in range(len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
            with pytest.raises(ModelFileError) as caught:
                manifest.verify(folder)
            assert str(path) in str(caught.value)
        path.write_bytes(data)
    manifest.verify(folder)


def test_every_truncation_is_found_and_its_file_named(folder):
    for name in ("a.bin", "b.json", "manifest.json"):
        path = folder / name
        data = path.read_bytes()
        for size in range(len(data)):
            path.write_bytes(data[:size])
            with pytest.raises(ModelFileError) as caught:
                manifest.verify(folder)
            assert str(path) in str(caught.value)
        path.unlink()
        with pytest.raises(ModelFileError, match=f"{name} is missing"):
            manifest.verify(folder)
        path.write_bytes(data)


def sealed(folder, content):
    """A manifest that an attacker has computed."""
    content["sha256"] = hashlib.sha256(document.dump(content)).hexdigest()
    (folder / "manifest.json").write_bytes(document.dump(content))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"../made/a.bin": {"bytes": 15, "sha256": ""}}, "'../made/a.bin' is no name of a file of this folder"),
        ({"/etc/passwd": {"bytes": 15, "sha256": ""}}, "'/etc/passwd' is no name"),
        ({"a\0b": {"bytes": 15, "sha256": ""}}, r"'a\\x00b' is no name"),
        ({"\x1b[31m": {"bytes": 15, "sha256": ""}}, r"'\\x1b\[31m' is no name"),
        ({"..": {"bytes": 15, "sha256": ""}}, "'..' is no name"),
        ({"": {"bytes": 15, "sha256": ""}}, "'' is no name"),
        ({"nothing": {"bytes": 15, "sha256": ""}}, "nothing is missing"),
        ({"a.bin": {"bytes": 10**30, "sha256": ""}}, "15 bytes, expected 1,000"),
        ({"a.bin": {"bytes": "x\x1b", "sha256": ""}}, "is damaged"),
        ({"a.bin": {"bytes": [], "sha256": ""}}, "is damaged"),
        ({"a.bin": []}, "is damaged"),
        ([], "is damaged"),
        (None, "is damaged"),
    ],
)
def test_a_manifest_names_plain_files_of_its_folder_only(folder, files, message):
    sealed(folder, {"format": 1, "files": files})
    with pytest.raises(ModelFileError, match=message) as caught:
        manifest.verify(folder)
    assert str(caught.value).isprintable()


def test_another_format_and_another_way_of_writing_are_refused(folder):
    sealed(folder, {"format": "\x1b2", "files": {}})
    with pytest.raises(ModelFileError, match=r"format '\\x1b2', this version reads 1"):
        manifest.verify(folder)
    manifest.seal(folder, {}, ["a.bin"])
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(ModelFileError, match="checksum mismatch"):
        manifest.verify(folder)


def test_links_pipes_and_folders_are_no_files_of_it(folder, tmp_path):
    data = (folder / "a.bin").read_bytes()
    (tmp_path / "same").write_bytes(data)
    for make in (lambda p: p.symlink_to(tmp_path / "same"), os.mkfifo, lambda p: p.mkdir()):
        disk.remove(folder / "a.bin")
        make(folder / "a.bin")
        with pytest.raises(ModelFileError, match=r"a\.bin is a link or no plain file"):
            manifest.verify(folder)
    disk.remove(folder / "a.bin")
    os.link(tmp_path / "same", folder / "a.bin")
    manifest.verify(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ModelFileError, match="link is a link, and is not read"):
        manifest.verify(tmp_path / "link")


# The sample, and its twins


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return flips.make_run(tmp_path_factory.mktemp("flips"))


def test_a_damaged_file_of_a_checkpoint_is_named_and_the_one_before_used(run):
    found = flips.flip_checkpoints(run, 240, random.Random(1))
    assert not found.missed, found.missed
    assert sum(found.tried.values()) == 240


def test_a_damaged_file_of_a_model_is_named(run):
    found = flips.flip_model(run, 240, random.Random(2))
    assert not found.missed, found.missed


def trusting():
    """Its own sum is not checked: what a manifest says beside its files may change."""

    def read(folder):
        return document.parse((folder / "manifest.json").read_bytes().decode())

    return {"read": read}


def sizes_only():
    """Only sizes are compared."""

    def check(folder, content, name):
        if (folder / name).stat().st_size != content["files"][name]["bytes"]:
            raise ModelFileError(f"{folder / name}: another size")

    return {"check": check}


def state_skipped():
    """The small file is not worth it."""
    inner = manifest.check
    return {"check": lambda folder, content, name: None if name == "state.json" else inner(folder, content, name)}


@pytest.mark.parametrize("twin", [trusting, sizes_only, state_skipped])
def test_the_check_of_flips_catches(run, tmp_path, monkeypatch, twin):
    shutil.copytree(run, tmp_path / "run")
    for name, act in twin().items():
        monkeypatch.setattr(manifest, name, act)
    assert flips.flip_checkpoints(tmp_path / "run", 80, random.Random(3)).missed
