import errno
import os
import resource
import signal

import pytest
import torch

from mapsto import disk
from mapsto.errors import ModelFileError, ResourceError
from mapsto.training.checkpoint import FILES, Checkpoints
from mapsto.training.journal import Journal

WEIGHTS = {"weights.w": torch.arange(6.0).view(2, 3)}
OPTIM = {"exp_avg.w": torch.zeros(2, 3), "step": torch.ones(1)}


def state(step):
    return {"progress": {"step": step}, "files": {"log.txt": step}}


def saved(folder, steps=(2, 4, 6), run="a"):
    one = Checkpoints(folder / "checkpoints", {"run": run})
    for step in steps:
        one.save(step, {"weights.w": WEIGHTS["weights.w"] * step}, OPTIM, state(step))
    return one


def test_the_newest_and_the_one_before_are_kept_and_come_back_as_they_were(tmp_path):
    one = saved(tmp_path)
    assert one.steps() == [4, 6]
    found = Checkpoints(one.folder, {"run": "a"}).newest()
    assert found.step == 6
    assert torch.equal(found.weights["weights.w"], 6 * WEIGHTS["weights.w"])
    assert found.state == state(6)
    assert {n: t.tolist() for n, t in found.optim.items()} == {n: t.tolist() for n, t in OPTIM.items()}


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "gone", "longer"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(tmp_path, name, harm):
    one = saved(tmp_path)
    path = one.path(6) / name
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    path.write_bytes({"cut": data[:-1], "longer": data + b"\0"}.get(harm, data))
    if harm == "gone":
        path.unlink()
    assert one.newest().step == 4
    assert name in one.bad[6]


def test_checkpoints_of_which_none_is_good_are_an_error_and_none_are_not(tmp_path):
    assert Checkpoints(tmp_path / "none").newest() is None
    one = saved(tmp_path)
    for step in one.steps():
        (one.path(step) / "state.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"no checkpoint in .* can be used: .*step-000006.state\.json"):
        one.newest()


def test_a_checkpoint_of_another_run_is_neither_used_nor_removed(tmp_path):
    saved(tmp_path, steps=(8,), run="other")
    one = saved(tmp_path, steps=(2,))
    assert one.newest().step == 2
    assert "another run" in one.bad[8]
    for step in (4, 6):
        one.save(step, WEIGHTS, OPTIM, state(step))
    assert one.steps() == [4, 6, 8]


def test_a_bad_checkpoint_does_not_count_as_the_one_before(tmp_path):
    one = saved(tmp_path)
    (one.path(6) / "manifest.json").unlink()
    again = Checkpoints(one.folder, {"run": "a"})
    assert again.newest().step == 4
    again.save(8, WEIGHTS, OPTIM, state(8))
    assert again.steps() == [4, 8]


def test_a_step_that_did_not_verify_is_saved_again(tmp_path):
    one = saved(tmp_path)
    (one.path(6) / "state.json").write_text("{}")
    assert one.newest().step == 4
    one.save(6, WEIGHTS, OPTIM, state(6))
    assert one.newest().step == 6


def test_what_a_killed_save_left_is_swept(tmp_path):
    one = saved(tmp_path)
    (one.folder / ".step-000008.123").mkdir()
    (one.folder / ".step-000008.123" / "weights.safetensors").write_bytes(b"half")
    assert one.newest().step == 6
    one.sweep()
    assert sorted(p.name for p in one.folder.iterdir()) == ["step-000004", "step-000006"]


def test_a_full_disk_keeps_the_old_checkpoint_and_says_path_needed_and_free(tmp_path, monkeypatch):
    one = saved(tmp_path)
    monkeypatch.setattr(
        disk, "sync", lambda path: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device"))
    )
    with pytest.raises(ResourceError, match=r"step-000008 cannot be written \(No space left.*MB needed.*MB free"):
        one.save(8, WEIGHTS, OPTIM, state(8))
    monkeypatch.undo()
    assert one.newest().step == 6
    assert not list(one.folder.glob(".*"))


def test_a_limit_of_the_system_on_file_sizes_is_told_as_such(tmp_path):
    """A real refusal of a write inside of safetensors, not a simulated one."""
    child = os.fork()
    if not child:
        code = 1
        try:
            one = saved(tmp_path, steps=(2,))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
            try:
                one.save(4, {"weights.w": torch.zeros(100_000)}, OPTIM, state(4))
            except ResourceError as error:
                code = 0 if "File too large" in str(error) and one.newest().step == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_journal_keeps_what_cannot_be_written_and_writes_it_later(tmp_path, monkeypatch):
    one = Journal(tmp_path / "log.txt")
    one.add("first")
    append = disk.append
    monkeypatch.setattr(disk, "append", lambda path, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    one.add("second")
    with pytest.raises(ResourceError, match=r"log\.txt cannot be written"):
        one.settle()
    assert one.path.read_text() == "first\n"
    monkeypatch.setattr(disk, "append", append)
    one.add("third")
    assert one.settle() == len("first\nsecond\nthird\n")
    assert one.path.read_text() == "first\nsecond\nthird\n"


def test_a_journal_is_cut_to_what_a_checkpoint_knew_and_tells_what_is_lacking(tmp_path):
    one = Journal(tmp_path / "log.txt")
    for line in ("a", "b", "c"):
        one.add(line)
    assert one.cut(4) == 0
    assert one.path.read_text() == "a\nb\n"
    assert one.cut(9) == 5


def test_half_an_append_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "log.txt"
    disk.append(path, b"whole\n")
    write = os.write

    def half(handle, data):
        if len(data) > 3:
            return write(handle, data[:3])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="full"):
        disk.append(path, b"second")
    monkeypatch.undo()
    assert path.read_text() == "whole\n"
