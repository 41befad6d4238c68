"""A piano roll: notes as bars, pitch over seconds, one colour an instrument, drums in a strip beneath."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mapsto.instrument import DRUMS, instrument, pitch
from mapsto.note import Grid, Note
from mapsto.tasks.pictures.style import BLUE, GREEN, GREY, INK, ORANGE, PALE, SKY, figure, plain, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["roll"]

COLORS = (BLUE, GREEN, "#cc79a7", SKY, "#e69f00", "#7a5195", "#8c564b")
REST = "#a0a0a0"
KIT = 8
BLACK = (1, 3, 6, 8, 10)


@styled
def roll(notes: Sequence[Note], grid: Grid | None = None, *, given: float = 0.0, title: str = "") -> "Figure":
    """Every note from its start to its end, less a hair that parts it from the next; the louder, the darker.

    The seven instruments that sound longest have a colour each, the others share a grey one. Of drums, the eight that
    are struck most have a line each, the others one.

    Args:
        notes: a piece.
        grid: of the notes.
        given: where what was given ends and what the model wrote begins, in seconds; 0 draws no line.
        title: above the picture.
    """
    grid = grid or Grid()
    tones = [n for n in notes if n.instrument != DRUMS]
    drums = [n for n in notes if n.instrument == DRUMS]
    kit = _kit(drums)
    low, high = min((n.pitch for n in tones), default=60), max((n.pitch for n in tones), default=72)
    low, high = max(0, min(low - 2, (low + high) // 2 - 6)), min(127, max(high + 2, (low + high) // 2 + 6))
    tall, strip = (1.2 + 0.045 * (high - low) if tones or not drums else 0.0), 0.13 * len(kit)
    drawn = figure(tall + strip + 0.75 + 0.25 * bool(title))
    parts = [size for size in (tall, strip) if size]
    rows = drawn.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=parts)[:, 0]
    end = max((n.start + n.length for n in notes), default=grid.rate) / grid.rate
    for axes in rows:
        axes.set_xlim(0, end)
    if tall:
        _keys(rows[0], low, high + 4 * (given > 0))
        _tones(rows[0], tones, grid)
    if strip:
        _drums(rows[-1], drums, kit, grid)
    for axes in rows:
        axes.grid(axis="x")
        if given > 0:
            axes.axvline(given, color=ORANGE, linewidth=1.2, linestyle=(0, (4, 3)), zorder=4)
    if given > 0:
        rows[0].annotate(
            "written by the model →",
            (given, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -4),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color=ORANGE,
            zorder=5,
        )
    rows[-1].set_xlabel("seconds")
    if not notes:
        rows[0].text(end / 2, (low + high) / 2, "no notes", ha="center", va="center", color=GREY)
    if title:
        drawn.suptitle(plain(title, 90), x=0.01, ha="left", fontsize=9.5)
    return drawn


def _kit(drums: Sequence[Note]) -> dict[int, int]:
    """The line of each drum, from below by pitch; what is struck seldom shares the top one."""
    counts = Counter(n.pitch for n in drums)
    common = sorted(p for p, _ in sorted(counts.items(), key=lambda c: (-c[1], c[0]))[:KIT])
    lines = {p: i for i, p in enumerate(common)}
    return lines if len(counts) <= KIT else lines | {-1: KIT}


def _keys(axes: Any, low: int, high: int) -> None:
    """The black keys of a piano as a pale ground, and the names of the Cs."""
    for key in range(low, high + 1):
        if key % 12 in BLACK:
            axes.axhspan(key - 0.5, key + 0.5, color=PALE, linewidth=0, alpha=0.6, zorder=0)
    named = [key for key in range(low, high + 1) if key % 12 == 0 or (key % 12 == 7 and high - low < 30)]
    axes.set_yticks(named, [pitch(key) for key in named])
    axes.set_ylim(low - 0.5, high + 0.5)
    axes.set_ylabel("pitch")


def _tones(axes: Any, notes: Sequence[Note], grid: Grid) -> None:
    from matplotlib.patches import Patch

    sounding: Counter[int] = Counter()
    for n in notes:
        sounding[n.instrument] += n.length
    ranked = [i for i, _ in sorted(sounding.items(), key=lambda c: (-c[1], c[0]))]
    colors = dict(zip(ranked, COLORS, strict=False))
    for place, number in enumerate(ranked):  # what sounds longest lies beneath, and is seen around the others
        own = [n for n in notes if n.instrument == number]
        _bars(axes, own, [n.pitch for n in own], colors.get(number, REST), grid, thick=0.9 if place == 0 else 0.7)
    names = [Patch(color=color, label=instrument(number)) for number, color in colors.items()]
    if len(ranked) > len(COLORS):
        names.append(Patch(color=REST, label=f"{len(ranked) - len(COLORS)} more"))
    if names:
        axes.legend(
            handles=names, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2, handlelength=1.0
        )


def _drums(axes: Any, notes: Sequence[Note], kit: dict[int, int], grid: Grid) -> None:
    _bars(axes, notes, [kit.get(n.pitch, KIT) for n in notes], INK, grid, thick=0.7)
    axes.set_yticks(list(kit.values()), ["other drums" if p < 0 else pitch(p, drum=True) for p in kit], fontsize=7)
    axes.set_ylim(-0.7, len(kit) - 0.3)
    axes.tick_params(axis="y", length=0)


def _bars(
    axes: Any, notes: Sequence[Note], heights: Sequence[int], color: str, grid: Grid, *, thick: float = 0.9
) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgb

    bars, shades = [], []
    hair = axes.get_xlim()[1] / 600
    for note, y in zip(notes, heights, strict=True):
        left, right = note.start / grid.rate, (note.start + note.length) / grid.rate
        right -= min(hair, (right - left) / 4)
        bars.append([(left, y - thick / 2), (left, y + thick / 2), (right, y + thick / 2), (right, y - thick / 2)])
        strength = 0.35 + 0.65 * (note.velocity + 1) / grid.velocities
        shades.append(tuple(1 - strength * (1 - c) for c in to_rgb(color)))
    # the edge keeps what is shorter than a point in sight
    axes.add_collection(PolyCollection(bars, facecolors=shades, edgecolors=shades, linewidths=0.3, zorder=2))
