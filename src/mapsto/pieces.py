"""What a sentencepiece model may hold, read before sentencepiece reads it."""

import math
import struct
from collections.abc import Iterator

__all__ = ["check_pieces"]


def check_pieces(model: bytes, most: int) -> None:
    """Refuse a sentencepiece model that asks more of its parser than ours do.

    Ours are pieces (text, score, type), the first three being unknown, begin and end, and a trainer's and a
    normaliser's settings without a table of replacements, which sentencepiece would read unchecked.

    Args:
        model: the bytes of the file.
        most: pieces.

    Raises:
        ValueError: says what is wrong; so do IndexError and KeyError, where it is cut off.
    """
    types = []
    for number, value in _wire(model):
        if number == 1 and isinstance(value, bytes):
            piece = dict(_wire(value))
            text, score, kind = piece.pop(1), piece.pop(2, 0), piece.pop(3, 1)
            if piece or not isinstance(text, bytes) or not text.decode() or not isinstance(score, float | int):
                raise ValueError("a piece is no text with a score and a type")
            if not math.isfinite(score):
                raise ValueError("a score is not finite")
            types.append(kind)
        elif number in (2, 3, 5) and isinstance(value, bytes):
            for inner, setting in _wire(value):
                if isinstance(setting, bytes) and (setting.decode() and number != 2 and inner != 1):
                    raise ValueError("a table of replacements")
        else:
            raise ValueError(f"field {number}")
    if types[:3] != [2, 3, 3] or len(types) > most:
        raise ValueError(f"{len(types)} pieces, the first of types {types[:3]}")


def _wire(data: bytes) -> Iterator[tuple[int, bytes | float | int]]:
    """The fields of a message in the wire format of Protocol Buffers."""
    at, end = 0, len(data)

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    while at < end:
        key = varint()
        match key & 7:
            case 0:
                yield key >> 3, varint()
            case 2:
                size = varint()
                if size > end - at:
                    raise ValueError("cut off")
                at += size
                yield key >> 3, data[at - size : at]
            case 5:
                at += 4
                yield key >> 3, float(struct.unpack("<f", data[at - 4 : at])[0])
            case _:
                raise ValueError(f"wire type {key & 7}")
