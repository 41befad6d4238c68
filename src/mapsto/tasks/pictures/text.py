"""Text from data, made safe to show: control characters visible, long names shortened, HTML escaped."""

import html
import unicodedata

__all__ = ["columns", "escape", "joined", "number", "shorten", "visible"]

JOINERS = "\u200c\u200d"  # letters of Persian and Hindi are shaped by them; they hide nothing


def visible(text: str, kept: str = "") -> str:
    r"""Control characters, direction marks and broken code points as something that can be seen, but for those kept.

    Example:
        >>> visible("a\tb\u202ec")
        'a␉b\\u202ec'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in kept else _seen(c) for c in text)


def _seen(c: str) -> str:
    code = ord(c)
    if code < 32:
        return chr(0x2400 + code)
    if code == 127:
        return "\u2421"
    if c in JOINERS or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return c
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape(text: object) -> str:
    """Text for an HTML page, in an element or in a quoted attribute.

    Example:
        >>> escape("<b>")
        '&lt;b&gt;'
    """
    return html.escape(visible(str(text)), quote=True)


def shorten(text: str, limit: int) -> str:
    """A long name with its middle left out.

    Example:
        >>> shorten("antimicrobial", 9)
        'anti…bial'
    """
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def joined(parts: list[str], limit: int = 8) -> str:
    """A list of names, cut after some.

    Example:
        >>> joined(["a", "b", "c"], 2)
        'a, b, and 1 more'
    """
    shown = ", ".join(parts[:limit])
    return f"{shown}, and {len(parts) - limit} more" if len(parts) > limit else shown


def number(value: float) -> str:
    """A number with about four digits.

    Example:
        >>> number(12345.6), number(0.123456), number(3.0)
        ('12350', '0.1235', '3')
    """
    return f"{float(f'{value:.4g}'):g}" if 1e-4 <= abs(value) < 1e6 else f"{value:.4g}"


def columns(text: str) -> int:
    """How many columns of a fixed-width font a text takes: Chinese letters take two, accents of their own none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    none = sum(unicodedata.category(c) in ("Mn", "Me", "Cf") for c in text)
    return len(text) + wide - none
