"""JSON, read strictly and written canonically: one value has one text, and a text that could be read twice is refused."""

import json
import re
from collections import Counter
from typing import Any, NoReturn

__all__ = ["dump", "parse"]

DEEPEST = 64


def dump(content: Any) -> bytes:
    """The one UTF-8 text of a value of JSON: one space a level, a line break at the end, no NaN."""
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse(text: str) -> Any:
    """Strict JSON.

    Refused: keys given twice, NaN and Infinity, numbers beyond float64, lone surrogates, whole numbers of more than
    4300 digits, lists and objects deeper than 64.

    Raises:
        ValueError: says what is wrong (a ``json.JSONDecodeError``, with the place, for broken syntax).

    Example:
        >>> parse('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: the key "a" is given 2 times.
    """
    if text.count("[") + text.count("{") > DEEPEST and depth(text) > DEEPEST:
        raise ValueError(f"lists or objects nested deeper than {DEEPEST}.")
    try:
        value = DECODER.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's own limit
            raise ValueError("a whole number of more than 4300 digits.") from None
        raise
    if "\\u" in text and ("\\ud" in text or "\\uD" in text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair (\\ud800 to \\udfff) stands alone.") from None
    return value


BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]')


def depth(text: str) -> int:
    now = deepest = 0
    for mark in BRACKET.findall(text):
        if mark in "[{":
            now += 1
            deepest = max(deepest, now)
        elif mark in "]}":
            now -= 1
    return deepest


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = Counter(key for key, _ in pairs)
        double = next(name for name, count in names.items() if count > 1)
        raise ValueError(f"the key {quoted(double)} is given {names[double]} times.")
    return row


def quoted(text: str) -> str:
    """On one line, cut, and with nothing in it that acts on a terminal."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:60])
    return f'"{shown}"' if len(text) <= 60 else f'"{shown}..."'


def refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON. Write null for a missing value.")


def bounded(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:20]} is beyond the range of 64 bits.")
    return value


DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=refuse, parse_float=bounded)
