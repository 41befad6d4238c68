"""A picture of a run with its caption, and all that were made."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mapsto.tasks.dataset import Dataset
from mapsto.tasks.pictures import span
from mapsto.tasks.pictures.example import Example
from mapsto.tasks.pictures.panel import note
from mapsto.tasks.pictures.sheet import sheet
from mapsto.tasks.pictures.style import png
from mapsto.tasks.pictures.view import TokensView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Gallery", "Picture"]


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        name: of its file, without ending.
        title: what is to be seen.
        caption: how to read it.
        figure: the matplotlib Figure.
        page: the same for an HTML page, where that shows it better; empty otherwise.
        whole: whether ``page`` stands for all of the figure.
    """

    name: str
    title: str
    caption: str
    figure: "Figure"
    page: str = ""
    whole: bool = False

    @cached_property
    def file(self) -> bytes:
        """The figure as a PNG file."""
        return png(self.figure)


@dataclass
class Gallery:
    """Pictures, and what was left out and why."""

    pictures: list[Picture] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    data: Dataset | None = None

    def sheet(
        self, name: str, title: str, caption: str, shown: Sequence[Example], *, weights: list[Any] | None = None
    ) -> None:
        """Add examples, or say that there are none.

        Args:
            name: of the file.
            title: what is to be seen.
            caption: how to read it.
            shown: the examples.
            weights: as in :func:`mapsto.tasks.pictures.sheet.sheet`.
        """
        if not shown:
            self.left_out.append(f"{title}: there are no such rows")
            return
        views = list(shown[0].views.values())
        notes = [f"{n[0].upper()}{n[1:]}." for v in views if (n := note(v))]
        page = span.rows(shown, weights=weights)
        whole = bool(page) and all(isinstance(v, TokensView) for v in views)
        drawn = sheet(shown, title, weights=weights)
        self.pictures.append(Picture(name, title, " ".join([caption, *notes]), drawn, page, whole))
