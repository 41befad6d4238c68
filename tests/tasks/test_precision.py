"""precision=auto: bfloat16 where the processor computes in it and the model is wide enough for that to pay."""

import pytest
import torch

import mapsto
from mapsto.tasks import environment
from mapsto.tasks.environment import WIDE, bfloat16_helps

ROWS = [{"text": f"{'good' if i % 2 else 'bad'} {i}", "y": "ab"[i % 2]} for i in range(60)]


@pytest.mark.parametrize(("flags", "there"), [("flags : avx512f avx512_bf16", True), ("flags : avx2", False)])
def test_narrow_models_stay_in_float32(monkeypatch, flags, there):
    monkeypatch.setattr(environment, "_flags", lambda: flags)
    cpu = torch.device("cpu")
    assert bfloat16_helps(cpu) is there
    assert bfloat16_helps(cpu, WIDE) is there
    assert not bfloat16_helps(cpu, WIDE - 1)


@pytest.mark.parametrize(
    ("dim", "precision", "said"),
    [
        (16, "auto", "float32"),
        (WIDE, "auto", "bfloat16"),
        (16, "bfloat16", "bfloat16"),
        (WIDE, "float32", "float32"),
    ],
)
def test_a_run_computes_in_what_helps_and_says_so(tmp_path, monkeypatch, capsys, dim, precision, said):
    monkeypatch.setattr(environment, "_flags", lambda: "flags : avx512f avx512_bf16")
    options = {"model.dim": dim, "model.depth": 1, "model.heads": 2, "train.steps": 1, "train.precision": precision}
    monkeypatch.chdir(tmp_path)
    mapsto.fit(ROWS, target="y", settings=options)
    assert f"threads, {said}" in capsys.readouterr().err
