"""Mutants of pictures: a folder of them, or cells that hold their bytes or paths; formulas say which pixels are right."""

import io
import json
import random
import struct
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mapsto.data.table import open_table
from mapsto.inputs.image import ImageInput
from mapsto.outputs.vector import VectorOutput
from mapsto.tasks.dataset import convert
from mapsto.tasks.schema import Field, Schema
from mutant import Mutant, Want, damage

__all__ = ["draw_cells", "draw_folder", "read_pictures"]

SCHEMA = Schema([Field("picture", "image", [("path", "image")])], Field("label", "vector", [("label", "label")]))
ENDING = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp", "TIFF": ".tif", "BMP": ".bmp", "GIF": ".gif"}
TURNS: dict[int, Callable[[NDArray], NDArray]] = {
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x.swapaxes(0, 1)[::-1, ::-1],
    8: lambda x: np.rot90(x, 1),
}


@cache
def model() -> Any:
    image = ImageInput(2, channels=3, mean=[0.0] * 3, scale=[1.0] * 3, wide=True, stem="patches", side=0)
    output = VectorOutput(2, targets={"label": {"kind": "label", "classes": ["a", "b"]}})
    return SimpleNamespace(inputs=[image], output=output)


def read_pictures(mutant: Mutant, folder: Path) -> dict[str, list[Any]]:
    """As a trained model reads them: every row, or the first error with its row. 16 bits, three channels."""
    source = folder / mutant.source if isinstance(mutant.source, str) else mutant.source
    table = open_table(source, root=None if isinstance(mutant.source, str) else folder)
    store, _, _ = convert(table, SCHEMA, model(), targets=True)
    pixels, sizes = store.columns["0.pixels"], store.columns["0.size"]
    return {"pixels": [pixels[i].reshape(*sizes[i].tolist(), 3) for i in range(len(store))]}


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def wide(pixels: NDArray) -> NDArray:
    """(h, w[, 1 or 3]) of 8 or 16 bits as (h, w, 3) of 16."""
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    deep = pixels if pixels.dtype == np.uint16 else pixels.astype(np.uint16) * 257
    return np.broadcast_to(deep, (*pixels.shape[:2], 3))


def on_white(colour: NDArray, alpha: NDArray) -> NDArray:
    a = alpha[..., None] / 255
    return np.round(colour * a + 255 * (1 - a)).astype(np.uint8)


def stock(data: bytes) -> NDArray:
    """What Pillow alone makes of some bytes."""
    with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(data), formats=tuple(ENDING)) as opened:
        opened.load()
        image = ImageOps.exif_transpose(opened)
        if image.mode == "F":
            return wide(np.round(np.asarray(image, np.float64) * 65535).astype(np.uint16))
        if image.mode.startswith("I"):
            return wide(np.asarray(image).astype(np.uint16))
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            rgba = np.asarray(image.convert("RGBA"))
            return wide(on_white(rgba[..., :3], rgba[..., 3]))
        return wide(np.asarray(image.convert("RGB")))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, bits: int, colour: int, rows: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


Made = tuple[str, bytes, str, NDArray | None, float]  # mutation, bytes, ending, right pixels or None, how near


def sound(draw: random.Random) -> Made:
    """A picture with its right pixels."""
    source = np.random.default_rng(draw.randrange(1 << 30))
    h, w = draw.choice([(1, 1), (5, 9), (8, 8), (17, 12), (40, 33)])
    rgb = source.integers(0, 256, (h, w, 3)).astype(np.uint8)
    grey, alpha = rgb[..., 0].copy(), rgb[..., 1].copy()
    smooth = np.clip(np.add.outer(np.arange(h) * 3, np.arange(w) * 4)[..., None] + [10, 60, 90], 0, 255).astype(
        np.uint8
    )
    lossless = [
        ("PNG", {}),
        ("BMP", {}),
        ("TIFF", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ]
    lossless += [("TIFF", {"compression": "tiff_adobe_deflate"}), ("PNG", {"compress_level": 0})]
    form, options = draw.choice(lossless)
    kind = draw.randrange(13)
    if kind == 0:
        return f"{form} in colour", encode(Image.fromarray(rgb), form, **options), ENDING[form], wide(rgb), 0
    if kind == 1:
        form, options = draw.choice([*(c for c in lossless if c[0] != "WEBP"), ("GIF", {})])
        return f"{form} in grey", encode(Image.fromarray(grey), form, **options), ENDING[form], wide(grey), 0
    if kind == 2:
        deep = source.integers(0, 65536, (h, w)).astype(np.uint16)
        form = draw.choice(["PNG", "TIFF"])
        return f"{form} of 16 bits", encode(Image.fromarray(deep), form), ENDING[form], wide(deep), 0
    if kind == 3:
        bits = grey > 127
        form = draw.choice(["PNG", "TIFF", "BMP", "GIF"])
        return (
            f"{form} of 1 bit",
            encode(Image.fromarray(bits), form),
            ENDING[form],
            wide(bits.astype(np.uint8) * 255),
            0,
        )
    if kind in (4, 5):
        colours = source.integers(0, 256, (16, 3)).astype(np.uint8)
        index = grey % 16
        image = Image.fromarray(index, "L").convert("P")
        image.putdata(index.ravel().tolist())
        image.putpalette(colours.tobytes())
        if kind == 4:
            form = draw.choice(["PNG", "GIF", "BMP", "TIFF"])
            return f"{form} with a palette", encode(image, form), ENDING[form], wide(colours[index]), 0
        right = np.where((index == 3)[..., None], 255, colours[index]).astype(np.uint8)
        form = draw.choice(["PNG", "GIF"])
        return f"{form}, one colour transparent", encode(image, form, transparency=3), ENDING[form], wide(right), 0
    if kind == 6:
        form, options = draw.choice([("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True})])
        rgba = np.concatenate([rgb, alpha[..., None]], -1)
        return (
            f"{form} with alpha",
            encode(Image.fromarray(rgba), form, **options),
            ENDING[form],
            wide(on_white(rgb, alpha)),
            257,
        )
    if kind == 7:
        la = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(alpha)])
        return "PNG, grey with alpha", encode(la, "PNG"), ".png", wide(on_white(grey[..., None], alpha)), 257
    if kind == 8:
        turn = draw.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 255])
        exif = Image.Exif()
        exif[0x0112] = turn
        form, options = draw.choice([("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True})])
        data = encode(Image.fromarray(rgb), form, exif=exif, **options)
        return f"{form} turned", data, ENDING[form], wide(TURNS.get(turn, lambda x: x)(rgb)), 0
    if kind == 9:
        cmyk = source.integers(0, 256, (h, w, 4)).astype(np.uint8)
        right = np.round((255 - cmyk[..., :3].astype(float)) * (255 - cmyk[..., 3:]) / 255).astype(np.uint8)
        return "TIFF in CMYK", encode(Image.fromarray(cmyk, "CMYK"), "TIFF"), ".tif", wide(right), 257
    if kind == 10:
        form, options = draw.choice([("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {})])
        first = Image.fromarray(grey).convert("L" if form == "GIF" else "RGB")
        data = encode(first, form, save_all=True, append_images=[Image.eval(first, lambda v: 255 - v)], **options)
        return f"{form}, animated", data, ENDING[form], wide(grey), 0
    mode, options = draw.choice(
        [("RGB", {}), ("L", {}), ("RGB", {"progressive": True}), ("RGB", {"quality": 95}), ("CMYK", {})]
    )
    data = encode(Image.fromarray(draw.choice([rgb, smooth])).convert(mode), "JPEG", **options)
    return f"JPEG, {mode}", data, ".jpg", stock(data), 257 if mode == "CMYK" else 0


def refused(draw: random.Random) -> Made:
    """What is no picture, or none that can be read."""
    floats = np.array([[0.5, draw.choice([-1.0, 2.0, np.nan, np.inf])]], np.float32)
    bmp = bytearray(encode(Image.new("RGB", (4, 4)), "BMP"))
    bmp[18:22] = bytes(4)
    deep = np.full((2, 3, 3), 0x1234, ">u2")
    whole = encode(Image.effect_noise((32, 24), 90), "JPEG", quality=95)
    choices: list[tuple[str, Callable[[], bytes]]] = [
        ("nothing", lambda: b""),
        (
            "text",
            lambda: draw.choice([b"hello", b"%PDF-1.7", b"<svg/>", b"P6 1 1 255 abc", b"\0\0\1\0\1\0", bytes(300)]),
        ),
        (
            "a magic number only",
            lambda: draw.choice([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"BM", b"II*\0"]),
        ),
        (
            "a bomb",
            lambda: png(9000, 9000, 1, 0, bytes(1126 * 9000)) if draw.random() < 0.1 else png(20000, 20000, 8, 2, b""),
        ),
        ("a bomb that ends", lambda: png(7900, 7900, 8, 2, b"\0" * 99)),
        (
            "no width",
            lambda: draw.choice([png(0, 5, 8, 0, b""), png(5, 0, 8, 0, b""), png(0, 0, 8, 2, b""), bytes(bmp)]),
        ),
        ("colours of 16 bits", lambda: png(3, 2, 16, 2, b"".join(b"\0" + row.tobytes() for row in deep))),
        ("numbers beyond 16 bits", lambda: encode(Image.fromarray(np.array([[70000, 5]], np.int32)), "TIFF")),
        ("numbers below 0", lambda: encode(Image.fromarray(np.array([[-1, 5]], np.int32)), "TIFF")),
        ("real numbers beyond 1", lambda: encode(Image.fromarray(floats), "TIFF")),
        ("a PNG of another kind", lambda: png(3, 2, 8, 5, bytes(8))),
        ("a JPEG without its middle", lambda: whole[: len(whole) - draw.randrange(200, 600)] + whole[-2:]),
    ]
    how, make = draw.choice(choices)
    return how, make(), draw.choice([".png", ".jpg", ".gif", ".tif", ".bmp", ".webp"]), None, 0


def draw_one(draw: random.Random) -> tuple[str, bytes, str, Want, NDArray | None]:
    """A picture, what it is called, what must come of it, and its right pixels."""
    how, data, ending, right, near = refused(draw) if draw.random() < 0.2 else sound(draw)
    if right is None:
        return how, data, ending, Want(None), None
    if draw.random() < 0.1:
        how, ending = f"{how}, wrong ending", draw.choice([*ENDING.values(), ".JPEG", ".Png"])
    match draw.randrange(6):
        case 0 | 1:
            return how, data, ending, Want({}, near=near), right
        case 2:
            return (
                f"{how}, cut off",
                data[: draw.randrange(len(data))],
                ending,
                Want({}, optional=True, near=near),
                right,
            )
        case 3:
            return (
                f"{how}, a tail",
                data + draw.choice([b"\n", b"tail", bytes(99)]),
                ending,
                Want({}, optional=True, near=near),
                right,
            )
    broken = damage(draw, data, times=draw.choice([1, 1, 3]))
    other = None if data[:4] == b"\x89PNG" else lambda: {"pixels": [stock(broken)]}
    return f"{how}, damage", broken, ending, Want({}, optional=True, near=max(near, 257.0), other=other), right


def finish(draw: random.Random, put: Callable[[bytes, str], Any]) -> tuple[str, Want, int]:
    """Put some sound pictures and one mutant; its row."""
    how, data, ending, want, right = draw_one(draw)
    rows, at = draw.choice([1, 2, 3]), 0
    at = draw.randrange(rows)
    values = []
    for i in range(rows):
        if i == at:
            put(data, ending)
            values.append(right)
        else:
            plain = np.full((2, 3), 40 * i, np.uint8)
            put(encode(Image.fromarray(plain), "PNG"), ".png")
            values.append(wide(plain))

    def others() -> dict[str, list[Any]]:
        assert want.other is not None
        return {"pixels": [want.other()["pixels"][0] if i == at else v for i, v in enumerate(values)]}

    found = None if want.values is None else {"pixels": values}
    places = frozenset([f"row {at + 1}"])
    return how, Want(found, places, want.optional, others if want.other else None, want.near), rows


def also(want: Want, row: int) -> Want:
    """Refused for a row, or for what was wrong before."""
    before = want.places if want.optional or want.values is None else frozenset()
    return Want(None, before | {f"row {row}"})


def draw_folder(draw: random.Random) -> Mutant:
    """A folder with labels as its folders."""
    files: dict[str, bytes] = {}

    def put(data: bytes, ending: str) -> None:
        files[f"shots/a/{chr(97 + len(files))}{ending}"] = data

    how, want, rows = finish(draw, put)
    links: dict[str, str] = {}
    if draw.random() < 0.03:
        links = {
            f"shots/a/{chr(97 + rows)}.png": draw.choice(["/dev/zero", "/etc/passwd", "../../../x.png", "missing"])
        }
        want, how = also(want, rows + 1), "a link"
    return Mutant(how, files, "shots", want, "shots", read_pictures, links)


def draw_cells(draw: random.Random) -> Mutant:
    """Bytes, or arrays, or paths in a table."""
    cells: list[Any] = []
    files: dict[str, bytes] = {}
    if draw.random() < 0.5:
        how, want, rows = finish(draw, lambda data, _: cells.append(data))
    else:

        def put(data: bytes, ending: str) -> None:
            files[f"p{len(files)}{ending}"] = data
            cells.append(f"p{len(files) - 1}{ending}")

        how, want, rows = finish(draw, put)
    if draw.random() < 0.15:
        at = draw.randrange(rows)
        odd: list[Any] = [
            "",
            None,
            5,
            "no.png",
            "../t.png",
            "/etc/passwd",
            "a\0.png",
            "x" * 5000 + ".png",
            ".",
            "p",
            [1],
            {"a": 1},
        ]
        odd += [
            True,
            2.5,
            np.zeros((2, 2), np.int64),
            np.full((2, 2), np.nan),
            np.zeros((2, 2, 2, 2), np.uint8),
            b"\xff",
        ]
        odd += [np.zeros((0, 4), np.uint8), np.full((3, 3), 1.5), "p0.png/x", "\ud800.png"]
        cells[at] = draw.choice(odd)
        want, how = also(want, at + 1), f"{type(cells[at]).__name__} for a picture"
    texts = all(isinstance(c, str) for c in cells)
    if texts and not any("\ud800" in c for c in cells):
        files["t.jsonl"] = b"".join(json.dumps({"path": c, "label": "a"}).encode() + b"\n" for c in cells)
        return Mutant(f"{how}, by path", files, "t.jsonl", want, "t.jsonl", read_pictures)
    rows_ = [{"path": c, "label": "a"} for c in cells]
    return Mutant(f"{how}, in a cell", files, rows_, want, "data", read_pictures)
