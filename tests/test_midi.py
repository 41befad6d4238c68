"""MIDI files: the notes that symusic reads too, by seconds counted here; whatever is damaged is one line."""

import random
import zipfile
from collections import defaultdict
from fractions import Fraction
from importlib.resources import files

import pytest
import symusic
from hypothesis import given, settings
from hypothesis import strategies as st

from mapsto import midi
from mapsto.errors import ConfigError, DataError, ResourceError
from mapsto.instrument import INSTRUMENTS, KIT, instrument, pitch
from mapsto.midi import midi_file, read_midi, write_midi
from mapsto.note import Grid, Note, order

FINE = Grid(rate=1000, velocities=127)


def pieces():
    with zipfile.ZipFile(files("mapsto.demos").joinpath("freedoom_midi.zip")) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


PIECES = pieces()


def chunk(*events, end=b"\x00\xff\x2f\x00"):
    body = b"".join(events) + end
    return b"MTrk" + len(body).to_bytes(4, "big") + body


def song(*tracks, form=1, beat=100, count=None):
    head = b"".join(n.to_bytes(2, "big") for n in (form, len(tracks) if count is None else count, beat))
    return b"MThd\x00\x00\x00\x06" + head + b"".join(tracks)


def on(delta, pitch, velocity=100, channel=0):
    return bytes((delta, 0x90 | channel, pitch, velocity))


def off(delta, pitch, channel=0):
    return bytes((delta, 0x80 | channel, pitch, 0))


def tempo(delta, microseconds):
    return bytes((delta, 0xFF, 0x51, 3)) + microseconds.to_bytes(3, "big")


NOTES = st.lists(
    st.builds(
        Note, st.integers(0, 400), st.integers(1, 300), st.integers(58, 62), st.integers(0, 31), st.integers(0, 128)
    ),
    max_size=40,
)


@given(NOTES)
@settings(deadline=None, max_examples=200)
def test_a_file_gives_back_every_note_of_the_grid_however_they_overlap(notes):
    assert read_midi(midi_file(notes)) == sorted(notes, key=order)


@pytest.mark.parametrize("count", [1, 15, 16, 129])
def test_more_instruments_than_channels_come_back_too(count):
    notes = [Note(start, 7, 60 + number % 5, 3, number) for number in range(count) for start in (0, 5, 9)]
    assert read_midi(midi_file(notes)) == sorted(notes, key=order)


@pytest.mark.parametrize("name", sorted(PIECES))
def test_real_files_hold_the_notes_that_symusic_finds_within_half_a_step(name):
    content = PIECES[name]
    grid = Grid(rate=100, velocities=127)
    score = symusic.Score.from_midi(content)
    changes = {0: 500_000} | {t.time: t.mspq for t in score.tempos}  # of several at one tick the last holds
    ticks = sorted(changes)

    def seconds(tick):
        spans = zip(ticks, [*ticks[1:], 1 << 60], strict=True)
        time = sum((min(b, tick) - a) * changes[a] for a, b in spans if a < tick)
        return Fraction(time, score.ticks_per_quarter * 1_000_000)

    wanted = defaultdict(list)
    for track in score.tracks:
        for n in track.notes:
            key = 128 if track.is_drum else track.program, n.pitch
            wanted[key].append((seconds(n.time), seconds(n.time + n.duration), n.velocity))
    found = defaultdict(list)
    for n in read_midi(content, grid):
        found[n.instrument, n.pitch].append((n.start, n.start + n.length, grid.loudness(n.velocity)))
    assert wanted.keys() == found.keys()
    for key, notes in wanted.items():
        assert len(notes) == len(found[key])
        for (start, end, loudness), (begin, stop, heard) in zip(sorted(notes), sorted(found[key]), strict=True):
            assert abs(100 * start - begin) <= 0.5
            assert abs(100 * end - stop) <= 0.5 or stop == begin + 1
            assert loudness == heard


@pytest.mark.parametrize("name", sorted(PIECES))
def test_what_is_written_is_read_alike_by_symusic(name):
    notes = read_midi(PIECES[name])
    score = symusic.Score.from_midi(midi_file(notes)).to("second")
    found = sorted(
        (round(100 * n.time), round(100 * n.duration), n.pitch, n.velocity, 128 if track.is_drum else track.program)
        for track in score.tracks
        for n in track.notes
    )
    wanted = sorted((n.start, n.length, n.pitch, Grid().loudness(n.velocity), n.instrument) for n in notes)
    assert found == wanted
    assert read_midi(midi_file(notes)) == notes


def test_tempos_of_any_track_move_all_notes():
    first = chunk(on(50, 60), off(50, 60), on(100, 62), off(0, 62))
    second = chunk(tempo(0, 1_000_000), tempo(75, 500_000), tempo(50, 250_000))
    found = read_midi(song(first, second), FINE)
    # ticks 50, 100, 200 of 100 a beat: 0.5 s; 0.75 + 0.125 s; 0.75 + 0.25 + 0.1875 s
    assert [(n.start, n.length, n.pitch) for n in found] == [(500, 375, 60), (1188, 1, 62)]


def test_an_end_belongs_to_the_oldest_start_of_its_track():
    nested = chunk(on(0, 60, 10), on(10, 60, 20), off(10, 60), off(10, 60))
    other = chunk(on(5, 60, 30), off(35, 60))
    found = read_midi(song(nested, other), FINE)
    assert [(n.start, n.length, FINE.loudness(n.velocity)) for n in found] == [
        (0, 100, 10),
        (25, 175, 30),
        (50, 100, 20),
    ]


def test_running_status_silent_starts_and_everything_else_are_understood():
    track = chunk(
        b"\x00\xff\x59\x02\x7f\x7f",  # a key signature that there is none of
        b"\x00\xf0\x03\x01\x02\xf7",  # a message of a maker
        b"\x00\xc0\x28",
        b"\x00\xe0\x00\x40\x00\xb0\x40\x7f\x00\xd0\x40\x00\xa0\x3c\x40",  # bend, pedal, pressures
        on(0, 60) + bytes((20, 60, 0)) + bytes((0, 64, 90)),  # without a status: an end, a start
        off(20, 64),
        off(20, 99),
        on(0, 70),
        end=b"\x32\xff\x2f\x00",
    )
    for content in (song(track, form=0), song(track) + bytes(57)):
        found = read_midi(content, Grid(rate=200))
        assert [(n.start, n.length, n.pitch, n.instrument) for n in found] == [
            (0, 20, 60, 40),
            (20, 20, 64, 40),
            (60, 50, 70, 40),  # never ended: to the end of its track
        ]


def test_parts_of_other_kinds_and_longer_headers_are_passed_over():
    plain = song(chunk(on(0, 60), off(50, 60)))
    longer = plain[:7] + b"\x08" + plain[8:14] + b"\x00\x00" + b"Xtra\x00\x00\x00\x02ab" + plain[14:]
    assert read_midi(longer) == read_midi(plain) != []


def test_channel_ten_holds_drums():
    found = read_midi(song(chunk(bytes((0, 0xC9, 5)), on(0, 38, channel=9), off(9, 38, channel=9))))
    assert [n.instrument for n in found] == [128]


BAD = [
    (b"", "begin with MThd"),
    (b"RIFF" + bytes(60), "begin with MThd"),
    (b"MThd\x00\x00\x00\x06", "header is cut off"),
    (b"MThd\xff\xff\xff\xff" + bytes(20), "header is said to have"),
    (song(chunk(), form=2), "format 2"),
    (song(chunk(), chunk(), form=0), "format 0 of 2 tracks"),
    (song(chunk(), beat=0), "a beat of no ticks"),
    (song(chunk(), beat=0xE728), "frames of film"),
    (song(chunk(), count=2), "1 tracks where the header says 2"),
    (song(chunk(), chunk(), count=1), "2 tracks where the header says 1"),
    (song(chunk())[:-2], "byte 14: the part that begins here is cut off"),
    (song(chunk()) + b"\x00\x01\x02", "is cut off"),
    (song(chunk()) + b"\x00\x01\x02\x03\x00\x00\x00\x00", "no track begins here"),
    (song(chunk(end=b"")), "byte 22: a track is cut off, or does not say where it ends"),
    (song(chunk(on(0, 60), end=b"")), "does not say where it ends"),
    (song(chunk(end=b"\x00\x90\x3c")), "is cut off"),
    (song(chunk(end=b"\x00\xff\x2f\x00\x00")), "bytes after the end"),
    (song(chunk(end=b"\x00\xff\x2f\x01\x00")), "bytes after the end"),
    (song(chunk(b"\x00\x3c\x40")), "byte 23: an event without a status"),
    (song(chunk(on(0, 60), b"\x00\xf0\x00", b"\x00\x3c\x40")), "without a status"),
    (song(chunk(b"\x00\x90\x80\x40")), "below 128"),
    (song(chunk(b"\x00\xf8")), "status F8 has no place"),
    (song(chunk(b"\x81\x81\x81\x81\x00\x90\x3c\x40")), "more than four bytes"),
    (song(chunk(b"\x00\xff\x01\xff\xff\xff\x7f")), "is cut off"),
    (song(chunk(b"\x00\xff\x51\x02\x01\x01")), "a tempo of 2 bytes"),
    (song(chunk(tempo(0, 0))), "a tempo of 3 bytes and value 0"),
    (song(chunk(on(0, 60), b"\xff\xff\xff\x7f\x80\x3c\x00"), beat=1), "longer than 24 hours"),
    (song(chunk(on(0, 60), *[b"\xff\xff\xff\x7f\xff\x01\x00"] * 50), beat=1), "longer than 24 hours"),
]


@pytest.mark.parametrize(("content", "reason"), BAD)
def test_a_malformed_file_is_one_line_with_the_reason(content, reason, tmp_path):
    path = tmp_path / "bad.mid"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_midi(path)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert str(caught.value).isprintable()
    with pytest.raises(DataError, match=f"a value of {len(content)} bytes"):
        read_midi(content)


def test_a_file_that_asks_for_more_than_its_size_explains_is_refused(monkeypatch, tmp_path):
    with pytest.raises(DataError, match="longer than 16 MiB"):
        read_midi(bytes((16 << 20) + 1))
    many = song(chunk(on(0, 60), bytes((0, 60, 64)) * 999, off(0, 60)))
    assert len(read_midi(many)) == 1000
    monkeypatch.setattr(midi, "EVENTS", 1000)
    with pytest.raises(DataError, match="more than 1,000 notes and changes"):
        read_midi(many)
    with pytest.raises(DataError, match="there is no file"):
        read_midi(tmp_path / "none.mid")
    with pytest.raises(DataError, match="cannot be read"):
        read_midi(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        read_midi("a\0.mid")


def damaged():
    draw = random.Random(0)
    for content in PIECES.values():
        for _ in range(12):
            changed = bytearray(content)
            for _ in range(draw.choice((1, 1, 3))):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            yield bytes(changed)
        for _ in range(6):
            yield content[: draw.randrange(len(content))]
        at = draw.randrange(len(content))
        yield content[:at] + draw.randbytes(3) + content[at:]
        yield content[:at] + content[at + 5 :]


def test_damaged_files_give_notes_or_one_line_never_anything_else():
    refused = 0
    for content in damaged():
        try:
            notes = read_midi(content)
        except DataError as error:
            refused += 1
            assert str(error).isprintable()  # noqa: PT017
            continue
        assert read_midi(midi_file(notes)) == notes
    assert refused > 150


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=300)
def test_any_bytes_in_a_track_give_notes_or_one_line(body):
    try:
        notes = read_midi(song(chunk(body)))
    except DataError:
        return
    assert read_midi(midi_file(notes)) == notes


def test_every_file_that_is_cut_off_is_refused():
    content = midi_file([Note(0, 10, 60), Note(5, 10, 64, instrument=128)])
    assert len(read_midi(content)) == 2
    for end in range(len(content)):
        with pytest.raises(DataError):
            read_midi(content[:end])


def test_a_bin_of_loudness_sounds_as_one_of_its_own():
    for velocities in range(1, 128):
        grid = Grid(velocities=velocities)
        bins = [grid.velocity(v) for v in range(1, 128)]
        assert sorted(set(bins)) == list(range(velocities))
        assert bins == sorted(bins)
        assert all(grid.velocity(grid.loudness(b)) == b for b in range(velocities))
        sizes = [bins.count(b) for b in range(velocities)]
        assert max(sizes) - min(sizes) <= 1
    assert [Grid(velocities=127).loudness(b) for b in range(127)] == list(range(1, 128))


@pytest.mark.parametrize("given", [{"rate": 0}, {"rate": 1001}, {"rate": True}, {"velocities": 128}, {"rate": 1.5}])
def test_a_grid_out_of_bounds_is_refused(given):
    with pytest.raises(ConfigError, match=r"is not a whole number from 1 to"):
        Grid(**given)


@pytest.mark.parametrize(
    "note",
    [
        Note(-1, 1, 60),
        Note(0.5, 1, 60),
        Note(0, 0, 60),
        Note(0, 1, 128),
        Note(0, 1, 60, 32),
        Note(0, 1, 60, 0, 129),
        Note(0, 24 * 360_000 + 1, 60),
    ],
)
def test_a_note_off_the_grid_is_not_written(note):
    with pytest.raises(DataError, match="is off the grid"):
        midi_file([note])


def test_files_are_written_and_read(tmp_path):
    notes = [Note(0, 24 * 360_000, 60), Note(3, 4, 61)]
    write_midi(tmp_path / "a.mid", notes)
    assert read_midi(tmp_path / "a.mid") == read_midi(str(tmp_path / "a.mid")) == notes
    with pytest.raises(ResourceError, match="cannot be written"):
        write_midi(tmp_path / "none" / "a.mid", notes)


def test_instruments_and_drums_have_the_names_of_general_midi():
    assert len(INSTRUMENTS) == 129
    assert len(KIT) == 81 - 35 + 1
    assert [instrument(i) for i in (0, 24, 40, 56, 73, 127)] == [
        "acoustic grand piano",
        "nylon guitar",
        "violin",
        "trumpet",
        "flute",
        "gunshot",
    ]
    assert [pitch(p, drum=True) for p in (34, 35, 49, 81, 82)] == [
        "drum 34",
        "acoustic bass drum",
        "crash cymbal 1",
        "open triangle",
        "drum 82",
    ]
    assert [pitch(p) for p in (0, 21, 69, 127)] == ["C-1", "A0", "A4", "G9"]
