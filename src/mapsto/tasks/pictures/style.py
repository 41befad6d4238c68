"""How pictures look: one calm style, with colours that the colour-blind can tell apart (Okabe and Ito, 2008)."""

import io
import warnings
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from mapsto.errors import ConfigError
from mapsto.tasks.pictures.text import shorten, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "INK",
    "ORANGE",
    "PALE",
    "SERIES",
    "SKY",
    "blank",
    "fade",
    "figure",
    "named",
    "plain",
    "png",
    "styled",
]

P = ParamSpec("P")

INK, GREY, PALE = "#222222", "#767676", "#e9ecef"
BLUE, ORANGE, GREEN, SKY = "#0072b2", "#d55e00", "#009e73", "#56b4e9"
SERIES = (BLUE, GREEN, "#cc79a7", SKY, "#e69f00", INK)
"""Colours of channels; orange is left for weights and for what is wrong."""

WIDTH = 8.0
"""Inches, of every picture."""

DPI = 144

# Fonts with letters that matplotlib's own lack, where a machine has them.
FURTHER = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "WenQuanYi Zen Hei",
    "Noto Sans Devanagari",
    "Noto Sans Bengali",
    "Noto Sans Tamil",
    "Noto Sans Thai",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Ethiopic",
    "Nirmala UI",
    "Arial Unicode MS",
)


@cache
def _settings() -> dict[str, Any]:
    try:
        import matplotlib
        from matplotlib import font_manager
    except ImportError:
        raise ConfigError("pictures need matplotlib.   pip install 'mapsto[plot]'") from None
    there = {font.name for font in font_manager.fontManager.ttflist}
    further = [name for name in FURTHER if name in there]
    own = {
        "font.family": ["DejaVu Sans", *further],
        "font.size": 9.0,
        "text.color": INK,
        "axes.edgecolor": GREY,
        "axes.labelcolor": INK,
        "axes.linewidth": 0.8,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.titlepad": 5.0,
        "axes.labelsize": 9.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "xtick.labelsize": 8.0,
        "ytick.labelsize": 8.0,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "lines.linewidth": 1.6,
        "hatch.linewidth": 0.6,
        "hatch.color": GREY,
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
    }
    base: dict[str, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    return base | own  # a user's own matplotlibrc is left out, so that a report looks the same everywhere


def monospace() -> list[str]:
    """The fonts of fixed width."""
    return ["DejaVu Sans Mono", *_settings()["font.family"][1:]]


def styled(draw: "Callable[P, Figure]") -> "Callable[P, Figure]":
    """Draw in this style, whatever the process has set, and set nothing.

    Raises:
        ConfigError: matplotlib is not installed.
    """

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        settings = _settings()
        import matplotlib

        with matplotlib.rc_context(settings):
            return draw(*args, **kwargs)

    return drawn


def figure(height: float, *, width: float = WIDTH, constrained: bool = True) -> "Figure":
    """An empty figure of some inches, on a canvas of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=DPI, layout="constrained" if constrained else None)
    FigureCanvasAgg(made)
    return made


def png(drawn: "Figure") -> bytes:
    """The picture as a PNG file, the same bytes for the same picture."""
    settings = _settings()
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)  # drawn as a box
        warnings.filterwarnings("ignore", message=".*[Mm]atplotlib currently does not support", category=UserWarning)
        drawn.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
    return content.getvalue()


def plain(text: object, limit: int = 0) -> str:
    """Text for a picture: nothing in it is taken for mathematics."""
    shown = visible(str(text))
    return (shorten(shown, limit) if limit else shown).replace("$", r"\$")


def named(axis: Any, names: Sequence[str], *, limit: int = 18, size: float = 8.0, turn: bool = False) -> None:
    """Put one name a position on an axis, turned where they would meet."""
    labels = [plain(name, limit) for name in names]
    axis.set_ticks(range(len(labels)), labels, fontsize=size)
    if turn:
        for label in axis.get_ticklabels():
            label.set(rotation=45, ha="right", rotation_mode="anchor")
    axis.set_tick_params(length=0)


def blank(axes: Any) -> None:
    """No ticks and no frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def fade(color: str) -> Any:
    """A scale from white to a colour."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(f"white{color}", ["#ffffff", color])
