"""Music as a sequence of events: a vocabulary of notes. No torch.

The events follow the Music Transformer and its Performance RNN but in one: a note says how long it sounds, there is no
event for its end. An end would have to be matched to its start, which cannot be done where two notes of one pitch and
instrument overlap; with durations every set of notes has its sequence, and a sequence that was sampled has no note
that never ends.

Reference: Huang et al., Music Transformer, ICLR 2019; Oore et al., This time with feeling, 2018 (Performance RNN).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mapsto.errors import ConfigError, DataError, ModelFileError
from mapsto.instrument import DRUMS, instrument, pitch
from mapsto.midi import read_midi
from mapsto.note import SECONDS, Grid, Note, check, order
from mapsto.vocabulary import MARKS, SPECIAL, Vocabulary

__all__ = ["Grid", "Music", "Note", "learn", "restore"]

MOST = 1 << 22  # events of one piece

Event = Literal["special", "wait", "note", "length", "velocity", "instrument"]


class Music(Vocabulary):
    """Notes as events: ``decode(encode(notes)) == sorted(notes, key=order)``, whatever the notes.

    A piece starts at time 0, with instrument 0 and the bin of velocity in the middle. Its notes come by start,
    instrument, pitch, length and velocity, each as

    - *wait* k, if time has passed since the note before it: 1 to ``shift`` steps; longer waits are several of them,
    - *instrument* i and *velocity* v, if they are others than those of the note before it,
    - *note* p, its pitch (of drums, which drum),
    - *length* k: 1 to ``length`` steps; longer ones are several of them, which add up.

    Every sequence of ids can be decoded: an id of no event, a length that neither follows a note nor a note's length, a
    note without a length and what lies beyond 24 hours are left out.

    Args:
        rate: steps a second; tempo is in the times and has no events.
        velocities: bins of loudness, see :class:`~mapsto.note.Grid`.
        shift: the longest wait that is one event, in steps.
        length: the longest length that is one event, in steps.

    Raises:
        ConfigError: a setting out of its bounds.

    Example:
        >>> music = Music()
        >>> ids = music.encode([Note(0, 50, 60), Note(150, 25, 64)])
        >>> music.names(ids)
        ['note C4', 'length 0.5 s', 'wait 1 s', 'wait 0.5 s', 'note E4', 'length 0.25 s']
        >>> music.decode(ids[:5])
        [Note(start=0, length=50, pitch=60, velocity=16, instrument=0)]
    """

    kind = "music"

    def __init__(self, *, rate: int = 100, velocities: int = 32, shift: int = 100, length: int = 100):
        for name, value in (("shift", shift), ("length", length)):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10_000:
                raise ConfigError(f"music: {name}={value} is not a whole number from 1 to 10000")
        self.grid, self.shift, self.length = Grid(rate, velocities), shift, length
        self._wait = SPECIAL
        self._note = self._wait + shift
        self._length = self._note + 128
        self._velocity = self._length + length
        self._instrument = self._velocity + velocities

    @property
    def size(self) -> int:
        """3 + shift + 128 pitches + length + velocities + 129 instruments."""
        return self._instrument + DRUMS + 1

    def encode(self, text: Sequence[Note] | bytes | str | Path) -> NDArray[np.int32]:
        """The events of notes, of the bytes of a MIDI file, or of such a file.

        Raises:
            DataError: a note off the grid, a malformed file, or more than 2²² events.
        """
        notes = read_midi(text, self.grid) if isinstance(text, bytes | str | Path) else sorted(text, key=order)
        ids: list[int] = []
        now, velocity, played = 0, self.grid.velocities // 2, 0
        for note in notes:
            check(note, self.grid)
            ids += self._several(note.start - now, self._wait, self.shift)
            if note.instrument != played:
                ids.append(self._instrument + note.instrument)
            if note.velocity != velocity:
                ids.append(self._velocity + note.velocity)
            ids.append(self._note + note.pitch)
            ids += self._several(note.length, self._length, self.length)
            now, velocity, played = note.start, note.velocity, note.instrument
            if len(ids) > MOST:
                raise DataError(f"a piece of more than {MOST:,} events, at its {now / self.grid.rate:.0f}th second")
        return np.array(ids, np.int32)

    def _several(self, steps: int, first: int, most: int) -> list[int]:
        whole, rest = divmod(steps, most)
        return [first + most - 1] * whole + ([first + rest - 1] if rest else [])

    def decode(self, ids: Iterable[int]) -> list[Note]:
        """The notes of ids in any order; see the class for what is left out."""
        notes: list[Note] = []
        now, velocity, played, sounding, length = 0, self.grid.velocities // 2, 0, -1, 0
        end = SECONDS * self.grid.rate

        def close() -> None:
            if length and now < end:
                notes.append(Note(now, min(length, end - now), sounding, velocity, played))

        for event, value in self._events(ids):
            if event == "special":
                continue
            if event == "length":
                length += value if sounding >= 0 else 0
                continue
            close()
            sounding, length = -1, 0
            match event:
                case "wait":
                    now += value
                case "note":
                    sounding = value
                case "velocity":
                    velocity = value
                case "instrument":
                    played = value
        close()
        return sorted(notes, key=order)

    def steps(self, ids: Iterable[int]) -> int:
        """How many steps have passed when the last of some events comes."""
        return sum(value for event, value in self._events(ids) if event == "wait")

    def names(self, ids: Iterable[int]) -> list[str]:
        """Such as ``note C4``, ``wait 0.12 s``, ``violin``; while the instrument is drums, the drum that a note is."""
        found, drum = [], False
        for event, value in self._events(ids):
            match event:
                case "special":
                    found.append(MARKS[value])
                case "wait" | "length":
                    found.append(f"{event} {value / self.grid.rate:g} s")
                case "note":
                    found.append(pitch(value, drum=True) if drum else f"note {pitch(value)}")
                case "velocity":
                    found.append(f"velocity {self.grid.loudness(value)}")
                case "instrument":
                    drum = value == DRUMS
                    found.append(instrument(value))
        return found

    def _events(self, ids: Iterable[int]) -> Iterator[tuple[Event, int]]:
        """What each id says, and the value: steps, a pitch, a bin, an instrument; an id of no event is unknown."""
        for i in map(int, ids):
            if i < self._wait or i >= self.size:
                yield "special", i if 0 <= i < SPECIAL else 0
            elif i < self._note:
                yield "wait", i - self._wait + 1
            elif i < self._length:
                yield "note", i - self._note
            elif i < self._velocity:
                yield "length", i - self._length + 1
            elif i < self._instrument:
                yield "velocity", i - self._velocity
            else:
                yield "instrument", i - self._instrument

    def dump(self) -> bytes:
        """The settings."""
        settings = {"rate": self.grid.rate, "velocities": self.grid.velocities}
        return json.dumps({"kind": self.kind, **settings, "shift": self.shift, "length": self.length}).encode()


def learn() -> Music:
    """The vocabulary of any music: nothing has to be learned."""
    return Music()


def restore(content: bytes) -> Music:
    """Read what :meth:`Music.dump` wrote, byte for byte.

    Raises:
        ModelFileError: it is anything else.
    """
    try:
        settings: dict[str, Any] = json.loads(content[:1000])
        settings.pop("kind")
        made = Music(**settings)
        if made.dump() == content:
            return made
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, ConfigError):
        pass
    raise ModelFileError("vocabulary: the file holds no music vocabulary")
