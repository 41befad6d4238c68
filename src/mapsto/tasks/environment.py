"""What a run ran on: versions, processor, threads, and the settings of the process that change bits."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from mapsto.errors import ConfigError

__all__ = ["bfloat16_helps", "device", "environment", "processor"]

PACKAGES = ("mapsto", "torch", "numpy", "pyarrow", "safetensors", "pydantic", "scipy", "Pillow", "sentencepiece")


def processor() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def device(name: str, local: int | None = None) -> torch.device:
    """The device of a name; ``auto`` is the first GPU, or the processor.

    Args:
        name: as the user says it.
        local: which of several processes on this machine it is for: each takes a GPU of its own.

    Raises:
        ConfigError: no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and local is not None:
        name = f"cuda:{local}"
    try:
        found = torch.device(name)
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        first = str(error).splitlines()[0][:120]
        raise ConfigError(f'device "{name}" cannot be used ({first}).   Here: {", ".join(there)}') from None
    return found


WIDE = 128
"""The least width whose products in bfloat16 pay for their rounding on a CPU: with AMX a training step of 64 wide takes
.81 to .98 of the time of float32, of 128 .64 to .75, of 192 .55 to .68, of 256 .5."""


def bfloat16_helps(where: torch.device, dim: int = WIDE) -> bool:
    """Whether the device computes matrix products in bfloat16 by itself, and a model so wide is faster with them."""
    if where.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return where.type == "cpu" and dim >= WIDE and "avx512_bf16" in _flags()


def _flags() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return ""


def environment(tuned: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything that two runs must share to give the same bits."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "versions": versions,
        "process": tuned or {},
    }
