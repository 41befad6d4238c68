"""Which rows teach, which choose and which test: a function of the rows' content, so that copies never part.

Rows of the same content, and rows of one group, form a *unit*; a unit is never cut. A unit's place is a hash of its
content (or group) and the seed, so it does not depend on the order of the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapsto.data.content import content
from mapsto.data.fault import fault
from mapsto.errors import did_you_mean
from mapsto.stream import entropy

__all__ = ["PARTS", "Split", "by_column", "content", "folds", "split"]

PARTS = ("train", "val", "test")
NAMES = {"train": 0, "training": 0, "val": 1, "valid": 1, "validation": 1, "dev": 1, "test": 2, "testing": 2}
LARGE = 20_000
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Split:
    """A side for every row.

    Attributes:
        sides: (rows,) uint8: 0 train, 1 val, 2 test.
        duplicates: rows beyond the first of the same content; all on one side unless the user's own split parts them.
        crossing: rows of val or test whose content is in train too: none, unless the user's own split has them.
    """

    sides: NDArray[np.uint8]
    duplicates: int = 0
    crossing: int = 0

    def rows(self, part: str) -> NDArray[np.int64]:
        """The rows of "train", "val" or "test", counted from 0, in the order of the file."""
        return np.flatnonzero(self.sides == PARTS.index(part))

    @property
    def counts(self) -> dict[str, int]:
        """How many rows each part has."""
        return {part: int((self.sides == i).sum()) for i, part in enumerate(PARTS)}


@dataclass(frozen=True)
class Units:
    """What cannot be cut: ``of`` (rows,) says which unit a row is in; ``place`` (units,) is uniform in uint64."""

    of: NDArray[np.int64]
    place: Keys
    rows: NDArray[np.int64]

    @classmethod
    def build(cls, keys: Keys, groups: Sequence[Any] | NDArray | None, seed: int, purpose: str) -> "Units":
        distinct, of = np.unique(np.asarray(keys, np.uint64), return_inverse=True)
        if groups is not None:
            group_keys = np.fromiter((content((g,)) for g in groups), np.uint64, len(of))
            assert len(group_keys) == len(of), "one group a row"
            distinct, of = connect(of, len(distinct), group_keys)
        return cls(of, mix(distinct, seed, purpose), np.bincount(of, minlength=len(distinct)))

    def __len__(self) -> int:
        return len(self.rows)


def connect(of: NDArray[np.int64], copies: int, group_keys: Keys) -> tuple[Keys, NDArray[np.int64]]:
    # Rows are edges between their content and their group; what hangs together is one unit, named by its least group.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    groups, group = np.unique(group_keys, return_inverse=True)
    size = copies + len(groups)
    edges = coo_array((np.ones(len(of), np.bool_), (of, group + copies)), (size, size))
    count, component = connected_components(edges, directed=False)
    least = np.full(count, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(least, component[copies:], groups)
    return least, component[of].astype(np.int64)


def mix(keys: Keys, seed: int, purpose: str) -> Keys:
    # Two rounds of the finaliser of splitmix64, keyed by the seed.
    x = keys ^ np.uint64(entropy(seed, purpose))
    with np.errstate(over="ignore"):
        for salt in (entropy(seed, purpose, 1), entropy(seed, purpose, 2)):
            x = x + np.uint64(salt)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
    return x


def split(
    keys: Keys,
    *,
    labels: Sequence[Any] | NDArray | None = None,
    groups: Sequence[Any] | NDArray | None = None,
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> Split:
    """Deal rows to train, val and test.

    With 20,000 units or more by a threshold on each unit's hash, so that a row's side does not depend on the other
    rows; below that by cutting each label's units in the order of their hash, so that the shares are met within
    rounding, and a label of three units or more is in every part.

    Args:
        keys: (rows,) the content of each row's source, by :func:`content`.
        labels: what to cut within; None for numbers and sequences.
        groups: rows of one group stay together.
        shares: of rows, for train, val, test.
        seed: another seed, another split.

    Raises:
        DataError: too few different rows, or groups, to fill the parts.
    """
    if min(shares) < 0 or not shares[0] > 0:
        raise fault(f"shares {shares} of train, val and test: expected none below 0, and train above 0.")
    share = np.array(shares) / sum(shares)
    units = Units.build(keys, groups, seed, "split")
    parts = int((share > 0).sum())
    if len(units) < parts:
        what = "different rows" if groups is None else "groups of different rows"
        raise fault(f"{len(units)} {what} cannot fill {parts} parts (train, val, test).   Add rows, or folds.")
    if len(units) >= LARGE:
        place = units.place / 2.0**64
        side = np.searchsorted(np.cumsum(share)[:-1], place, side="right").astype(np.uint8)
    else:
        side = cut(units, share, labels)
        if labels is not None and any(not (side == i).any() for i in range(3) if share[i] > 0):
            side = cut(units, share, None)
    return Split(side[units.of], duplicates(keys))


def cut(units: Units, share: NDArray, labels: Sequence[Any] | NDArray | None) -> NDArray[np.uint8]:
    side = np.zeros(len(units), np.uint8)
    debt = np.zeros(3)  # what earlier labels took too little, so that roundings cancel
    for members in classes(units, labels):
        sizes = units.rows[members]
        # A unit that would overfill val or test (many groups tied together by copies) comes last: it is for train.
        large = sizes > 1.5 * max(share[1], share[2]) * sizes.sum()
        order = np.lexsort((units.place[members], large))
        free = len(members)
        start = 0
        for part in (2, 1):
            wanted = share[part] * sizes.sum() + debt[part]
            if share[part] <= 0:
                continue
            ends = np.cumsum(sizes[order[start:]])
            take = int(np.argmin(np.abs(np.concatenate([[0], ends]) - wanted)))
            later = 1 + (part == 2 and share[1] > 0)  # parts that still need one unit each
            least = 1 if free >= 3 or len(units) == free else 0
            take = max(min(take, free - start - (later if free >= 3 else 1)), min(least, free - start - later), 0)
            debt[part] = wanted - (ends[take - 1] if take else 0)
            side[members[order[start : start + take]]] = part
            start += take
    return side


def classes(units: Units, labels: Sequence[Any] | NDArray | None) -> list[NDArray[np.int64]]:
    if labels is None:
        return [np.arange(len(units))]
    assert len(labels) == len(units.of), "one label a row"
    _, code = np.unique(np.array([str(label) for label in labels]), return_inverse=True)
    # A unit of several labels counts for its commonest one.
    pairs, counts = np.unique(units.of * (code.max() + 1) + code, return_counts=True)
    of, label = np.divmod(pairs, code.max() + 1)
    order = np.lexsort((label, -counts, of))
    first = order[np.unique(of[order], return_index=True)[1]]
    commonest = label[first]
    return [np.flatnonzero(commonest == c) for c in np.unique(commonest)]


def folds(
    keys: Keys,
    k: int,
    *,
    labels: Sequence[Any] | NDArray | None = None,
    groups: Sequence[Any] | NDArray | None = None,
    seed: int = 0,
) -> NDArray[np.uint8]:
    """A fold number in 0 .. k - 1 for every row, copies and groups in one fold, labels spread evenly.

    Raises:
        DataError: fewer different rows, or groups, than folds.
    """
    units = Units.build(keys, groups, seed, "folds")
    if not 2 <= k <= 255 or len(units) < k:
        what = "different rows" if groups is None else "groups of different rows"
        raise fault(f"{k} folds of {len(units)} {what}: expected 2 to {max(2, min(255, len(units)))} folds.")
    if len(units) >= LARGE:
        return ((units.place >> np.uint64(32)) * np.uint64(k) >> np.uint64(32)).astype(np.uint8)[units.of]
    fold = np.zeros(len(units), np.uint8)
    total = [0] * k
    for members in classes(units, labels):
        own = [0] * k
        order = members[np.argsort(units.place[members])]
        order = order[np.argsort(-units.rows[order], kind="stable")]  # large ones first, small ones level the folds
        for unit, size in zip(order.tolist(), units.rows[order].tolist(), strict=True):
            best = min(range(k), key=lambda f: (own[f], total[f]))
            fold[unit] = best
            own[best] += size
            total[best] += size
    return fold[units.of]


def by_column(
    values: Sequence[Any],
    *,
    keys: Keys | None = None,
    labels: Sequence[Any] | None = None,
    groups: Sequence[Any] | None = None,
    seed: int = 0,
) -> Split:
    """The user's own split: "train", "val" (valid, validation, dev) and "test" in a column.

    A missing val or test is cut out of train (a tenth of it, by :func:`split`), which needs ``keys``.

    Raises:
        DataError: another name, with the row; no train; nothing but train.
    """
    sides = np.zeros(len(values), np.uint8)
    for row, value in enumerate(values, 1):
        side = NAMES.get(value.strip().lower()) if isinstance(value, str) else None
        if side is None:
            shown = "is missing" if value is None else f'is "{value}"'
            hint = did_you_mean(str(value).lower(), NAMES)
            found = ", ".join(f'"{v}"' for v in list(dict.fromkeys(map(str, values)))[:8])
            raise fault(f"row {row}: the split {shown}, expected train, val or test.   found: {found}.{hint}")
        sides[row - 1] = side
    there = set(sides.tolist())
    if 0 not in there or len(there) == 1:
        found = ", ".join(f'"{v}"' for v in dict.fromkeys(values))
        raise fault(f"the split needs train and test (and val).   found: {found}.")
    lacking = {1, 2} - there
    if lacking:
        assert keys is not None, "cutting val out of train needs the rows' content"
        train = np.flatnonzero(sides == 0)
        shares = (0.9, 0.1, 0.0) if lacking == {1} else (0.9, 0.0, 0.1)
        of = [None if x is None else [x[i] for i in train.tolist()] for x in (labels, groups)]
        sides[train] = split(keys[train], labels=of[0], groups=of[1], shares=shares, seed=seed).sides
    if keys is None:
        return Split(sides)
    return Split(sides, duplicates(keys), int(np.isin(keys[sides > 0], keys[sides == 0]).sum()))


def duplicates(keys: Keys) -> int:
    return len(keys) - len(np.unique(keys))
