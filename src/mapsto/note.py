"""Notes on a grid of time and loudness. No torch."""

from dataclasses import dataclass

from mapsto.errors import ConfigError, DataError
from mapsto.instrument import DRUMS

__all__ = ["SECONDS", "Grid", "Note", "check", "order"]

SECONDS = 86_400
"""The longest piece."""


@dataclass(frozen=True)
class Grid:
    """What notes are rounded to.

    A step is 1 / rate seconds. The 127 loudnesses of MIDI (1 to 127) fall into ``velocities`` bins as even as can be: v
    is in bin (v − 1) · velocities div 127, and a bin sounds as the loudness in its middle; 127 bins lose nothing.

    Attributes:
        rate: steps a second.
        velocities: bins of loudness.

    Raises:
        ConfigError: a rate that is not 1 to 1000, bins that are not 1 to 127.
    """

    rate: int = 100
    velocities: int = 32

    def __post_init__(self) -> None:
        """Check both."""
        for name, most in (("rate", 1000), ("velocities", 127)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ConfigError(f"music: {name}={value} is not a whole number from 1 to {most}")

    def velocity(self, loudness: int) -> int:
        """The bin of a loudness of MIDI.

        Example:
            >>> Grid().velocity(1), Grid().velocity(127)
            (0, 31)
        """
        return (loudness - 1) * self.velocities // 127

    def loudness(self, velocity: int) -> int:
        """The loudness of MIDI in the middle of a bin: ``velocity(loudness(b)) == b``."""
        low, above = (-(-b * 127 // self.velocities) for b in (velocity, velocity + 1))
        return 1 + (low + above - 1) // 2


@dataclass(frozen=True, slots=True)
class Note:
    """One note on a grid.

    Attributes:
        start: the step it begins at.
        length: how many steps it sounds, 1 or more.
        pitch: 0 to 127, 60 is middle C; of drums, which one.
        velocity: the bin of its loudness, from 0.
        instrument: of General MIDI, 0 to 127; 128 for drums.
    """

    start: int
    length: int
    pitch: int
    velocity: int = 16
    instrument: int = 0


def order(note: Note) -> tuple[int, ...]:
    """What notes are sorted by: start, instrument, pitch, length, velocity. Equal keys are equal notes."""
    return note.start, note.instrument, note.pitch, note.length, note.velocity


def check(note: Note, grid: Grid) -> None:
    """Hold a note to a grid.

    Raises:
        DataError: names the note.
    """
    whole = all(hasattr(value, "__index__") for value in order(note))
    good = whole and note.start >= 0 and note.length > 0 and note.start + note.length <= SECONDS * grid.rate
    good = good and 0 <= note.pitch < 128 and 0 <= note.velocity < grid.velocities and 0 <= note.instrument <= DRUMS
    if not good:
        raise DataError(
            f"{note} is off the grid: whole numbers, start from 0, length from 1, the end within {SECONDS // 3600} "
            f"hours, pitch 0 to 127, velocity 0 to {grid.velocities - 1}, instrument 0 to {DRUMS}"
        )
