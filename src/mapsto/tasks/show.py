"""The verb ``show``: pictures of a run, and the report."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from mapsto import disk
from mapsto.errors import ConfigError
from mapsto.tasks import report
from mapsto.tasks.pictures.gallery import gallery
from mapsto.tasks.pictures.text import visible
from mapsto.tasks.run import load

__all__ = ["show"]


def show(run: Path, *, out: Path | None = None, console: Console | None = None) -> dict[str, Any]:
    """Draw a run's pictures to ``plots/*.png`` and write ``report.html``.

    Args:
        run: the run folder.
        out: the folder to write to; by default the run folder.
        console: where to say what was written; None says nothing.

    Returns:
        ``{"report": path, "plots": [paths], "left_out": [reasons]}``.

    Raises:
        ConfigError: matplotlib is not installed, or the folder cannot be written.
        ModelFileError: no finished run.
    """
    loaded = load(run)
    made = gallery(loaded)
    folder = run if out is None else out
    plots = []
    try:
        (folder / "plots").mkdir(parents=True, exist_ok=True)
        if (folder / "plots").is_symlink():
            raise ConfigError(f"{folder / 'plots'} is a link, and is not written to")
        for picture in made.pictures:
            path = folder / "plots" / f"{picture.name}.png"
            disk.replace(path, picture.file)
            plots.append(str(path))
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from None
    report.write(loaded, folder / "report.html", drawn=made)
    if console is not None:
        for reason in made.left_out:
            console.print(Text(visible(f"left out: {reason}"), style="yellow"), soft_wrap=True)
        console.print(Text(f"{len(plots)} pictures in {folder / 'plots'}"), soft_wrap=True)
        console.print(Text(f"report written to {folder / 'report.html'}"), soft_wrap=True)
    return {"report": str(folder / "report.html"), "plots": plots, "left_out": made.left_out}
