import json
import subprocess
import sys

import pytest
import torch

from mapsto import process


@pytest.fixture(autouse=True)
def products_as_they_were():
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


def report(code):
    """What a fresh process prints: the settings are those of a whole process, and must not reach the other tests."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_tuning_says_what_it_set_and_keeps_float32_exact():
    set_ = report(
        "import json, torch\n"
        "from mapsto.process import release_memory, tune_process\n"
        "state = torch.get_rng_state()\n"
        "out = tune_process()\n"
        "a = torch.randn(300, 300, generator=torch.Generator().manual_seed(0))\n"
        "true = a.double() @ a.double()\n"
        "out['error'] = float(((a @ a).double() - true).norm() / true.norm())\n"
        "out['random'] = torch.equal(state, torch.get_rng_state())\n"
        "out['now'] = torch.backends.mkldnn.matmul.fp32_precision\n"
        "out['released'] = release_memory()\n"
        "print(json.dumps(out))"
    )
    assert set_["error"] < 1e-6
    assert set_["random"]
    assert set_["products"] in ("onednn", "default")
    assert (set_["now"] == "bf16") == (set_["products"] == "onednn")
    assert 0 <= set_["memory_kept"] <= process.GIB
    assert isinstance(set_["released"], bool)


def test_importing_sets_nothing():
    assert report(
        "import json, torch\n"
        "before = torch.backends.mkldnn.matmul.fp32_precision\n"
        "import mapsto.process, mapsto.functional.attention\n"
        "print(json.dumps([before, torch.backends.mkldnn.matmul.fp32_precision]))"
    ) == ["none", "none"]


def test_slow_or_rounded_products_are_not_taken(monkeypatch):
    monkeypatch.setattr(process, "FASTER", 1e9)
    assert process.tune_process(keep=False)["products"] == "default"
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"
    monkeypatch.setattr(process, "FASTER", 0.0)
    monkeypatch.setattr(process, "TRUE", 0.0)
    assert process.tune_process(keep=False)["products"] == "default"
    assert torch.backends.mkldnn.matmul.fp32_precision == "none"


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_faster_products_are_taken_and_a_users_setting_is_left_alone(monkeypatch):
    monkeypatch.setattr(process, "FASTER", 0.0)
    monkeypatch.setattr(process, "TRUE", 1.0)
    assert process.tune_process(keep=False)["products"] == "onednn"
    assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    assert process.tune_process(keep=False)["products"] == "bf16, set by the user"


def test_memory_is_not_kept_on_a_small_machine_nor_without_glibc(monkeypatch):
    monkeypatch.setattr(process, "_memory", lambda: 4 * process.GIB)
    assert process._keep_memory() == 0
    monkeypatch.setattr(process, "_memory", lambda: 64 * process.GIB)
    monkeypatch.setattr(process, "_glibc", lambda name: None)
    assert process._keep_memory() == 0
    assert process.release_memory() is False


def test_an_old_glibc_gets_a_smaller_threshold(monkeypatch):
    set_ = {}

    def mallopt(option, value):
        if option == process.M_MMAP_THRESHOLD and value > 32 << 20:
            return 0
        set_[option] = value
        return 1

    monkeypatch.setattr(process, "_memory", lambda: 128 * process.GIB)
    monkeypatch.setattr(process, "_glibc", lambda name: mallopt)
    assert process._keep_memory() == 32 << 20
    assert set(set_) == {process.M_MMAP_THRESHOLD, process.M_TRIM_THRESHOLD, process.M_TOP_PAD}


@pytest.mark.parametrize(
    ("capability", "vendor", "wide", "slow"),
    [
        ("AVX2", "AuthenticAMD", False, False),
        ("AVX2", "GenuineIntel", False, False),
        ("AVX512", "GenuineIntel", True, False),
        ("AVX512", "AuthenticAMD", True, True),
    ],
)
@pytest.mark.parametrize("linux", [True, False])
def test_mkl_is_slow_on_other_makers_avx512(capability, vendor, wide, slow, linux, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(process.platform, "processor", lambda: f"Family 26, {vendor}")
    made = tmp_path / "cpuinfo"
    if linux:
        made.write_text(f"vendor_id\t: {vendor}\n")
    monkeypatch.setattr(process, "Path", lambda _: made)
    monkeypatch.setattr(process, "has_avx512", process.has_avx512.__wrapped__)
    assert process.has_avx512() is wide
    assert process.slow_mkl.__wrapped__() is slow
