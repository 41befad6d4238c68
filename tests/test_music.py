"""Notes as events and back: nothing that the grid holds is lost, and every sequence of ids has its notes."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapsto import music
from mapsto.errors import ConfigError, DataError, ModelFileError
from mapsto.midi import midi_file, read_midi
from mapsto.music import Music
from mapsto.note import Grid, Note, order
from mapsto.tasks.demo import pieces
from mapsto.vocabulary import BEGIN, END, UNKNOWN, restore

SMALL = Music(rate=10, velocities=3, shift=4, length=3)


def notes(velocities=32):
    one = st.builds(
        Note,
        st.integers(0, 700),
        st.integers(1, 500),
        st.integers(0, 127),
        st.integers(0, velocities - 1),
        st.sampled_from([0, 0, 5, 127, 128]),
    )
    return st.lists(one, max_size=30)


@given(notes(), st.booleans())
@settings(deadline=None, max_examples=200)
def test_notes_come_back_from_their_events(found, doubled):
    found = found * 2 if doubled else found
    vocabulary = Music()
    ids = vocabulary.encode(found)
    assert vocabulary.decode(ids) == sorted(found, key=order)
    assert vocabulary.encode(vocabulary.decode(ids)).tolist() == ids.tolist()
    assert ids.dtype == np.int32
    assert not len(ids) or 3 <= ids.min() <= ids.max() < vocabulary.size


@given(notes(velocities=3))
@settings(deadline=None, max_examples=100)
def test_long_waits_and_lengths_are_several_events(found):
    assert SMALL.decode(SMALL.encode(found)) == sorted(found, key=order)


@given(st.lists(st.integers(-5, SMALL.size + 5), max_size=80))
@settings(deadline=None, max_examples=300)
def test_every_sequence_of_ids_has_notes_that_the_grid_holds(ids):
    found = SMALL.decode(ids)
    assert SMALL.decode(SMALL.encode(found)) == found
    assert read_midi(midi_file(found, SMALL.grid), SMALL.grid) == found
    assert len(SMALL.names(ids)) == len(ids)


def read(vocabulary, ids):
    """The same rules, by a dictionary of what is said: an independent reading of the docstring."""
    names = {i: vocabulary.names([i])[0].split() for i in range(3, vocabulary.size - 129)}
    time, velocity, played, found, last = 0, vocabulary.grid.velocities // 2, 0, [], None
    for i in ids:
        if i < 3 or i >= vocabulary.size:
            continue
        if i >= vocabulary.size - 129:
            played, last = i - (vocabulary.size - 129), None
            continue
        kind, value = names[i][:2]
        steps = round(float(value) * vocabulary.grid.rate) if kind in ("wait", "length") else 0
        if kind == "length":
            if last is not None:
                last["length"] += steps
            continue
        last = None
        if kind == "wait":
            time += steps
        elif kind == "velocity":
            velocity = vocabulary.grid.velocity(int(value))
        else:
            note = i - 3 - vocabulary.shift
            last = {"start": time, "length": 0, "pitch": note, "velocity": velocity, "instrument": played}
            found.append(last)
    return sorted((Note(**n) for n in found if n["length"]), key=order)


@given(st.lists(st.integers(0, SMALL.size - 1), max_size=60))
@settings(deadline=None, max_examples=200)
def test_the_rules_for_ill_formed_sequences_are_those_of_the_docstring(ids):
    assert SMALL.decode(ids) == read(SMALL, ids)


def test_what_is_ill_formed_is_left_out():
    vocabulary = Music()
    good = vocabulary.encode([Note(10, 5, 60), Note(10, 7, 64)]).tolist()
    wait, first, short, second, longer = good
    decode = vocabulary.decode
    assert decode([short, *good, END]) == decode(good)  # a length before any note
    assert decode([BEGIN, wait, first, UNKNOWN, short, second, longer, 10**9, -4]) == decode(good)  # ids of no event
    assert decode([wait, first, second, longer]) == [Note(10, 7, 64)]  # a note without a length
    assert decode([wait, first, short, wait, longer]) == [Note(10, 5, 60)]  # a length after a wait
    assert decode([first]) == decode([]) == []
    assert decode([first, short, short]) == [Note(0, 10, 60)]


def test_what_lies_beyond_a_day_is_left_out():
    vocabulary = Music(rate=1, shift=10_000, length=10_000)
    wait, note, length = 3 + 9_999, 3 + 10_000 + 60, 3 + 10_000 + 128 + 9_999
    found = vocabulary.decode([*[wait] * 8, note, length, wait, note, length])
    assert found == [Note(80_000, 6_400, 60)]
    assert vocabulary.decode(vocabulary.encode(found)) == found


def test_names_say_what_happens():
    vocabulary = Music()
    ids = vocabulary.encode([Note(0, 150, 61, 31, 40), Note(12, 5, 38, 31, 128), Note(12, 5, 3, 31, 128)])
    assert vocabulary.names([BEGIN, *ids, 10**6]) == [
        "<begin>",
        "violin",
        "velocity 126",
        "note C#4",
        "length 1 s",
        "length 0.5 s",
        "wait 0.12 s",
        "drums",
        "drum 3",
        "length 0.05 s",
        "acoustic snare",
        "length 0.05 s",
        "<unknown>",
    ]


def test_files_and_their_bytes_are_encoded_alike(tmp_path):
    content = pieces()["music"][0]
    (tmp_path / "a.mid").write_bytes(content)
    ids = Music().encode(content)
    assert ids.tolist() == Music().encode(tmp_path / "a.mid").tolist() == Music().encode(read_midi(content)).tolist()


@pytest.mark.parametrize("make", [Music, partial(Music, rate=50, velocities=127, shift=25, length=300)])
def test_real_pieces_come_back_on_the_grid(make):
    vocabulary = make()
    for content in pieces()["music"]:
        found = read_midi(content, vocabulary.grid)
        ids = vocabulary.encode(content)
        assert vocabulary.decode(ids) == found
        assert len(ids) < 6 * len(found)
        assert read_midi(midi_file(vocabulary.decode(ids), vocabulary.grid), vocabulary.grid) == found


def test_a_music_vocabulary_comes_back_from_its_file():
    made = Music(rate=20, velocities=5, shift=7, length=9)
    again = restore("music", made.dump())
    assert isinstance(again, Music)
    assert again.dump() == made.dump()
    assert again.size == made.size == 3 + 7 + 128 + 9 + 5 + 129
    assert again.grid == Grid(20, 5)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"kind": "music"}',
        Music().dump() + b" ",
        Music().dump().replace(b"100", b"0", 1),
        Music().dump().replace(b"100", b"true", 1),
        Music().dump().replace(b"rate", b"eval"),
        b"[" * 5000,
        b'{"kind": "music", "rate": ' + b"9" * 5000,
    ],
)
def test_a_damaged_music_vocabulary_is_refused(content):
    with pytest.raises(ModelFileError, match="holds no music vocabulary"):
        restore("music", content)


def test_settings_out_of_bounds_and_notes_off_the_grid_are_refused(monkeypatch):
    for given_ in ({"shift": 0}, {"length": 10_001}, {"rate": 0}, {"velocities": 128}, {"length": 1.0}):
        with pytest.raises(ConfigError, match="is not a whole number from 1 to"):
            Music(**given_)
    with pytest.raises(DataError, match="is off the grid"):
        SMALL.encode([Note(0, 1, 60, 3)])
    monkeypatch.setattr(music, "MOST", 100)
    with pytest.raises(DataError, match="a piece of more than 100 events"):
        Music(length=1).encode([Note(0, 101, 60)])


def test_texts_need_no_music_and_music_no_torch():
    code = (
        "import sys, mapsto.vocabulary as v; assert 'mapsto.midi' not in sys.modules; "
        "v.restore('music', v.json.dumps({'kind': 'music', 'rate': 9, 'velocities': 9, 'shift': 9, 'length': 9}).encode()); "
        "assert 'mapsto.midi' in sys.modules and not {'torch', 'symusic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=True)
