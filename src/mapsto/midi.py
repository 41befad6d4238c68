"""Standard MIDI files as notes on a grid, and notes as such files. No torch.

The reader is our own and strict: a file gives the notes that it holds, or one :class:`~mapsto.errors.DataError` that
says at which byte it is not what the standard asks for. It looks at every byte with Python's own bounds checks, so
that no file can crash the process.

Reference: The Complete MIDI 1.0 Detailed Specification, Standard MIDI Files 1.0 (RP-001).
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from mapsto.errors import DataError, ResourceError
from mapsto.instrument import DRUMS, instrument
from mapsto.note import SECONDS, Grid, Note, check, order

__all__ = ["midi_file", "read_midi", "write_midi"]

BYTES = 16 << 20
EVENTS = 1 << 20  # of a file that are kept: starts and ends of notes, changes of instrument and tempo
DRUM_CHANNEL = 9
MELODIC = tuple(c for c in range(16) if c != DRUM_CHANNEL)
TEMPO = 500_000  # microseconds a beat where a file does not say
MOST_TRACKS = 65_535


class Malformed(Exception):
    """What is wrong, and at which byte."""


class Event(NamedTuple):
    tick: int
    track: int
    status: int  # a channel message, or 0 for a tempo
    first: int
    second: int


def read_midi(source: str | Path | bytes, grid: Grid | None = None) -> list[Note]:
    """The notes of a Standard MIDI file of format 0 or 1, in the :func:`order` of starts.

    All tempo changes are applied: a note starts at round(seconds · rate). In each track the end of a pitch on a channel
    ends the note of them that started first; what is never ended sounds until the end of its track; an end without a
    start is passed over, as are pedals, bends and all else but programs and tempos. The program of a channel is the
    last one that any track has set. Channel 10 holds drums.

    Args:
        source: a path, or the bytes of a file.
        grid: of time and loudness.

    Raises:
        DataError: no such file, or not such a file: the byte and the reason; more than 16 MiB, 2²⁰ events or 24 hours.
    """
    grid = grid or Grid()
    name = f"a value of {len(source):,} bytes" if isinstance(source, bytes) else str(source)
    data = source if isinstance(source, bytes) else _load(Path(source))
    try:
        if len(data) > BYTES:
            raise Malformed(f"is longer than {BYTES >> 20} MiB")
        beat, events = _file(data)
        return sorted(_notes(events, _Clock(events, beat, grid.rate), grid), key=order)
    except Malformed as error:
        raise DataError(f"{name} is no MIDI file that can be read: {error}") from None


def _load(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None


def _file(data: bytes) -> tuple[int, list[Event]]:
    """Ticks a beat, and the events of all tracks in the order in which they happen."""
    if data[:4] != b"MThd":
        raise Malformed("it does not begin with MThd")
    if len(data) < 14:
        raise Malformed("its header is cut off")
    size, form, count, division = (int.from_bytes(data[a:b], "big") for a, b in ((4, 8), (8, 10), (10, 12), (12, 14)))
    if size < 6 or 8 + size > len(data):
        raise Malformed(f"its header is said to have {size:,} bytes")
    if form not in (0, 1) or (form == 0 and count != 1):
        raise Malformed(f"format {form} of {count} tracks, expected format 0 of one track, or 1")
    if not 0 < division < 0x8000:
        raise Malformed("times in frames of film are not read" if division else "a beat of no ticks")
    events: list[Event] = []
    at, track = 8 + size, 0
    while at < len(data):
        if track == count and not data[at] and not any(data[at:]):
            break  # filled up with zeros
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        if at + 8 > len(data) or end > len(data):
            raise Malformed(f"byte {at:,}: the part that begins here is cut off")
        if not data[at : at + 4].isalnum():
            raise Malformed(f"byte {at:,}: no track begins here")
        if data[at : at + 4] == b"MTrk":
            for event in _track(data, at + 8, end, track):
                events.append(event)
                if len(events) > EVENTS:
                    raise Malformed(f"more than {EVENTS:,} notes and changes")
            track += 1
        at = end
    if track != count:
        raise Malformed(f"{track} tracks where the header says {count}")
    events.sort(key=itemgetter(0))  # stable: at one tick in the order of tracks
    return division, events


def _track(data: bytes, begin: int, end: int, track: int) -> Iterator[Event]:
    """The notes, programs and tempos of one track, and at last its end as the status 0xFF."""
    view = data[begin:end]  # reading over its end is an IndexError
    at = tick = running = 0
    try:
        while True:
            delta, at = _number(view, at)
            tick += delta
            status = view[at]
            if status >= 0x80:
                at += 1
            elif running:
                status = running
            else:
                raise Malformed("an event without a status")
            if status < 0xF0:
                running, size = status, 1 if 0xC0 <= status < 0xE0 else 2
                first, second = view[at], view[at + size - 1]
                if (first | second) >= 0x80:
                    raise Malformed("a status where a number below 128 must stand")
                at += size
                if status < 0xA0 or status >> 4 == 0xC:
                    yield Event(tick, track, status, first, second)
            elif status in (0xF0, 0xF7):
                size, at = _number(view, at)
                at, running = at + size, 0
            elif status == 0xFF:
                kind = view[at]
                size, at = _number(view, at + 1)
                if kind == 0x51:
                    tempo = int.from_bytes(view[at : at + 3], "big")
                    if size != 3 or not tempo:
                        raise Malformed(f"a tempo of {size} bytes and value {tempo}")
                    yield Event(tick, track, 0, tempo, 0)
                at += size
                if kind == 0x2F:
                    if size or at != len(view):
                        raise Malformed("bytes after the end of a track")
                    yield Event(tick, track, status, 0, 0)
                    return
            else:
                raise Malformed(f"status {status:02X} has no place in a file")
    except IndexError:
        raise Malformed(f"byte {end:,}: a track is cut off, or does not say where it ends") from None
    except Malformed as error:
        raise Malformed(f"byte {begin + at:,}: {error}") from None


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, at most four bytes of seven bits, and where it ends."""
    value = 0
    for place in range(at, at + 4):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    raise Malformed("a number of more than four bytes")


class _Clock:
    """Ticks to steps, exactly, through all changes of tempo."""

    def __init__(self, events: list[Event], beat: int, rate: int):
        self.rate, self.second = rate, beat * 1_000_000  # a second, in ticks times microseconds a beat
        self.ticks, self.tempos, self.sums = [0], [TEMPO], [0]
        for event in events:
            if event.status == 0:
                self.sums.append(self.sums[-1] + (event.tick - self.ticks[-1]) * self.tempos[-1])
                self.ticks.append(event.tick)
                self.tempos.append(event.first)

    def step(self, tick: int) -> int:
        i = bisect_right(self.ticks, tick) - 1
        time = self.sums[i] + (tick - self.ticks[i]) * self.tempos[i]
        if time > SECONDS * self.second:
            raise Malformed(f"it lasts longer than {SECONDS // 3600} hours")
        return (2 * time * self.rate + self.second) // (2 * self.second)


def _notes(events: list[Event], clock: _Clock, grid: Grid) -> Iterator[Note]:
    programs = [0] * 16
    sounding: dict[int, dict[tuple[int, int], deque[tuple[int, int, int]]]] = defaultdict(lambda: defaultdict(deque))

    def note(start: int, end: int, key: tuple[int, int], velocity: int, played: int) -> Note:
        begin = clock.step(start)
        return Note(begin, max(1, clock.step(end) - begin), key[1], velocity, played)

    for tick, track, status, first, second in events:
        channel, key = status & 15, (status & 15, first)
        match status >> 4:
            case 0x9 if second:
                played = DRUMS if channel == DRUM_CHANNEL else programs[channel]
                sounding[track][key].append((tick, grid.velocity(second), played))
            case 0x8 | 0x9:
                if sounding[track][key]:
                    start, velocity, played = sounding[track][key].popleft()
                    yield note(start, tick, key, velocity, played)
            case 0xC:
                programs[channel] = first
            case 0xF:
                for left, notes in sounding.pop(track, {}).items():
                    for start, velocity, played in notes:
                        yield note(start, tick, left, velocity, played)


def midi_file(notes: Iterable[Note], grid: Grid | None = None) -> bytes:
    """Notes as a Standard MIDI file of format 1, which :func:`read_midi` reads as the same notes.

    A tick is a step: a beat is a second of ``grid.rate`` ticks. Each instrument has its tracks: a note that would end
    before one of its pitch that began earlier goes to a further one, so that every end belongs to the right start. Each
    has a channel too; of more than 15 some share one, and say before each note which of them plays.

    Raises:
        DataError: a note that is off the grid, or a piece longer than 24 hours.
    """
    grid = grid or Grid()
    voices: dict[int, list[tuple[dict[int, int], list[Note]]]] = {}
    for note in sorted(notes, key=lambda n: (n.start, n.start + n.length)):
        check(note, grid)
        end, tracks = note.start + note.length, voices.setdefault(note.instrument, [])
        place = next((i for i, (last, _) in enumerate(tracks) if last.get(note.pitch, 0) <= end), len(tracks))
        if place == len(tracks):
            tracks.append(({}, []))
        tracks[place][0][note.pitch] = end
        tracks[place][1].append(note)
    melodic = [i for i in sorted(voices) if i != DRUMS]
    channels = {DRUMS: DRUM_CHANNEL} | {i: MELODIC[k % len(MELODIC)] for k, i in enumerate(melodic)}
    used = [channels[i] for i in melodic]
    chunks = [_chunk([(0, b"\xff\x51\x03" + (1_000_000).to_bytes(3, "big"))])]
    for number in sorted(voices):
        channel = channels[number]
        for _, held in voices[number]:
            chunks.append(_chunk(_messages(held, number, channel, grid, shared=used.count(channel) > 1)))
    if len(chunks) > MOST_TRACKS:
        raise DataError(f"{len(chunks):,} tracks are more than a MIDI file can hold ({MOST_TRACKS:,})")
    header = (6, 4), (1, 2), (len(chunks), 2), (grid.rate, 2)
    return b"MThd" + b"".join(value.to_bytes(size, "big") for value, size in header) + b"".join(chunks)


def _messages(notes: list[Note], number: int, channel: int, grid: Grid, *, shared: bool) -> list[tuple[int, bytes]]:
    name = instrument(number).encode()
    found: list[tuple[int, bytes]] = [(0, b"\xff\x03" + _length(len(name)) + name)]
    program = b"" if number == DRUMS else bytes((0xC0 | channel, number))
    if program and not shared:
        found.append((0, program))
    for note in notes:
        found.append((note.start + note.length, bytes((0x80 | channel, note.pitch, 64))))
    starts = []
    for note in notes:
        if program and shared:
            starts.append((note.start, program))
        starts.append((note.start, bytes((0x90 | channel, note.pitch, grid.loudness(note.velocity)))))
    return sorted(found + starts, key=itemgetter(0))  # stable: at one tick ends come before starts


def _chunk(messages: list[tuple[int, bytes]]) -> bytes:
    parts, now = [], 0
    for tick, message in messages:
        parts.append(_length(tick - now) + message)
        now = tick
    body = b"".join(parts) + b"\x00\xff\x2f\x00"
    return b"MTrk" + len(body).to_bytes(4, "big") + body


def _length(value: int) -> bytes:
    """A number of variable length."""
    septets = [value & 0x7F]
    while value := value >> 7:
        septets.append(value & 0x7F | 0x80)
    return bytes(reversed(septets))


def write_midi(path: str | Path, notes: Iterable[Note], grid: Grid | None = None) -> None:
    """Write notes to a file; see :func:`midi_file`.

    Raises:
        DataError: a note off the grid.
        ResourceError: the file may not be written.
    """
    content = midi_file(notes, grid)
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written ({error.strerror or error})") from None
