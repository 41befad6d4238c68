"""Several processes of one run: equal metrics, and what happens when one is killed, stalls, or is cut off.

    python benchmarks/ranks.py                  metrics on 1, 2 and 3 processes, then 50 faults
    python benchmarks/ranks.py --faults 10

Every process lives in a network namespace of its own (where this machine lets us make them: Linux, root, ``ip``), so that
a cable can be pulled. A fault strikes one process at a random step: before the step, while it evaluates or saves, or
between two sums. All others must end with exit code 7 within the timeout and 5 seconds, nobody may be left, and the run,
resumed by as many processes, must end in the bits of a run that nothing happened to.
"""

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch warns that addresses in a namespace have no names

import torch
from rich.console import Console

import kills
from mapsto.errors import MapstoError
from mapsto.tasks.train import train
from mapsto.training.checkpoint import Checkpoints
from mapsto.training.loop import Trainer
from mapsto.training.parallel import World

TIMEOUT = 3.0
GRACE = 5.0
FAULTS = ("killed", "stopped", "cut off", "asked to end")
MOMENTS: dict[str, tuple[type, str]] = {
    "before a step": (Trainer, "step"),
    "evaluating": (Trainer, "_evaluate"),
    "saving": (Checkpoints, "save"),
    "between two sums": (World, "add"),
}
CLONE_NEWNET = 0x40000000
Twin = Callable[[int], None]  # changes something in the process of a rank


class Wires:
    """A network namespace for each process, all on one bridge; without the right to make them, this machine's own.

    Args:
        size: how many processes.
    """

    def __init__(self, size: int):
        self.names = [f"mapsto-{os.getpid()}-{i}" for i in range(size)]
        self.bridge = f"mb{os.getpid() % 100000}"
        self.reason = ""
        try:
            self._run("link add", self.bridge, "type bridge")
            self._run("link set", self.bridge, "up")
            for i, name in enumerate(self.names):
                outer = f"mv{os.getpid() % 100000}x{i}"
                self._run("netns add", name)
                self._run("link add", outer, "type veth peer name", "wire", "netns", name)
                self._run("link set", outer, "master", self.bridge, "up")
                self._run("-n", name, "addr add", f"10.77.0.{i + 1}/24 dev wire")
                self._run("-n", name, "link set wire up")
                self._run("-n", name, "link set lo up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            self.reason = f"no network namespaces here ({error})"

    @staticmethod
    def _run(*words: str) -> None:
        subprocess.run(["ip", *" ".join(words).split()], check=True, capture_output=True)

    def enter(self, rank: int, port: int) -> None:
        """Move this process to its end of a wire."""
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        if not self.reason:
            with open(f"/run/netns/{self.names[rank]}") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            os.environ |= {"MASTER_ADDR": "10.77.0.1", "GLOO_SOCKET_IFNAME": "wire"}

    def mend(self) -> None:
        """Plug every wire in again."""
        for name in [] if self.reason else self.names:
            self._run("-n", name, "link set wire up")

    def close(self) -> None:
        """Take them down."""
        for words in (*(("netns", "del", name) for name in self.names), ("link", "del", self.bridge)):
            subprocess.run(["ip", *words], check=False, capture_output=True)


def free_port() -> int:
    """A port that nobody listens to."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@dataclass
class Team:
    """Some processes that train one run together.

    Attributes:
        bench: the task and the folder.
        size: how many.
        wires: between them.
    """

    bench: kills.Bench
    size: int
    wires: Wires
    ended: dict[int, tuple[int, float]] = field(default_factory=dict)

    def start(self, name: str, twin: Twin | None = None) -> list[int]:
        """Fork them; gives their process numbers."""
        port, resume = free_port(), (self.bench.folder / name).exists()
        return [self._fork(name, rank, port, resume, twin) for rank in range(self.size)]

    def _fork(self, name: str, rank: int, port: int, resume: bool, twin: Twin | None) -> int:
        child = kills.fork()
        if child:
            return child
        code = 70
        error = self.bench.folder / f"{name}.error.{rank}"
        try:
            torch.set_num_threads(1)
            self.wires.enter(rank, port)
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(self.size), "LOCAL_RANK": str(rank)}
            if twin is not None:
                twin(rank)
            config = self.bench.task.config(**self.bench.more)
            quiet = Console(quiet=True)
            train(config, self.bench.task.rows, name=name, resume=resume, root=self.bench.folder, console=quiet)
            code = 0
        except MapstoError as found:
            code = found.code
            error.write_text(str(found))
        except BaseException as found:  # whatever it is, the parent must hear of it
            error.write_text(f"{type(found).__name__}: {found}")
        finally:
            os._exit(code)

    def wait(self, children: list[int], limit: float, but: int = -1) -> list[int | None]:
        """Exit codes of all (but one), None for those still there after the limit."""
        self.ended = {}
        end = time.monotonic() + limit
        while time.monotonic() < end and len(self.ended) < len(children) - (but >= 0):
            for rank, child in enumerate(children):
                if rank not in self.ended and rank != but:
                    found, status = os.waitpid(child, os.WNOHANG)
                    if found:
                        self.ended[rank] = (os.waitstatus_to_exitcode(status), time.monotonic())
            time.sleep(0.01)
        return [self.ended[r][0] if r in self.ended else None for r in range(len(children))]

    def whole(self, name: str, twin: Twin | None = None, limit: float = 120.0) -> list[int | None]:
        """One run to its end."""
        children = self.start(name, twin)
        codes = self.wait(children, limit)
        self.bury(children)
        return codes

    def bury(self, children: list[int]) -> None:
        """End whoever is left."""
        for rank, child in enumerate(children):
            if rank not in self.ended:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)

    def errors(self, name: str) -> str:
        """What they said last."""
        return " | ".join(p.read_text() for p in sorted(self.bench.folder.glob(f"{name}.error.*")))


def strike(fault: str, victim: int, moment: str, number: int, mark: Path) -> Twin:
    """A twin in which one process meets a fault at the N-th time it comes to a moment."""

    def twin(rank: int) -> None:
        if rank != victim:
            return
        kind, name = MOMENTS[moment]
        inner = getattr(kind, name)
        seen = [0]

        def outer(*arguments: Any, **more: Any) -> Any:
            seen[0] += 1
            if seen[0] == number:
                mark.write_text(str(time.monotonic()))
                if fault == "cut off":
                    subprocess.run(["ip", "link", "set", "wire", "down"], check=True)
                else:
                    number_of = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "asked to end": signal.SIGTERM}
                    os.kill(os.getpid(), number_of[fault])
            return inner(*arguments, **more)

        setattr(kind, name, outer)

    return twin


def one_fault(team: Team, number: int, source: random.Random, wanted: dict[str, str]) -> tuple[str, list[str]]:
    """Strike once, look who is left, resume; gives what was done, and what went wrong."""
    faults = [f for f in FAULTS if f != "cut off" or not team.wires.reason]
    fault, victim = source.choice(faults), source.randrange(team.size)
    moment = source.choice([m for m in MOMENTS if m != "saving" or victim == 0])
    often = source.randint(1, 3) if moment in ("evaluating", "saving") else source.randint(1, 20)
    name = f"fault-{number}"
    mark = team.bench.folder / f"{name}.mark"
    children = team.start(name, strike(fault, victim, moment, often, mark))
    stays = fault in ("stopped", "killed")
    codes = team.wait(children, 60.0, victim if stays else -1)
    wrong = []
    what = f"process {victim} of {team.size} {fault} {moment} ({often})"
    if not mark.exists():
        wrong.append(f"{what}: never happened: {team.errors(name)}")
    else:
        struck = float(mark.read_text())
        late = [e - struck for _, e in team.ended.values() if e - struck > TIMEOUT + GRACE]
        expected = 143 if fault == "asked to end" else 7
        odd = [c for r, c in enumerate(codes) if c != expected and not (stays and r == victim)]
        if odd:
            wrong.append(f"{what}: exit codes {codes}: {team.errors(name)}")
        if late:
            wrong.append(f"{what}: ended {max(late):.1f} s after")
    team.bury(children)
    team.wires.mend()
    for _ in range(2):
        codes = team.whole(name)
        if codes == [0] * team.size:
            break
    if codes != [0] * team.size:
        wrong.append(f"{what}: resumed with exit codes {codes}: {team.errors(name)}")
    elif files := kills.differing(kills.outcome(team.bench.folder / name), wanted):
        wrong.append(f"{what}: {', '.join(files)} differ")
    shutil.rmtree(team.bench.folder / name, ignore_errors=True)
    return what, wrong


def faults(folder: Path, count: int, size: int, source: random.Random, *, loud: bool = False) -> list[str]:
    """Strike so often; gives what went wrong."""
    folder.mkdir(exist_ok=True)
    wires = Wires(size)
    try:
        if wires.reason:
            print(f"{wires.reason}: nobody is cut off")
        more = {"train.accumulate": 2 * size, "train.timeout": TIMEOUT, "train.patience": 0, "train.lr": 0.003}
        team = Team(kills.Bench(kills.tasks()["tags"], folder, more), size, wires)
        codes = team.whole("reference")
        assert codes == [0] * size, (codes, team.errors("reference"))
        wanted = kills.outcome(folder / "reference")
        wrong: list[str] = []
        for number in range(count):
            what, found = one_fault(team, number, source, wanted)
            wrong += found
            if loud:
                print(f"{number + 1:>4}  {what}   {'; '.join(found) or 'ok'}", flush=True)
        return wrong
    finally:
        wires.close()


def metrics(folder: Path, sizes: tuple[int, ...] = (1, 2, 3)) -> float:
    """The largest difference of any metric of equal weights between numbers of processes.

    The weights are those of one run; its last checkpoint is taken up by each number of processes, which only measure.
    """
    folder.mkdir(exist_ok=True)
    wires = Wires(max(sizes))
    found: list[dict[str, float]] = []
    try:
        bench = kills.Bench(kills.tasks()["tags"], folder, {"train.accumulate": 6})
        assert bench.whole("run") == 0, bench.error("run")
        for size in sizes:
            (folder / "run" / "result.json").unlink()
            team = Team(bench, size, wires)
            assert team.whole("run") == [0] * size, team.errors("run")
            found.append(json.loads((folder / "run" / "result.json").read_text())["metrics"])
    finally:
        wires.close()
    return max(abs(one[k] - found[0][k]) for one in found for k in found[0] if found[0][k] is not None)


def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_CACHE_HOME"] = f"{place}/cache"
        difference = metrics(Path(place, "metrics"))
        print(
            f"metrics of equal weights on 1, 2, 3 processes: largest difference {difference:.1e}   asked 1e-12",
            flush=True,
        )
        source = random.Random(arguments.seed)
        began = time.perf_counter()
        wrong = faults(Path(place, "two"), arguments.faults - arguments.faults // 5, 2, source, loud=True)
        wrong += faults(Path(place, "three"), arguments.faults // 5, 3, source, loud=True)
    print(f"{arguments.faults} faults in {time.perf_counter() - began:.0f} s: {len(wrong)} went wrong")
    return int(bool(wrong) or difference > 1e-12)


if __name__ == "__main__":
    sys.exit(main())
