"""Picture files of every mode, turned, damaged and hostile: the right pixels by formula, or one line."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mapsto.errors import DataError
from mapsto.inputs.image import ImageInput, read_image
from mapsto.picture import PIXELS

RGB = np.random.default_rng(0).integers(0, 256, (20, 24, 3)).astype(np.uint8)
NOISE = Image.effect_noise((120, 90), 60)
FORMS = [
    ("PNG", {}),
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("WEBP", {"lossless": True}),
    ("WEBP", {}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("BMP", {}),
    ("GIF", {}),
]


def encoded(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png(width, height, bits, colour, data):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("form", "options"), FORMS)
def test_a_picture_that_is_cut_off_is_refused_wherever_it_ends(form, options):
    data = encoded(Image.fromarray(RGB), form, **options)
    whole = read_image(data)
    for end in range(0, len(data), 7):
        try:
            found = read_image(data[:end])
        except DataError as error:
            assert str(error).isprintable()  # noqa: PT017
            continue
        assert np.array_equal(found, whole)  # only what lies behind the pixels is gone


@pytest.mark.parametrize("level", [0, 9])
def test_every_flipped_bit_of_a_png_is_refused(level):
    data = encoded(Image.fromarray(RGB[:2, :3]), "PNG", compress_level=level)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataError):
            read_image(bytes(changed))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 95}, {"optimize": True}])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_jpeg_without_its_middle_is_refused_though_it_ends_as_it_should(mode, options):
    data = encoded(Image.merge("RGB", [NOISE, NOISE.rotate(180), NOISE]).convert(mode), "JPEG", **options)
    assert read_image(data).shape == (90, 120, len(mode))
    read = 0
    for lost in range(200, len(data) - 800, 101):
        try:
            read_image(data[: -lost - 2] + data[-2:])
            read += 1
        except DataError as error:
            assert "cannot be decoded" in str(error)  # noqa: PT017
    # What ends between two passes of a progressive picture is a whole picture, of fewer passes.
    assert read <= (3 if "progressive" in options else 0)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"optimize": True}])
@pytest.mark.parametrize("colour", [0, 255])
def test_a_sound_jpeg_that_ends_in_one_colour_is_read(options, colour):
    image = NOISE.copy()
    image.paste(colour, (60, 40, 120, 90))
    for data in (encoded(image, "JPEG", **options), encoded(image, "JPEG", **options) + b"\xff\xd9tail"):
        with Image.open(io.BytesIO(data)) as stock:
            assert np.array_equal(read_image(data)[..., 0], np.asarray(stock))


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
def test_each_exif_turn_is_done(form, turn):
    exif = Image.Exif()
    exif[0x0112] = turn
    x = RGB
    expected = [x, x[:, ::-1], x[::-1, ::-1], x[::-1], x.swapaxes(0, 1), np.rot90(x, -1), np.rot90(x.swapaxes(0, 1), 2)]
    data = encoded(Image.fromarray(x), form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
    assert np.array_equal(read_image(data), [*expected, np.rot90(x, 1)][turn - 1])


def test_sixteen_bits_of_grey_are_kept_and_of_colour_refused():
    deep = np.arange(0, 60000, 5000, dtype=np.uint16).reshape(3, 4)
    for form in ("PNG", "TIFF"):
        assert np.array_equal(read_image(encoded(Image.fromarray(deep), form))[..., 0], deep)
    with pytest.raises(DataError, match="16 bits a colour"):
        read_image(png(2, 1, 16, 2, bytes(13)))
    assert read_image(encoded(Image.fromarray(deep), "PNG", transparency=5000))[0, 1, 0] == 65535


def test_numbers_beyond_the_range_are_not_wrapped():
    def tiff(*values, kind):
        return encoded(Image.fromarray(np.array([values], kind)), "TIFF")

    assert read_image(tiff(7, 65535, kind=np.int32)).ravel().tolist() == [7, 65535]
    assert read_image(tiff(0.0, 1.0, kind=np.float32)).ravel().tolist() == [0, 65535]
    for values, kind in [((70_000, 1), np.int32), ((-1, 1), np.int32)]:
        with pytest.raises(DataError, match="0 to 65535 are read"):
            read_image(tiff(*values, kind=kind))
    for value in (2.0, -0.5, np.nan, np.inf):
        with pytest.raises(DataError, match=r"in \[0, 1\]"):
            read_image(tiff(value, 0.5, kind=np.float32))
        with pytest.raises(DataError, match=r"in \[0, 1\]"):
            read_image(np.array([[value, 0.5]]))


def test_palettes_and_transparency_follow_their_formulas():
    index = (np.arange(12).reshape(3, 4) % 5).astype(np.uint8)
    colours = np.random.default_rng(1).integers(0, 256, (5, 3)).astype(np.uint8)
    image = Image.new("P", (4, 3))
    image.putdata(index.ravel().tolist())
    image.putpalette(colours.tobytes())
    for form in ("PNG", "GIF", "BMP", "TIFF"):
        assert np.array_equal(read_image(encoded(image, form)), colours[index])
    expected = np.where((index == 2)[..., None], 255, colours[index])
    for form in ("PNG", "GIF"):
        assert np.array_equal(read_image(encoded(image, form, transparency=2)), expected)
    grey, alpha = np.full((2, 2), 100, np.uint8), np.array([[0, 255], [51, 128]], np.uint8)
    both = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)])
    found = read_image(encoded(both, "PNG"))
    right = 255 - 155.0 * alpha / 255
    assert found.shape == (2, 2, 1)  # grey stays grey
    assert np.abs(found[..., 0] - right).max() <= 1
    rgba = np.dstack([grey, grey, grey, alpha])
    assert np.abs(read_image(rgba)[..., 0] - right).max() <= 1
    assert np.abs(read_image(encoded(Image.fromarray(rgba), "PNG"))[..., 0] - right).max() <= 1


def test_cmyk_and_other_modes_are_colours():
    x = np.random.default_rng(2).integers(0, 256, (4, 4, 4)).astype(np.uint8)
    found = read_image(encoded(Image.fromarray(x, "CMYK"), "TIFF")).astype(float)
    assert np.abs(found - (255.0 - x[..., :3]) * (255.0 - x[..., 3:]) / 255).max() <= 1
    for mode in ("YCbCr", "LAB"):
        assert read_image(encoded(Image.new(mode, (3, 2)), "TIFF")).shape == (2, 3, 3)
    assert read_image(encoded(Image.new("1", (3, 2), 1), "PNG")).tolist() == [[[255]] * 3] * 2


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_frame_is_read(form):
    first, second = (Image.new("L", (5, 4), v) for v in (40, 200))
    options = {"lossless": True} if form == "WEBP" else {}
    assert (read_image(encoded(first, form, save_all=True, append_images=[second], **options)) == 40).all()


def test_bombs_and_pictures_without_pixels_are_refused_from_their_header():
    side = int(PIXELS**0.5) + 1
    for width, height in [(side, side), (60_000, 60_000), (2**31 - 1, 1)]:
        with pytest.raises(DataError, match="million"):
            read_image(png(width, height, 8, 2, b""))
    bmp = bytearray(encoded(Image.new("RGB", (4, 4)), "BMP"))
    bmp[18:22] = bytes(4)
    for data in (png(0, 5, 8, 0, b""), png(5, 0, 8, 0, b""), bytes(bmp)):
        with pytest.raises(DataError, match=r"no pixels|no picture|cannot be decoded"):
            read_image(data)


@pytest.mark.parametrize("value", [5, 2.5, True, [1, 2], {"a": 1}, None])
def test_a_value_that_can_be_no_picture_is_one_line(value):
    with pytest.raises(DataError, match="is no picture; expected a path"):
        read_image(value)


def test_other_formats_and_wrong_endings(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(encoded(Image.fromarray(RGB), "PNG"))
    assert np.array_equal(read_image(path), RGB)
    for data in (b"P6 1 1 255 abc", b"%PDF-1.7", b"<svg/>", bytes(300), encoded(Image.fromarray(RGB), "PPM")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.jpg is no picture"):
            read_image(path)
    with pytest.raises(DataError, match="cannot be decoded"):
        read_image(tmp_path)


def test_measures_pass_over_pictures_that_parse_will_name():
    grey = np.full((4, 4), 51, np.uint8)
    assert ImageInput.measure([[grey, b"broken", grey]])["mean"] == pytest.approx([0.2])
    with pytest.raises(DataError, match="is no picture"):
        ImageInput.measure([[b"broken"]])
