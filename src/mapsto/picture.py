"""Pictures as arrays, by Pillow, strictly: a file gives the pixels that it holds, or it is refused."""

import io
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mapsto.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["read_image"]

FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF")
PIXELS = 64_000_000
FILLER = b"\0" + bytes(range(1, 250, 3)) * 4  # no end mark, no marker at all, even behind an FF


def read_image(source: Path | bytes | NDArray, *, side: int = 0) -> NDArray:
    """A picture as (height, width, channels) of uint8, or of uint16 where it holds 16 bits of grey.

    EXIF turns are done, palettes and transparency resolved (on white), 1 or 3 channels kept. Of several frames or pages
    it is the first.

    Args:
        source: a file, a file's bytes, or an array (height, width[, channels]).
        side: shrink so that no side is longer; 0 keeps the size.

    Raises:
        DataError: no picture, a format that is not read, damaged or cut off, colours of 16 bits, or more than 64
            megapixels.
    """
    if isinstance(source, np.ndarray):
        return array_of(source, side)
    if not isinstance(source, Path | bytes):
        raise DataError(f"a {type(source).__name__} is no picture; expected a path, a file's bytes, or an array")
    image = open_file(source)
    if image.mode.startswith("I") or image.mode == "F":
        return array_of(deep(image), side)
    if side and max(image.size) > side:
        image.thumbnail((side, side))
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def open_file(source: Path | bytes) -> "Image.Image":
    # Decoded and turned, in mode L or RGB, or I, I;16 or F.
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        data = source if isinstance(source, bytes) else source.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > PIXELS:
                    raise DataError(f"{width} x {height} pixels are more than {PIXELS // 10**6} million.   Shrink it")
                if not width * height:
                    raise DataError(f"{where(source)} has no pixels ({width} x {height})")
                if colours_of_16_bits(opened, data):
                    raise DataError(f"{where(source)} has 16 bits a colour.   Save it with 8")
                if opened.format == "PNG" and not checked(data):
                    raise DataError(f"{where(source)} cannot be decoded: a checksum is wrong, or the end is missing")
                opened.load()
                if opened.format in ("JPEG", "MPO") and unfinished(opened, data):
                    raise DataError(f"{where(source)} cannot be decoded: the data ends before the picture does")
                image = ImageOps.exif_transpose(opened)
                if image.mode in ("L", "RGB", "F") and "transparency" not in image.info:
                    return image
                return image if image.mode.startswith("I") else plain(image)
    except FileNotFoundError:
        raise DataError(f"there is no file {where(source)}") from None
    except UnidentifiedImageError:
        raise DataError(f"{where(source)} is no picture ({', '.join(FORMATS)} are read), or damaged") from None
    except Image.DecompressionBombError:
        raise DataError(f"{where(source)} has more than {PIXELS // 10**6} million pixels.   Shrink it") from None
    except DataError:
        raise
    except Exception as error:  # Pillow raises what its decoders raise: struct, value, OS and syntax errors
        raise DataError(f"{where(source)} cannot be decoded: {error or type(error).__name__}") from None


def plain(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if image.mode in ("RGBA", "LA", "La", "RGBa", "PA") or "transparency" in image.info:
        grey = image.mode in ("1", "L", "LA", "La")
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        image = Image.new("RGBA", rgba.size, "white")
        image.alpha_composite(rgba)
        return image.convert("RGB").convert("L") if grey else image.convert("RGB")
    return image.convert("L" if image.mode == "1" else "RGB")


def deep(image: "Image.Image") -> NDArray:
    pixels = np.asarray(image)
    if pixels.dtype.kind == "f":
        return pixels
    if pixels.min() < 0 or pixels.max() > 65535:
        raise DataError(f"has values from {pixels.min()} to {pixels.max()}; 0 to 65535 are read")
    hole = image.info.get("transparency")
    return (
        np.where(pixels == hole, 65535, pixels).astype(np.uint16) if isinstance(hole, int) else pixels.astype(np.uint16)
    )


def colours_of_16_bits(image: "Image.Image", data: bytes) -> bool:
    # Pillow keeps the upper eight bits of them and does not say so.
    if image.mode.startswith("I") or image.mode == "F":
        return False
    if image.format == "PNG":
        return data[24] == 16
    bits = getattr(image, "tag_v2", {}).get(258, ())
    return any(b > 8 for b in (bits if isinstance(bits, tuple) else (bits,)))


def checked(data: bytes) -> bool:
    # Pillow passes over the checksums of a PNG's pixels.
    view, at = memoryview(data), 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(view[at : at + 4], "big")
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4], "big") or end + 4 > len(data):
            return False
        if bytes(view[at + 4 : at + 8]) == b"IEND":
            return True
        at = end + 4
    return False


def unfinished(image: "Image.Image", data: bytes) -> bool:
    # A JPEG has no checksum, and where its data ends early libjpeg goes on in one colour. Bytes put before the end mark
    # are never looked at if the picture is whole, and change it if not. Only a picture that ends in one colour, or whose
    # passes cover it several times, needs to be looked at twice.
    from PIL import Image

    width, height = image.size  # the last block is of 8 x 8 pixels, and its brightness its own
    box = (max((width - 1) // 8 * 8, width - 3), max((height - 1) // 8 * 8, height - 3), width, height)
    corner = np.asarray(image.crop(box).convert("L")).astype(int)
    if not image.info.get("progressive") and np.ptp(corner) > 2:
        return False
    end = data.find(b"\xff\xd9", scan(data))
    if end < 0:
        return False
    try:
        with Image.open(io.BytesIO(data[:end] + FILLER + data[end:]), formats=("JPEG",)) as other:
            return bool((np.asarray(other) != np.asarray(image)).any())
    except (OSError, ValueError, SyntaxError):
        return True


def scan(data: bytes) -> int:
    # Where the coded data of a JPEG starts: behind its headers, which may hold a small picture of their own.
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        kind, size = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        at += 1 if kind == 0xFF else 2 + size
        if kind == 0xDA:
            break
    return at


def array_of(pixels: NDArray, side: int) -> NDArray:
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise DataError(f"an array of shape {pixels.shape} is no picture (height, width[, 1 or 3 channels])")
    if pixels.dtype.kind == "f":
        if not (pixels.min() >= 0 and pixels.max() <= 1):
            raise DataError("a picture of real numbers has them in [0, 1]")
        pixels = np.round(pixels.astype(np.float64) * 65535).astype(np.uint16)
    elif pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8) * 255
    elif pixels.dtype not in (np.uint8, np.uint16):
        raise DataError(f"a picture of {pixels.dtype}; uint8, uint16, or real numbers in [0, 1] are read")
    if pixels.shape[2] == 4:  # on white
        white = np.iinfo(pixels.dtype).max
        alpha = pixels[..., 3:] / white
        pixels = np.round(pixels[..., :3] * alpha + white * (1 - alpha)).astype(pixels.dtype)
    step = -(-max(pixels.shape[:2]) // side) if side else 1
    if step > 1:
        pad = [(0, -pixels.shape[0] % step), (0, -pixels.shape[1] % step), (0, 0)]
        wide = np.pad(pixels, pad, mode="edge").astype(np.float64)
        height, width = wide.shape[0] // step, wide.shape[1] // step
        pixels = np.round(wide.reshape(height, step, width, step, -1).mean((1, 3))).astype(pixels.dtype)
    return pixels


def where(source: Path | bytes) -> str:
    return str(source) if isinstance(source, Path) else f"a value of {len(source)} bytes"
