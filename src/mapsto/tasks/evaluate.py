"""The verb ``evaluate``: metrics of a run with intervals, beside simple models."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mapsto.tasks.announce import result_lines
from mapsto.tasks.honesty import Trust, listed
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.run import load
from mapsto.training.parallel import joined

__all__ = ["evaluate"]

TIMEOUT = 300.0  # seconds until a process that does not answer counts as lost


def evaluate(
    run: Path, data: Any = None, *, out: Path | None = None, device: str = "auto", console: Console | None = None
) -> dict[str, Any]:
    """Score a run on its own test part, or on other data.

    Args:
        run: the run folder.
        data: other data with the same columns.
        out: also write the report there.
        device: where to compute.
        console: where to print; None prints nothing.

    Returns:
        ``{"metrics", "intervals", "baselines"}``, and ``"attention"`` if it is favor.
    """
    with joined(TIMEOUT) as world:
        loaded = load(run, device=device)
        result = loaded.evaluate(data, world=world)
        if not world.first:
            return result
    if console is not None:
        judged = [Trust(**one) for one in result.get("attention", [])]
        for text in [*result_lines(result, loaded.model), *listed(judged)]:
            console.print(Text(visible(text)), soft_wrap=True)
    if out is not None:
        from mapsto.tasks import report

        report.write(loaded, out, result=result)
        if console is not None:
            console.print(Text(f"report written to {out}"))
    return result
