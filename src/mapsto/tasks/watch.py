"""What a person sees of a run, and what its folder keeps: progress, a table line an evaluation, metrics.jsonl, log.txt."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor

from mapsto import disk
from mapsto.errors import ResourceError
from mapsto.tasks.pictures.text import visible
from mapsto.training.journal import Journal

__all__ = ["RunWatcher", "amount", "clock"]


def clock(seconds: float) -> str:
    """Minutes and seconds.

    Example:
        >>> clock(68.2), clock(3700)
        ('1:08', '1:01:40')
    """
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def amount(number: float) -> str:
    """A count as people say it.

    Example:
        >>> amount(25000), amount(1_300_000), amount(812)
        ('25 000', '1.3 M', '812')
    """
    if number >= 1e6:
        return f"{number / 1e6:.1f} M"
    return f"{number:,.0f}".replace(",", " ")


class Lasting:
    """A stream to write to that may lose its reader (a closed terminal, the end of a pipe): then it takes all in silence."""

    def __init__(self, stream: IO[str]):
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write, if anybody reads."""
        try:
            return self.stream.write(text)
        except OSError:
            self._mute()
            return len(text)

    def flush(self) -> None:
        """Flush, if anybody reads."""
        try:
            self.stream.flush()
        except OSError:
            self._mute()

    def _mute(self) -> None:
        # What waits in the stream's own buffer is written at the end of the process, and must not fail then.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


class RunWatcher:
    """Tells the terminal and the run folder how training goes.

    A terminal that is gone, or a pipe that nobody reads, does not end training.

    Args:
        folder: where ``metrics.jsonl``, ``log.txt`` and what went wrong are; None keeps none.
        console: where to print; it decides by itself whether it is a terminal.
        metric: the name of the metric shown beside the losses.
        place: how to call a row of the store.
        batch: the tensors of some rows of the store, to keep those of a bad step.
    """

    def __init__(
        self,
        folder: Path | None,
        console: Console,
        *,
        metric: str = "accuracy",
        place: Callable[[int], str] = str,
        batch: Callable[[list[int]], Mapping[str, Mapping[str, Tensor]]] | None = None,
    ):
        self.folder, self.console, self.metric, self.place, self.batch = folder, console, metric, place, batch
        console.file = cast(IO[str], Lasting(console.file))
        names = ("metrics.jsonl", "log.txt", "bad-batches.jsonl")
        self.journals = {name: Journal(folder and folder / name) for name in names}
        self.head = False
        self.warned: list[str] = []
        self.started = time.perf_counter()
        self.shown = 0.0
        self.progress: Progress | None = None
        self.task: Any = None

    def say(self, text: str, style: str = "") -> None:
        """A line for the terminal and the log. Markup in it is off: it may come from data."""
        self.tell(text, style)
        self.log(text)

    def once(self, begin: str, text: str) -> None:
        """A warning that a run gets once, however often it is resumed: unless the log has a line that begins so."""
        if not any(line.startswith(begin) for line in (*self._logged().splitlines(), *self.warned)):
            self.warned.append(begin)
            self.say(text, "yellow")

    def tell(self, text: str, style: str = "") -> None:
        """A line for the terminal alone."""
        self.console.print(Text(visible(text), style=style), soft_wrap=True, highlight=False)

    def log(self, text: str) -> None:
        """A line for the log alone."""
        self.journals["log.txt"].add(visible(text))

    def begin(self, steps: int, done: int = 0) -> None:
        """Training begins; on a terminal a bar moves below the lines."""
        self.started = time.perf_counter()
        if self.console.is_terminal:
            self.progress = Progress(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TimeRemainingColumn(),
                TextColumn("loss {task.fields[loss]:.3f}"),
                console=self.console,
                transient=True,
            )
            self.progress.start()
            self.task = self.progress.add_task("train", total=steps, completed=done, loss=0.0)

    def end(self) -> None:
        """Training has ended."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def stepped(self, step: int, loss: float) -> None:
        """Move the bar, at most ten times a second."""
        if self.progress is None:
            return
        now = time.perf_counter()
        if now - self.shown > 0.1:
            self.shown = now
            self.progress.update(self.task, completed=step, loss=loss)

    def evaluated(self, record: dict[str, Any]) -> None:
        """A line of the table, and of ``metrics.jsonl``."""
        known = {k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in record.items()}
        self.journals["metrics.jsonl"].add(json.dumps(known))
        head = f"{'step':>7} {'epoch':>6} {'loss':>8} {'val loss':>9} {'val ' + self.metric:>14} {'steps/s':>8} {'time':>7}"
        if not self.head:
            self.head = True
            if self.journals["log.txt"].path is None or head not in self._logged():
                self.say(head)
            else:
                self.tell(head)
        value = record.get(f"val_{self.metric}", float("nan"))
        best = "   <- best" if record["best"] else ""
        spent = clock(time.perf_counter() - self.started)
        self.say(
            f"{record['step']:>7} {record['epoch']:>6} {record['loss']:>8.4f} {record['val_loss']:>9.4f} {value:>14.4f} "
            f"{record['steps_per_second']:>8.1f} {spent:>7}{best}"
        )

    def _logged(self) -> str:
        path = self.journals["log.txt"].path
        try:
            return "" if path is None else disk.read(path, 1 << 30).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def skipped(self, step: int, rows: list[int], cause: str) -> None:
        """A warning; the rows, by name, and what they were gathered to, are kept."""
        places = [self.place(row) for row in rows]
        record = {"step": step, "first": cause, "rows": places, "store": rows}
        self.journals["bad-batches.jsonl"].add(json.dumps(record, ensure_ascii=False))
        shown = ", ".join(places[:6]) + (f" and {len(places) - 6} more" if len(places) > 6 else "")
        self.say(
            f"warning: step {step}: not finite: {cause}; nothing changed.   Rows: {shown}"
            + ("   (bad-batches.jsonl, bad-batch.safetensors)" if self.folder else ""),
            "yellow",
        )
        if self.folder is not None and self.batch is not None:
            tensors = {f"{n}.{c}": t for n, columns in self.batch(rows).items() for c, t in columns.items()}
            path = self.folder / "bad-batch.safetensors"
            try:
                disk.write_tensors(path, tensors)
            except OSError as error:
                self.tell(f"warning: {disk.full(path, error)}", "yellow")

    def unsaved(self, error: ResourceError) -> None:
        """A warning; the checkpoint before is still there."""
        self.tell(f"warning: no checkpoint now: {error}.   Training goes on", "yellow")

    def positions(self) -> dict[str, int]:
        """Bytes of the append-only files, all of them on the disk.

        Raises:
            ResourceError: they cannot be written.
        """
        return {name: journal.settle() for name, journal in self.journals.items()}

    def cut(self, sizes: Mapping[str, int]) -> None:
        """Forget what the append-only files got after a checkpoint."""
        for name, journal in self.journals.items():
            lost = journal.cut(int(sizes.get(name, 0)))
            if lost:
                self.tell(f"warning: {journal.path} lacks {lost} bytes that the checkpoint knew", "yellow")
