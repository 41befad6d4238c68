"""The piano roll shows every note where it sounds."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from PIL import Image

from mapsto.midi import read_midi
from mapsto.note import Grid, Note
from mapsto.tasks.demo import pieces
from mapsto.tasks.pictures.roll import KIT, roll
from mapsto.tasks.pictures.style import png

PIECE = [Note(0, 50, 60), Note(50, 100, 64, 31, 40), Note(100, 20, 38, 5, 128), Note(120, 20, 42, 5, 128)]


def bars(axes):
    found = [p.vertices for c in axes.collections if isinstance(c, PolyCollection) for p in c.get_paths()]
    return sorted((float(v[:, 0].min()), float(v[:, 0].max()), float(v[:, 1].min() + v[:, 1].max()) / 2) for v in found)


def test_bars_start_where_notes_do_and_end_a_hair_before():
    tones, drums = roll(PIECE).axes
    assert [(a, y) for a, _, y in bars(tones)] == [(0.0, 60.0), (0.5, 64.0)]
    assert [b for _, b, _ in bars(tones)] == pytest.approx([0.5, 1.5], abs=0.01)
    assert [(a, y) for a, _, y in bars(drums)] == [(1.0, 0.0), (1.2, 1.0)]
    assert [t.get_text() for t in drums.get_yticklabels()] == ["acoustic snare", "closed hi-hat"]
    assert [t.get_text() for t in tones.get_legend().get_texts()] == ["violin", "acoustic grand piano"]
    assert tones.get_xlim() == (0.0, 1.5)


def test_seconds_are_those_of_the_grid():
    (axes,) = roll([Note(10, 10, 60)], Grid(rate=10)).axes
    assert bars(axes)[0][0] == 1.0


def test_what_was_given_ends_at_a_line():
    drawn = roll(PIECE, given=0.75)
    assert all([0.75, 0.75] in [list(line.get_xdata()) for line in axes.lines] for axes in drawn.axes)
    assert any("written by the model" in text.get_text() for text in drawn.axes[0].texts)
    assert not roll(PIECE).axes[0].lines


def test_many_instruments_and_drums_share_what_is_left():
    notes = [Note(10 * i, 5 + i, 40 + i, 9, i) for i in range(12)] + [Note(i, 5, 35 + i, 9, 128) for i in range(20)]
    tones, drums = roll(notes).axes
    assert [t.get_text() for t in tones.get_legend().get_texts()][-1] == "5 more"
    assert len(drums.get_yticks()) == KIT + 1
    assert drums.get_yticklabels()[-1].get_text() == "other drums"
    assert len(bars(tones)) == 12
    assert len(bars(drums)) == 20


@pytest.mark.parametrize(
    "notes", [[], [Note(0, 1, 0)], [Note(0, 1, 127)], [Note(0, 9, 40, 9, 128)], read_midi(pieces()["music"][14])]
)
def test_every_piece_gives_a_picture(notes):
    pixels = np.asarray(Image.open(BytesIO(png(roll(notes, title="a $x_1$ \x07")))))
    assert pixels.shape[1] == 1152
    assert pixels[..., :3].std() > 1
