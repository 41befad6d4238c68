"""The processes of one run: who I am, and sums and bytes that all of them share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from mapsto.errors import ConfigError, LostRankError

__all__ = ["World", "joined"]

CONNECTION = ("gloo/transport", "NCCL", "onnection", "imed out", "imeout", "ocket")
START = timedelta(minutes=30)  # for reading the data, which takes some processes longer than others


class World:
    """Rank r of W processes, which all call the same methods in the same order.

    Args:
        rank: which of them this is.
        size: how many there are.
        local: which of those on this machine.
        timeout: seconds after which a process that does not answer counts as lost.

    Attributes:
        sharded: each process holds a share of the model, so all must compute equally often.
    """

    def __init__(self, rank: int = 0, size: int = 1, local: int = 0, timeout: float = 300.0):
        self.rank, self.size, self.local, self.timeout = rank, size, local, timeout
        self.sharded = False
        self.parent = os.getppid()
        self._group = dist.new_group(timeout=timedelta(seconds=timeout)) if size > 1 else None

    @property
    def group(self) -> dist.ProcessGroup:
        """All of them, as torch calls it."""
        assert self._group is not None
        return self._group

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    @property
    def orphaned(self) -> bool:
        """Whether the launcher that started this process is gone."""
        return self.size > 1 and os.getppid() != self.parent

    def turns(self, count: int) -> range:
        """The parts p < count of this process, in order.

        Where all must compute equally often, those that have nothing left get a place beyond the parts.
        """
        end = -(-count // self.size) * self.size if self.sharded else count
        return range(self.rank, end, self.size)

    def add(self, tensor: torch.Tensor) -> None:
        """Sum over all processes, in place, with the same bits in each of them.

        Raises:
            LostRankError: another one is gone or does not answer.
        """
        if self.size > 1:
            with self.guard():
                dist.all_reduce(tensor, group=self._group)

    def share(self, data: bytes, *, starting: bool = False) -> list[bytes]:
        """What every process gives, in order of rank.

        Args:
            data: this one's.
            starting: wait as long as reading the data may take.

        Raises:
            LostRankError: another one is gone or does not answer.
        """
        if self.size == 1:
            return [data]
        group = None if starting else self._group
        with self.guard():
            sizes = torch.zeros(self.size, dtype=torch.int64)
            sizes[self.rank] = len(data)
            dist.all_reduce(sizes, group=group)
            own = torch.zeros(int(sizes.max()), dtype=torch.uint8)
            own[: len(data)] = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)]
            parts = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather(parts, own, group=group)
        return [p[:n].numpy().tobytes() for p, n in zip(parts, sizes.tolist(), strict=True)]

    def spread(self, tensor: torch.Tensor) -> None:
        """Give all processes what the first has, in place.

        Raises:
            LostRankError: another one is gone or does not answer.
        """
        if self.size > 1:
            with self.guard():
                dist.broadcast(tensor, 0, group=self._group)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Tell errors of the connection from others.

        Raises:
            LostRankError: another process is gone or does not answer.
        """
        try:
            yield
        except RuntimeError as error:
            cause = str(error).splitlines()[0][:160]
            if self.size == 1 or not any(word in cause for word in CONNECTION):
                raise
            raise LostRankError(
                f"process {self.rank} of {self.size} lost another one, or it did not answer for {self.timeout:g} s "
                f"({cause}).   The last checkpoint is good: start all again with --resume"
            ) from None

    def agree(self, data: bytes, what: str, *, starting: bool = False) -> None:
        """Check that all processes have the same bytes.

        Args:
            data: this one's.
            what: they are, for the error.
            starting: wait as long as reading the data may take.

        Raises:
            LostRankError: they differ; says which.
        """
        others = [rank for rank, theirs in enumerate(self.share(data, starting=starting)) if theirs != data]
        if others:
            raise LostRankError(
                f"process {self.rank} and process {others[0]} differ in {what}.   "
                "All must run the same version on the same data and settings; the last checkpoint is good: go on with --resume"
            )


@contextmanager
def joined(timeout: float) -> Iterator[World]:
    """The world that ``torchrun`` started this process in; alone if it did not.

    Raises:
        ConfigError: the launcher's variables are not whole.
        LostRankError: the others do not come.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        yield World()
        return
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ.get("LOCAL_RANK", "0"))
    except (KeyError, ValueError) as error:
        raise ConfigError(f"WORLD_SIZE is set, and {error} is not.   Start several processes with torchrun") from None
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(local)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo", timeout=START)
    except (RuntimeError, ValueError) as error:
        raise LostRankError(
            f"the {size} processes did not find each other: {str(error).splitlines()[0][:160]}"
        ) from None
    try:
        yield World(rank, size, local, timeout)
    finally:
        dist.destroy_process_group()
