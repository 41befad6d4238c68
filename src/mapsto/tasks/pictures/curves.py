"""How training went: losses, the validation metric, the learning rate."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mapsto import disk, document
from mapsto.errors import ModelFileError
from mapsto.tasks.pictures.style import BLUE, GREEN, GREY, ORANGE, figure, styled
from mapsto.tasks.verdict import word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["curves", "read_history"]

LIMIT = 64 << 20  # bytes of metrics.jsonl


def read_history(path: Path) -> list[dict[str, Any]]:
    """The evaluations of ``metrics.jsonl``, in order of step; a last line that was cut short is left out."""
    found: dict[int, dict[str, Any]] = {}
    try:
        lines = disk.read(path, LIMIT).decode("utf-8", "replace").splitlines()
    except (FileNotFoundError, ModelFileError):
        lines = []
    for line in lines:
        try:
            record = document.parse(line)
            if all(v is None or isinstance(v, int | float) for v in record.values()):
                found[int(record["step"])] = record
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    return [found[step] for step in sorted(found)]


@styled
def curves(history: Sequence[dict[str, Any]], *, each: str = "") -> "Figure":
    """Losses above, then the validation metric, then the learning rate, all against the step.

    Args:
        history: the evaluations.
        each: of what a loss is the mean, such as " a token".
    """
    steps = [record["step"] for record in history]
    metric = next((k for k in history[0] if k.startswith("val_") and k != "val_loss"), "") if history else ""
    drawn = figure(6.4 if metric else 5.0)
    rows = drawn.subplots(3 if metric else 2, 1, sharex=True, height_ratios=[3, 2.2, 1.3] if metric else [3, 1.3])
    losses, rate = rows[0], rows[-1]
    best = next((r for r in reversed(history) if r.get("best")), None)
    _line(losses, steps, [r.get("loss") for r in history], BLUE, "training")
    _line(losses, steps, [r.get("val_loss") for r in history], ORANGE, "validation")
    losses.set_title(_headline(best))
    losses.set_ylabel(f"loss (nats{each})")
    losses.legend(loc="upper right", frameon=True, edgecolor="none", framealpha=1)
    if metric:
        name = metric.removeprefix("val_")
        _line(rows[1], steps, [r.get(metric) for r in history], GREEN, name)
        rows[1].set_ylabel(f"validation {word(name)}")
    _line(rate, steps, [r.get("lr") for r in history], GREY, "learning rate")
    rate.set_ylabel("learning rate")
    rate.set_ylim(bottom=0)
    rate.set_xlabel("step")
    rate.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    for axes in rows:
        axes.grid(axis="y")
        axes.margins(x=0.02)
        if best is not None:
            axes.axvline(best["step"], color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    drawn.align_ylabels()
    return drawn


def _headline(best: dict[str, Any] | None) -> str:
    if best is None:
        return "Training"
    return f"Training; the model kept is that of step {best['step']} (dashed), whose validation loss is lowest"


def _line(axes: Any, steps: Sequence[int], values: Sequence[float | None], color: str, label: str) -> None:
    known = [math.nan if v is None or not math.isfinite(v) else v for v in values]
    marker = "o" if len(steps) <= 25 else None
    axes.plot(steps, known, color=color, label=label, marker=marker, markersize=3.2)
