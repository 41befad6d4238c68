"""The verb ``doctor``: what this machine has, whether attention is right on it, and how fast it is."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from mapsto.attention.softmax import SoftmaxAttention
from mapsto.stream import stream
from mapsto.tasks.environment import bfloat16_helps, device, environment

__all__ = ["doctor"]


def doctor(tuned: dict[str, Any], console: Console) -> dict[str, Any]:
    """Look at versions, memory and disk; probe attention against float64; time a matrix product.

    Returns:
        ``{"environment", "device", "disk_gb", "attention", "gflops"}``.
    """
    where = device("auto")
    about = environment(tuned)
    disk = shutil.disk_usage(Path.cwd()).free / 1e9
    report: dict[str, Any] = {
        "environment": about,
        "device": str(where),
        "disk_gb": round(disk, 1),
        "attention": probe(where),
        "gflops": {"float32": speed(where, torch.float32)},
    }
    if bfloat16_helps(where):
        report["gflops"]["bfloat16"] = speed(where, torch.bfloat16)

    def say(label: str, text: str, style: str = "") -> None:
        console.print(Text(f"{label:<14}").append(text, style), soft_wrap=True)

    say("device", f"{where}    {about['processor']}, {about['capability']}, {about['threads']} threads")
    say("versions", "  ".join(f"{n} {v}" for n, v in about["versions"].items()))
    say("process", ", ".join(f"{k} {v}" for k, v in tuned.items()) or "as it came")
    say("disk", f"{disk:.1f} GB free here")
    for name, error in report["attention"].items():
        good = error <= 1e-5
        say("attention", f"{name}: {'right' if good else 'WRONG'} (error {error:.1e})", "green" if good else "bold red")
    say("speed", ", ".join(f"{n} {v:.0f} GFLOP/s" for n, v in report["gflops"].items()))
    return report


def probe(where: torch.device) -> dict[str, float]:
    """The largest error of attention on 64 items against a plain float64 computation: full, padded, causal."""
    source = stream(0, "doctor")
    q, k, v = (torch.randn(2, 2, 64, 16, generator=source, dtype=torch.float64) for _ in range(3))
    valid = torch.arange(64) < torch.tensor([[64], [37]])
    errors = {}
    for name, mask, causal in (("full", None, False), ("padded", valid, False), ("causal", None, True)):
        score = q @ k.transpose(2, 3) / 4
        if mask is not None:
            score = score.masked_fill(~mask[:, None, None], -torch.inf)
        if causal:
            score = score.masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -torch.inf)
        right = torch.softmax(score, -1) @ v
        moved = [t.float().to(where) for t in (q, k, v)]
        seen = None if mask is None else mask.to(where)
        found = SoftmaxAttention()(*moved, valid=seen, causal=causal)
        errors[name] = float((found.double().cpu() - right).abs().max())
    return errors


def speed(where: torch.device, dtype: torch.dtype, size: int = 1024) -> float:
    """GFLOP/s of a square matrix product: the best of five."""
    a = torch.ones(size, size, dtype=dtype, device=where)
    best = min(_time(lambda: a @ a, where) for _ in range(5))
    return round(2 * size**3 / best / 1e9, 1)


def _time(act: Callable[[], Any], where: torch.device) -> float:
    start = time.perf_counter()
    act()
    if where.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
