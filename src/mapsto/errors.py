"""What a user can get wrong, as exceptions whose text says what is wrong, what was expected and what to type.

The command line prints the text behind ``error:`` and exits with the class's code; a traceback is shown with
``--debug`` only. Invariants of our own are ``assert``; these classes are for mistakes a user can mend.
"""

import difflib
from collections.abc import Iterable

__all__ = [
    "ConfigError",
    "DataError",
    "LostRankError",
    "MapstoError",
    "ModelFileError",
    "NonFiniteError",
    "ResourceError",
    "did_you_mean",
]


class MapstoError(Exception):
    """A mistake the user can mend. ``code`` is the exit code of the command line."""

    code = 1


class ConfigError(MapstoError):
    """A wrong argument, key or kind (exit code 2)."""

    code = 2


class DataError(MapstoError):
    """A file or value that cannot be read as what it should be; names the file and the row (exit code 3)."""

    code = 3


class ModelFileError(MapstoError):
    """A run or model file that is missing, damaged or of another model (exit code 4)."""

    code = 4


class ResourceError(MapstoError):
    """Not enough memory or disk; says how much is needed and what needs less (exit code 5)."""

    code = 5


class NonFiniteError(MapstoError):
    """A loss or gradient that stayed NaN or infinite; the last good checkpoint is kept (exit code 6)."""

    code = 6


class LostRankError(MapstoError):
    """Another process of the run was lost or stalled (exit code 7)."""

    code = 7


def did_you_mean(name: str, known: Iterable[str], *, form: str = "{}") -> str:
    """The closest known name as a question to append to an error, or nothing.

    Example:
        >>> did_you_mean("favour", ["softmax", "favor"])
        '   Did you mean "favor"?'
        >>> did_you_mean("xyz", ["softmax", "favor"])
        ''
    """
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'   Did you mean "{form.format(close[0])}"?' if close else ""
