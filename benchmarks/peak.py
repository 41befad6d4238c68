"""The most memory that one candidate takes beside its inputs, in a process of its own.

    python benchmarks/peak.py favor --length 4096 --causal

On a CPU it is the highest resident memory of the process, less what was resident before the call; a small call first
loads what only needs to be loaded once. Prints a number of bytes, or why there is none.
"""

import argparse
import dataclasses
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch

from candidate import Setting, caller, inputs, make
from peer import Missing

__all__ = ["peak", "peak_apart"]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak(name: str, setting: Setting) -> int:
    """Bytes, in this process, which must be fresh."""
    if setting.device == "cuda":
        call = caller(make(name, setting), inputs(setting))
        call()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    small = dataclasses.replace(setting, length=64)
    caller(make(name, small), inputs(small))()
    call = caller(make(name, setting), inputs(setting))
    before = resident()
    call()
    return max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)


def peak_apart(name: str, setting: Setting) -> int | str:
    """Bytes, or why not: in a new process."""
    flags = [f"--{flag}" for flag in ("causal", "learn") if getattr(setting, flag)]
    words = [name, "--length", str(setting.length), "--kind", setting.kind, "--device", setting.device, *flags]
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)
    last = done.stdout.strip().splitlines()[-1:] or [f"{name}: ended with {done.returncode}"]
    return int(last[0]) if last[0].isdigit() else last[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--kind", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--learn", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        print(peak(args.name, Setting(args.length, args.kind, args.causal, args.learn, args.device)))
    except Missing as e:
        print(e)


if __name__ == "__main__":
    main()
