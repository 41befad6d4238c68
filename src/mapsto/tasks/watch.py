"""What a person sees of a run, and what its folder keeps: progress, a table line an evaluation, metrics.jsonl, log.txt."""

import json
import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

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


class RunWatcher:
    """Tells the terminal and the run folder how training goes.

    Args:
        folder: where ``metrics.jsonl`` and ``log.txt`` are; None keeps none.
        console: where to print; it decides by itself whether it is a terminal.
        steps: in all.
        metric: the name of the metric shown beside the losses.
    """

    def __init__(self, folder: Path | None, console: Console, steps: int = 0, metric: str = "accuracy"):
        self.folder, self.console, self.steps, self.metric = folder, console, steps, metric
        self.history: list[dict[str, Any]] = []
        self.bad: list[tuple[int, list[int]]] = []
        self.head = False
        self.started = time.perf_counter()
        self.shown = 0.0
        self.progress: Progress | None = None
        self.task: Any = None

    def say(self, text: str, style: str = "") -> None:
        """A line for the terminal and the log. Markup in it is off: it may come from data."""
        self.console.print(Text(text, style=style), soft_wrap=True, highlight=False)
        self.log(text)

    def log(self, text: str) -> None:
        """A line for the log alone."""
        if self.folder is not None:
            with (self.folder / "log.txt").open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    def begin(self, steps: int, done: int = 0) -> None:
        """Training begins; on a terminal a bar moves below the lines."""
        self.steps, self.started = steps, time.perf_counter()
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
        self.history.append(record)
        if self.folder is not None:
            with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
                known = {k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in record.items()}
                file.write(json.dumps(known) + "\n")
        if not self.head:
            self.head = True
            self.say(
                f"{'step':>7} {'epoch':>6} {'loss':>8} {'val loss':>9} {'val ' + self.metric:>14} {'steps/s':>8} {'time':>7}"
            )
        value = record.get(f"val_{self.metric}", float("nan"))
        best = "   <- best" if record["best"] else ""
        spent = clock(time.perf_counter() - self.started)
        self.say(
            f"{record['step']:>7} {record['epoch']:>6} {record['loss']:>8.4f} {record['val_loss']:>9.4f} {value:>14.4f} "
            f"{record['steps_per_second']:>8.1f} {spent:>7}{best}"
        )

    def skipped(self, step: int, rows: list[int]) -> None:
        """A warning; the rows are kept for the error that may follow."""
        self.bad.append((step, rows))
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        self.say(f"warning: step {step}: the loss or gradient was not finite; nothing changed (rows {shown})", "yellow")

    def positions(self) -> dict[str, int]:
        """Bytes of the append-only files."""
        if self.folder is None:
            return {}
        paths = [self.folder / name for name in ("metrics.jsonl", "log.txt")]
        return {p.name: p.stat().st_size for p in paths if p.exists()}
