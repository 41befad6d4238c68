"""How far one sequence is from another: insertions, deletions and substitutions, on strings, lists or arrays of ids."""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Edits", "Symbols", "edit_distance", "edit_rate", "edits", "unmatched"]

Symbols = Sequence[Hashable] | NDArray


class Edits(NamedTuple):
    """What one of the shortest ways from the true sequence to the said one is made of."""

    substitutions: int
    insertions: int
    deletions: int


def edit_distance(said: Symbols, true: Symbols) -> int:
    """The least number of insertions, deletions and substitutions that make one of the other (Levenshtein).

    Bit-parallel: the differences between neighbours in a column of the table are bits of two integers (Myers 1999;
    in the form of Hyyro 2003), so the time is O(n ceil(m / 64)) words for lengths n, m.

    Example:
        >>> edit_distance("sitting", "kitten"), edit_distance(["AH0", "B"], ["AH0"])
        (3, 1)
    """
    a, b = _plain(true), _plain(said)
    if a == b:
        return 0
    up, down = (1 << len(a)) - 1, 0
    for up, down in _columns(a, b):  # noqa: B007  the last column is what counts
        pass
    return len(b) + up.bit_count() - down.bit_count()


def edits(said: Symbols, true: Symbols) -> Edits:
    """The distance in its parts; where several ways are shortest, those of one of them.

    Time as of :func:`edit_distance` and O(n + m) to trace back; memory O(n m) bits.

    Example:
        >>> edits("sitting", "kitten")
        Edits(substitutions=2, insertions=1, deletions=0)
    """
    steps = list(_way(_plain(true), _plain(said)))
    deletions, insertions = (sum(step[side] < 0 for step in steps) for side in (1, 0))
    return Edits(sum(not same for *_, same in steps) - insertions - deletions, insertions, deletions)


def unmatched(said: Symbols, true: Symbols) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which symbols of each one of the shortest ways does not keep: what is wrong in the said, what it lacks of the true.

    Time and memory as of :func:`edits`.

    Example:
        >>> [mask.tolist() for mask in unmatched("cart", "cat")]
        [[False, False, True, False], [False, False, False]]
    """
    a, b = _plain(true), _plain(said)
    wrong, lacking = np.ones(len(b), np.bool_), np.ones(len(a), np.bool_)
    for i, j, same in _way(a, b):
        if same:
            lacking[i], wrong[j] = False, False
    return wrong, lacking


def edit_rate(said: Sequence[Symbols], true: Sequence[Symbols]) -> float:
    """Sum over rows of the distance / sum of the true lengths; NaN if all of them are empty.

    Of words it is the WER, of phonemes the PER, of characters the CER. It may be above 1.

    Raises:
        ValueError: not as many said as true.

    Example:
        >>> edit_rate([["a", "cat"], ["b"]], [["the", "cat"], ["b", "c"]])
        0.5
    """
    distance = sum(edit_distance(a, b) for a, b in zip(said, true, strict=True))
    length = sum(len(row) for row in true)
    return distance / length if length else float("nan")


def _plain(row: Symbols) -> Sequence[Hashable]:
    if isinstance(row, str):
        return row
    return row.tolist() if isinstance(row, np.ndarray) else list(row)


def _way(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[tuple[int, int, bool]]:
    # one of the shortest ways from a to b, backwards: (place in a, place in b, whether they are the same), a place being
    # -1 where only the other sequence has a symbol
    columns = [((1 << len(a)) - 1, 0), *_columns(a, b)]
    i, j = len(a), len(b)
    while i or j:
        if not j or (i and columns[j][0] >> i - 1 & 1):  # D(i, j) = D(i - 1, j) + 1
            i -= 1
            yield i, -1, False
        elif not i or columns[j - 1][1] >> i - 1 & 1:  # D(i, j) = D(i, j - 1) + 1
            j -= 1
            yield -1, j, False
        else:
            i, j = i - 1, j - 1
            yield i, j, a[i] == b[j]


def _columns(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    # after each symbol of b: bit i - 1 of the first says D(i, j) - D(i - 1, j) = 1, of the second that it is -1
    where: dict[Hashable, int] = {}
    for i, symbol in enumerate(a):
        where[symbol] = where.get(symbol, 0) | 1 << i
    full = (1 << len(a)) - 1
    up, down = full, 0
    for symbol in b:
        same = where.get(symbol, 0) | down
        zero = (((same & up) + up) ^ up) | same  # D(i, j) = D(i - 1, j - 1)
        right = (down | ~(zero | up)) << 1 | 1  # D(i, j) - D(i, j - 1) = 1, moved to the next i
        left = (up & zero) << 1
        up, down = (left | ~(zero | right)) & full, right & zero & full
        yield up, down
