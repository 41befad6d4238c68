"""Inputs against what they say they do: values, places, missing marks, pictures of different sizes."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from mapsto.errors import ConfigError, DataError
from mapsto.inputs.image import ImageInput, read_image
from mapsto.inputs.sequence import SequenceInput
from mapsto.inputs.series import SeriesInput
from mapsto.inputs.vector import VectorInput
from mapsto.noise import set_clock
from mapsto.ragged import Ragged
from mapsto.stream import Clock
from mapsto.vocabulary import Bytes, Subwords, Words


def gather(one, values):
    """Parse, store and gather values, as a run does."""
    parsed = [one.parse(v) for v in values]
    columns = {n: Ragged.pack([np.atleast_1d(p[n]) for p in parsed]) for n in parsed[0]}
    rows = np.arange(len(values))
    return one.gather({n: c.take(rows) for n, c in columns.items()}), columns


def test_sequence_items_are_embeddings_at_ranks():
    one = SequenceInput(8, vocabulary=Bytes())
    batch, columns = gather(one, ["abc", "z"])
    c = one(batch)
    assert torch.equal(c.items[0, 2], one.embedding.weight[3 + ord("c")])
    assert c.places[0, :, 0].tolist() == [0, 1, 2]
    assert c.valid.tolist() == [[True] * 3, [True, False, False]]
    assert c.items[1, 1:].abs().sum() == 0
    assert one.lengths(columns).tolist() == [3, 1]


@pytest.mark.parametrize(("keep", "kept"), [("first", "abcd"), ("last", "fghi"), ("ends", "abhi")])
def test_a_long_sequence_keeps_the_part_asked_for(keep, kept):
    one = SequenceInput(4, vocabulary=Bytes(), limit=4, keep=keep)
    assert Bytes().decode(one.parse("abcdefghi")["ids"]) == kept


def test_ngrams_look_back_only_and_tell_neighbours_apart():
    one = SequenceInput(8, vocabulary=Bytes(), ngrams=3)
    first = one(gather(one, ["abcd"])[0]).items
    assert torch.equal(one(gather(one, ["abcx"])[0]).items[:, :3], first[:, :3])
    assert not torch.equal(one(gather(one, ["xbcd"])[0]).items[:, 1:3], first[:, 1:3])
    assert torch.equal(one(gather(one, ["xbcd"])[0]).items[:, 3], first[:, 3])  # four tokens back is out of reach
    assert torch.equal(one(gather(one, ["abcd", "abcdefgh"])[0]).items[0, :4], first[0])


def test_vocabulary_is_chosen_by_the_texts():
    def chosen(values):
        return type(SequenceInput.measure([values])["vocabulary"]).__name__

    assert chosen(["MKVL", "GGHA", "PLW"]) == "Characters"
    assert chosen(["a slow film", "a lovely film"]) == "Words"
    assert chosen([["a", "b"], ["b"]]) == "Symbols"
    assert chosen([f"the cat sat on the mat number {i}" for i in range(1200)]) == "Subwords"


def test_lists_of_ids_are_symbols():
    measured = SequenceInput.measure([[[5, 7, 7], [9]]])
    assert measured["vocabulary"].symbols == ["7", "5", "9"]


def test_an_empty_text_is_refused():
    with pytest.raises(DataError, match="is empty"):
        SequenceInput(4, vocabulary=Words(["a"])).parse("  ")


COLUMNS = [("age", "number"), ("size", "number"), ("town", "label")]
CELLS = [(20.0, [1.0, 2.0], "Bern"), (40.0, [3.0, 6.0], "Genf"), (None, [2.0, 4.0], "Bern"), (60.0, None, None)]


def table():
    return VectorInput(8, **VectorInput.measure([CELLS[:2], CELLS[2:]], columns=COLUMNS))


def test_table_columns_are_measured_on_what_is_there():
    age, size, town = table().columns
    assert age["mean"] == [40.0]
    np.testing.assert_allclose(age["scale"], np.std([20, 40, 60]))
    np.testing.assert_allclose(size["mean"], [2, 4])
    np.testing.assert_allclose(size["scale"], np.std([[1, 2], [3, 6], [2, 4]], axis=0))
    assert town["classes"] == ["Bern", "Genf"]


def test_a_missing_cell_is_its_columns_own_vector():
    one = table()
    with torch.no_grad():
        for p in one.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    items = one(gather(one, CELLS)[0]).items
    assert items.shape == (4, 3, 8)
    assert torch.equal(items[2, 0], one.missing[0])
    assert torch.equal(items[3, 1], one.missing[1])
    assert torch.equal(items[3, 2], one.embedding.weight[0])
    expected = (20 - 40) / np.std([20, 40, 60]) * one.weight[0] + one.offset[0]
    torch.testing.assert_close(items[0, 0], expected.float())


def test_an_unknown_category_has_an_embedding_of_its_own():
    one = table()
    assert one.parse((1.0, [1.0, 1.0], "Zug"))["labels"].tolist() == [1]


def test_a_vector_of_another_width_is_refused_with_its_column():
    with pytest.raises(DataError, match='"size": 3 numbers where the model expects 2'):
        table().parse((1.0, [1.0, 2.0, 3.0], "Bern"))


def test_an_all_missing_number_is_refused():
    with pytest.raises(DataError, match='"a": every training row lacks this number'):
        VectorInput.measure([[(None,), (None,)]], columns=[("a", "number")])


def test_series_are_standardised_by_channel_and_missing_samples_marked():
    values = [np.array([[1.0, 10.0], [3.0, np.nan]]), np.array([[5.0, 30.0]])]
    measured = SeriesInput.measure([values])
    np.testing.assert_allclose(measured["mean"], [3, 20])
    np.testing.assert_allclose(measured["scale"], [np.std([1, 3, 5]), 10])
    one = SeriesInput(4, **measured)
    batch, _ = gather(one, values)
    assert torch.isnan(batch["values"][0, 1, 0, 1])
    c = one(batch)
    inside = torch.tensor([0.0, 0.0, 0.0, 1.0])  # channel values (3 is the mean; missing is 0), then the marks
    torch.testing.assert_close(c.items[0, 1], one.linear(inside))
    assert torch.isfinite(c.items).all()


def test_times_count_from_the_first_sample_in_median_gaps():
    values = [(np.arange(4.0), np.array([1e9, 1e9 + 2, 1e9 + 4, 1e9 + 10])), (np.arange(2.0), np.array([5.0, 7.0]))]
    one = SeriesInput(4, **SeriesInput.measure([values]))
    assert one.gap == 2
    assert one.parse(values[0])["times"].tolist() == [0, 1, 2, 5]
    with pytest.raises(DataError, match="needs times"):
        one.parse(np.arange(3.0))
    with pytest.raises(DataError, match="not in order"):
        one.parse((np.arange(2.0), np.array([3.0, 1.0])))


def test_patches_of_a_series_hold_its_samples_in_order():
    one = SeriesInput(4, mean=[0.0], scale=[1.0], patch=2)
    assert np.array_equal(one.parse(np.array([1.0, 2.0, 3.0]))["values"], [[[1], [2]], [[3], [np.nan]]], equal_nan=True)


def png(pixels, mode=None, **save):
    file = io.BytesIO()
    Image.fromarray(pixels, mode).save(file, "PNG", **save) if mode is None else Image.fromarray(pixels).save(
        file, "PNG"
    )
    return file.getvalue()


def test_pictures_of_every_mode_are_read_as_grey_or_colour():
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    assert np.array_equal(read_image(png(grey))[..., 0], grey)
    deep = (np.arange(12).reshape(3, 4) * 5000).astype(np.uint16)
    assert np.array_equal(read_image(png(deep))[..., 0], deep)
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0, 0] = (255, 0, 0, 255)
    found = read_image(png(rgba))
    assert found[0, 0].tolist() == [255, 0, 0]
    assert found[1, 1].tolist() == [255, 255, 255]  # transparent shows white
    file = io.BytesIO()
    Image.fromarray(np.eye(4, dtype=np.uint8) * 255).convert("P").save(file, "GIF")
    assert read_image(file.getvalue()).shape == (4, 4, 3)


def test_exif_turns_are_done():
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter to the right
    Image.fromarray(np.zeros((2, 5), np.uint8)).save(file, "JPEG", exif=exif)
    assert read_image(file.getvalue()).shape[:2] == (5, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no picture"),
        (b"GIF8 but not really", "no picture"),
        (png(np.zeros((9, 9), np.uint8))[:40], "cannot be decoded|no picture"),
    ],
)
def test_a_broken_picture_is_one_line(content, message):
    with pytest.raises(DataError, match=message):
        read_image(content)


def test_too_many_pixels_are_refused_from_the_header():
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "PNG")
    with pytest.raises(DataError, match="more than 64 million"):
        read_image(file.getvalue())


def test_patches_hold_their_pixels_at_their_places():
    one = ImageInput(6, channels=1, mean=[0.0], scale=[1.0], patch=2, stem="patches")
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    batch, columns = gather(one, [pixels])
    c = one(batch)
    patch = torch.tensor([pixels[2, 2], pixels[2, 3], pixels[3, 2], pixels[3, 3]]) / 255
    torch.testing.assert_close(c.items[0, 4], one.linear(patch))
    assert c.places[0].tolist() == [[r, k] for r in range(2) for k in range(3)]
    assert one.lengths(columns).tolist() == [6]


@pytest.mark.parametrize("stem", ["patches", "convolution"])
def test_a_picture_alone_equals_itself_beside_larger_ones(stem):
    sizes = [(7, 5), (12, 16), (8, 8)]
    values = [np.random.default_rng(i).integers(0, 255, s).astype(np.uint8) for i, s in enumerate(sizes)]
    one = ImageInput(8, channels=1, mean=[0.4], scale=[0.3], patch=4, stem=stem, side=0).double()
    together = one(gather(one, values)[0])
    for i, value in enumerate(values):
        alone = one(gather(one, [value])[0])
        count = int(alone.valid.sum())
        assert count == int(together.valid[i].sum())
        torch.testing.assert_close(together.items[i, :count], alone.items[0], rtol=1e-10, atol=1e-10)
        assert torch.equal(together.places[i, :count], alone.places[0])


def test_augmentation_is_a_function_of_the_step_and_only_in_training():
    one = ImageInput(8, channels=1, mean=[0.0], scale=[1.0], stem="convolution", shift=2, flip=True)
    batch, _ = gather(one, [np.random.default_rng(0).integers(0, 255, (12, 12)).astype(np.uint8)] * 8)
    clock = Clock(3)
    set_clock(one, clock)
    assert torch.equal(one.eval()(batch).items[0], one(batch).items[7])
    one.train()
    clock.step = 5
    first = one(batch).items
    assert not torch.equal(first[0], first[1])
    clock.step = 6
    assert not torch.equal(one(batch).items, first)
    clock.step = 5
    assert torch.equal(one(batch).items, first)


def test_colour_is_refused_by_a_model_of_grey_pictures():
    one = ImageInput(4, channels=1, mean=[0.0], scale=[1.0])
    with pytest.raises(DataError, match="trained on grey"):
        one.parse(np.zeros((4, 4, 3), np.uint8))


def test_unknown_options_are_told_the_known():
    with pytest.raises(ConfigError, match="patches, convolution"):
        ImageInput(4, channels=1, mean=[0.0], scale=[1.0], stem="conv")
    with pytest.raises(ConfigError, match="first, last, ends"):
        SequenceInput(4, vocabulary=Bytes(), keep="middle")


def test_subwords_are_restored_with_the_settings():
    measured = SequenceInput.measure([[f"the cat sat on the mat number {i}" for i in range(1200)]], vocabulary_size=300)
    assert isinstance(measured["vocabulary"], Subwords)
    assert SequenceInput(4, **measured).settings().keys() == measured.keys()
