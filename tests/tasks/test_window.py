"""Windows of long texts."""

import numpy as np
import pytest
import torch

from mapsto.data.store import Store
from mapsto.inputs.sequence import SequenceInput
from mapsto.models.mapper import Mapper
from mapsto.nn.pool import MeanPool
from mapsto.nn.transformer import Encoder, Prior
from mapsto.outputs.sequence import SequenceOutput
from mapsto.outputs.vector import VectorOutput
from mapsto.ragged import Ragged
from mapsto.tasks.feed import StoreFeed
from mapsto.tasks.score import answer
from mapsto.tasks.window import WindowFeed, make_feed
from mapsto.vocabulary import BEGIN, Bytes


def feed(lengths, width, *, texts=None, seed=0, tokens=64):
    """A feed of texts of these lengths, each token its place in the store."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    column = Ragged(np.arange(offsets[-1], dtype=np.int32), offsets)
    output = SequenceOutput(8, name="text", vocabulary=Bytes(), window=width)
    model = Mapper({}, torch.nn.Identity(), Prior(8, 1, 2), output)
    rows = np.arange(len(lengths)) if texts is None else np.array(texts)
    return WindowFeed(Store.of({"t.ids": column}), rows, model, tokens=tokens, seed=seed), offsets


def read(one, batches):
    """Of each window: its tokens, and the one before."""
    for rows in batches:
        target = one.batch(rows)["target"]
        for ids, valid, before, window in zip(*(target[n] for n in ("ids", "valid", "before")), rows, strict=True):
            yield ids[valid].tolist(), int(before), int(window)


@pytest.mark.parametrize("width", [1, 2, 5, 16, 100])
@pytest.mark.parametrize("seed", range(4))
def test_every_token_is_seen_once_an_epoch_after_the_one_before_it_and_no_window_leaves_its_text(width, seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, 40, 12)
    lengths[draw.integers(12)] = 0
    texts = np.sort(draw.permutation(12)[:9])
    one, offsets = feed(lengths, width, texts=texts, seed=seed)
    wanted = [t for b in texts for t in range(offsets[b], offsets[b + 1])]
    for batches in (one.once(), one.order(0), one.order(1), one.order(7)):
        seen = []
        for ids, before, window in read(one, batches):
            assert 1 <= len(ids) <= width
            assert ids == list(range(ids[0], ids[0] + len(ids)))
            row = one.place(window)
            assert offsets[row] <= ids[0] < offsets[row + 1]
            assert ids[-1] < offsets[row + 1]
            assert before == (BEGIN if ids[0] == offsets[row] else ids[0] - 1)
            seen += ids
        assert sorted(seen) == wanted


def test_all_windows_of_a_text_but_its_first_and_last_are_whole():
    one, _ = feed([1000], 16)
    for epoch in range(5):
        sizes = [len(ids) for ids, _, _ in sorted(read(one, one.order(epoch)))]
        assert set(sizes[1:-1]) == {16}
    assert [len(ids) for ids, _, _ in sorted(read(one, one.once()))] == [16] * 62 + [8]


def test_windows_begin_elsewhere_each_epoch_and_are_a_function_of_seed_and_epoch():
    def starts(seed, epoch):
        one, _ = feed([400, 300], 16, seed=seed)
        return [rows.tolist() for rows in one.order(epoch)]

    assert starts(1, 3) == starts(1, 3)
    firsts = {tuple(sorted(w for rows in starts(seed, epoch) for w in rows)) for seed in range(3) for epoch in range(4)}
    assert len(firsts) > 10


def test_where_windows_begin_does_not_depend_on_which_other_texts_there_are():
    whole, _ = feed([50, 70, 90], 16)
    alone, _ = feed([50, 70, 90], 16, texts=[1])
    mine = sorted(w for rows in alone.order(2) for w in rows.tolist())
    assert mine == sorted(w for rows in whole.order(2) for w in rows.tolist() if whole.place(w) == 1)


def test_batches_hold_no_more_places_than_they_may():
    one, _ = feed([500, 3, 77], 16, tokens=64)
    assert all(len(rows) * int((rows % 17).max()) <= 64 for rows in (*one.order(0), *one.once()))


def test_each_window_knows_its_text():
    lengths = [5, 0, 9, 1, 0, 4]
    one, offsets = feed(lengths, 3)
    for window, owner in zip(one.rows, one.owners, strict=True):
        assert offsets[owner] <= window // 4 < offsets[owner + 1]
    assert one.owners.tolist() == [0, 0, 2, 2, 2, 3, 5, 5]
    plain = StoreFeed(one.store, np.array([2, 0]), one.model, tokens=64)
    assert plain.owners.tolist() == [2, 0]


def test_answers_come_in_the_order_of_the_text():
    one, _ = feed([37, 20], 8)
    found = answer(one.model, one)
    assert found.target["text"].tolist() == list(range(57))
    assert np.bincount(found.row).tolist() == [8, 8, 8, 8, 5, 8, 8, 4]


def test_only_an_output_with_windows_is_fed_with_them():
    one, _ = feed([20], 8)
    assert isinstance(make_feed(one.store, np.array([0]), one.model, tokens=64), WindowFeed)
    whole = SequenceOutput(8, name="text", vocabulary=Bytes())
    other = Mapper({}, torch.nn.Identity(), Prior(8, 1, 2), whole)
    assert type(make_feed(one.store, np.array([0]), other, tokens=64)) is StoreFeed


def test_what_a_batch_takes_of_inputs_and_outputs_is_added_up():
    """An output with one answer a row says 0, one of tokens an array: both are lengths."""
    labels = {"y": {"kind": "label", "classes": ["a", "b"]}}
    text = SequenceInput(8, vocabulary=Bytes())
    columns = {"0.ids": Ragged.pack([np.arange(n, dtype=np.int32) for n in (3, 5)])}
    for output, more, wanted in (
        (VectorOutput(8, targets=labels), {"t.y": Ragged.pack([np.zeros((1,), np.int64)] * 2)}, [3, 5]),
        (
            SequenceOutput(8, name="y", vocabulary=Bytes()),
            {"t.ids": Ragged.pack([np.arange(n, dtype=np.int32) for n in (4, 1)])},
            [7, 6],
        ),
    ):
        model = Mapper({"x": text}, Encoder(8, 1, 2), MeanPool(), output)
        one = StoreFeed(Store.of(columns | more), np.arange(2), model, tokens=64)
        assert one.lengths.tolist() == wanted
