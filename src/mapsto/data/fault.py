"""Errors and warnings that quote what stands in a file: on one line, and nothing in them acts on a terminal."""

from mapsto.errors import DataError

__all__ = ["fault", "plain"]

LONGEST = 2000


def plain(text: str) -> str:
    r"""Text with everything that is not printable escaped: line breaks, control characters, changes of direction.

    Example:
        >>> print(plain("a\nb\x1b[31m é"))
        a\nb\x1b[31m é
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def fault(text: str) -> DataError:
    """A DataError whose text is plain; every error about the content of a file is made here."""
    return DataError(plain(text))
