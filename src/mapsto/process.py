"""What makes a whole process faster on the CPU, in one place: changed only when asked, never at import.

Both settings change the bits of results or the memory of the process, so they are returned to be written down.
"""

import ctypes
import functools
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from mapsto.stream import stream

__all__ = ["has_avx512", "release_memory", "set_products", "slow_mkl", "tune_process"]

GIB = 1 << 30
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3

FASTER = 1.5
"""oneDNN must win by this, in the best and in the middle of the probe's rounds: it is at 1.0 or at about 2.0, so that
the noise of a shared machine decides nothing."""

TRUE = 1e-5
"""Relative error of a float32 product of 512 terms; a product in bfloat16 has 2e-3."""


def tune_process(keep: bool = True) -> dict[str, Any]:
    """Set up this process for speed on the CPU; the command line does so for each run.

    *Products*: matrix products of float32 go to oneDNN instead of MKL where a probe of 0.1 s finds them faster by
    half and still of float32 precision (AMD CPUs with AVX-512: twice as fast; on a CPU with AMX they would be
    rounded to bfloat16, and nothing is changed).
    *Memory*: freed tensors stay with the process instead of being given back and mapped anew (operations on 16 MB took
    a seventh of the time), for blocks up to 1/64 of the memory and at most 1 GiB; not with less than 8 GiB of memory,
    nor without glibc. Call :func:`release_memory` after each epoch.

    Args:
        keep: whether to keep memory.

    Returns:
        What was set, for ``environment.json``: ``products`` ("onednn" or "default"), ``products_ratio`` (time of the
        default over that of oneDNN), ``products_error`` (relative, of oneDNN), ``memory_kept`` (bytes; 0 is off).
    """
    return {**_tune_products(), "memory_kept": _keep_memory() if keep else 0}


@functools.cache
def has_avx512() -> bool:
    """Whether torch uses vectors of 512 bits here."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


@functools.cache
def slow_mkl() -> bool:
    """Whether MKL, whose products torch uses, leaves half of this CPU idle: it has AVX-512 and is not Intel's."""
    try:
        vendor = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        vendor = platform.processor()
    return has_avx512() and "GenuineIntel" not in vendor


def set_products(products: str) -> str:
    """Use the matrix products that a run began with ("onednn" or "default"); gives those in use.

    They round differently, and the probe of :func:`tune_process` may come out otherwise on another day.
    """
    if products == "onednn" and torch.backends.mkldnn.is_available():
        _set("bf16")
    elif products == "default" and _setting() == "bf16":
        _set("none")
    return "onednn" if _setting() == "bf16" else "default"


def release_memory() -> bool:
    """Give the memory that is free back to the system; True if there was any. Does nothing without glibc."""
    trim = _glibc("malloc_trim")
    return bool(trim(0)) if trim is not None else False


def _tune_products() -> dict[str, Any]:
    if not torch.backends.mkldnn.is_available():
        return {"products": "default", "products_ratio": None, "products_error": None}
    before = _setting()
    if before not in ("none", "ieee"):
        return {"products": f"{before}, set by the user", "products_ratio": None, "products_error": None}
    a = torch.randn(512, 512, generator=stream(0, "probe"))
    true = a.double() @ a.double()
    times: dict[str, list[float]] = {before: [], "bf16": []}
    try:
        for _ in range(15):
            for setting, taken in times.items():
                _set(setting)
                start = time.perf_counter()
                product = a @ a
                taken.append(time.perf_counter() - start)
        error = float((product.double() - true).norm() / true.norm())
    finally:
        _set(before)
    ratio = min(measure(times[before]) / measure(times["bf16"]) for measure in (min, statistics.median))
    better = ratio >= FASTER and error <= TRUE
    if better:
        _set("bf16")
    return {"products": "onednn" if better else "default", "products_ratio": round(ratio, 2), "products_error": error}


def _setting() -> str:
    return str(torch.backends.mkldnn.matmul.fp32_precision)  # type: ignore[attr-defined]


def _set(setting: str) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = setting  # type: ignore[attr-defined]


def _keep_memory() -> int:
    """Bytes of the largest block that is kept, or 0."""
    set_option, memory = _glibc("mallopt"), _memory()
    if set_option is None or memory < 8 * GIB:
        return 0
    # glibc before 2.35 refuses thresholds above 32 MiB.
    for threshold in (min(GIB, memory // 64), 32 << 20):
        if set_option(M_MMAP_THRESHOLD, threshold):
            set_option(M_TRIM_THRESHOLD, min(2 * GIB - 1, 2 * threshold))
            set_option(M_TOP_PAD, 64 << 20)
            return threshold
    return 0


def _memory() -> int:
    """Bytes this process may use: of the machine, or of its container if that is less."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            memory = min(memory, int(Path(file).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return memory


def _glibc(name: str) -> Any:
    """A function of glibc, or None elsewhere: other C libraries lack it, or give its options other numbers."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018
        return getattr(library, name)
    except (AttributeError, OSError, TypeError):
        return None
