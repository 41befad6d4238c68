"""What a column holds, found by reading all of it once: counts, lengths, values, and the kind they suggest."""

import decimal
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from mapsto.data.content import content
from mapsto.data.fault import plain
from mapsto.data.folder import MUSIC, PICTURES
from mapsto.data.source import Table
from mapsto.data.value import NUMBER, label, missing, show
from mapsto.errors import DataError

__all__ = ["Guess", "Summary", "describe", "infer"]

Form = Literal["text", "number", "bool", "numbers", "texts", "picture", "music", "records", "other", "empty", "nothing"]
FEW = 20  # different values that numbers may have to be taken for labels, when asked as a target
MOST = 100_000  # different values that are counted; above it, a text column is certainly no label
ONE = re.compile(rf"\s*{NUMBER}\s*", re.ASCII)
SERIES = re.compile(rf"\s*{NUMBER}(?:(?:\s*[,;]\s*|\s+){NUMBER})+\s*", re.ASCII)
LISTS = re.compile(r"\s*\[[][0-9eE+.,\s-]*\]\s*", re.ASCII)
MARKED = re.compile(r"\s*[+-]?[0-9]+(?:,[0-9]+|(?:[,' ][0-9]{3})+)\s*", re.ASCII)  # 3,14 and 1,234,567: not lists
MAGIC = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF", b"II*\0", b"MM\0*", b"BM", b"GIF8")


@dataclass(frozen=True)
class Guess:
    """A kind and why."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Summary:
    """What a column holds.

    Attributes:
        name: the column.
        form: what most cells are: "text", "number" (also as text), "bool", "numbers" (a list or array of them),
            "texts" (a list), "picture", "music" (MIDI files), "records" (dicts), "other", "nothing" (all missing).
        rows: all rows.
        missing: rows without a value (None, NaN).
        missing_rows: the numbers of the first ten of them.
        distinct: different values, counted up to 100,000.
        counts: the commonest values and how often each occurs; all of them if there are at most 1,000.
        unit: what ``lengths`` counts: words, characters or items.
        lengths: shortest, median, longest; None for numbers.
        range: least, mean, greatest; None but for numbers.
        whole: all numbers are whole.
        odd: row number and value of the first ten cells of another form than ``form``.
        oddities: how many such cells there are.
        examples: the first three values.
        warnings: what the user should know: all missing, one value only, some values of another form.
    """

    name: str
    form: Form
    rows: int
    missing: int
    missing_rows: list[int]
    distinct: int
    counts: dict[str, int]
    unit: str
    lengths: tuple[int, int, int] | None
    range: tuple[float, float, float] | None
    whole: bool
    odd: list[tuple[int, str]]
    oddities: int
    examples: list[str]
    warnings: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The kind as a source, by :func:`infer`."""
        return infer(self).kind

    @property
    def reason(self) -> str:
        """Why."""
        return infer(self).reason


def form_of(value: Any) -> Form:
    """What one cell that is not missing is."""
    if isinstance(value, str):
        if value[:1] in "+-.0123456789[ \t" and value:
            if ONE.fullmatch(value):
                return "number" if math.isfinite(float(value)) else "text"
            if LISTS.fullmatch(value) or (SERIES.fullmatch(value) and not MARKED.fullmatch(value)):
                return "numbers"
        return "text" if len(value) >= 1024 else file_of(value.lower())
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, int | float | np.integer | np.floating | decimal.Decimal):
        try:
            return "number" if math.isfinite(value) else "other"
        except OverflowError:  # a whole number of hundreds of digits
            return "other"
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.ndim >= 2:
            return "picture"
        return "numbers" if value.dtype.kind in "iufb" else "texts" if value.dtype.kind == "U" else "other"
    if isinstance(value, bytes):
        return "picture" if value.startswith(MAGIC) else "music" if value.startswith(b"MThd") else "other"
    if isinstance(value, Mapping):
        return "records"
    if isinstance(value, Sequence):
        if not len(value):
            return "empty"
        first = next((item for item in value if item is not None), 0.0)
        if isinstance(first, str):
            return "texts"
        if isinstance(first, Sequence | np.ndarray) and len(first) and isinstance(first[0], str | Mapping):
            return "other"
        return "records" if isinstance(first, Mapping) else "numbers"
    return "other"


def file_of(name: str) -> Form:
    return "picture" if name.endswith(PICTURES) else "music" if name.endswith(MUSIC) else "text"


class Tally:
    """One column, a cell at a time."""

    def __init__(self, name: str):
        self.name = name
        self.rows = 0
        self.missing = 0
        self.missing_rows: list[int] = []
        self.forms: Counter[Form] = Counter()
        self.first: dict[Form, list[tuple[int, str]]] = {}
        self.no_texts: list[tuple[int, str]] = []
        self.words: Counter[int] = Counter()
        self.characters: Counter[int] = Counter()
        self.items: Counter[int] = Counter()
        self.values: Counter[Any] = Counter()
        self.open = True
        self.low, self.high, self.sum, self.numbers = math.inf, -math.inf, 0.0, 0
        self.whole = True
        self.examples: list[str] = []

    def add(self, value: Any, row: int) -> None:
        self.rows += 1
        if missing(value):
            self.missing += 1
            if len(self.missing_rows) < 10:
                self.missing_rows.append(row)
            return
        form = form_of(value)
        self.forms[form] += 1
        if self.forms[form] <= 10:
            self.first.setdefault(form, []).append((row, show(value)))
        if len(self.examples) < 3:
            self.examples.append(show(value))
        if form == "number":
            self.measure(float(value))
        if isinstance(value, str):
            self.words[1 if form == "number" else len(value.split())] += 1
            self.characters[len(value)] += 1
            if form == "numbers":
                self.items[len(re.findall(NUMBER, value))] += 1
        else:
            if hasattr(value, "__len__"):
                self.items[len(value)] += 1
            if len(self.no_texts) < 10:
                self.no_texts.append((row, show(value)))
        if self.open or form in COUNTED:
            # what is long is counted by its hash
            short = len(value) < 256 if isinstance(value, str) else form in COUNTED
            key = value if short else (content((value,)),)
            if self.open or key in self.values:
                self.values[key] += 1
                self.open = len(self.values) < MOST

    def measure(self, number: float) -> None:
        self.low = number if number < self.low else self.low
        self.high = number if number > self.high else self.high
        self.sum, self.numbers = self.sum + number, self.numbers + 1
        self.whole = self.whole and number.is_integer()

    def summary(self) -> Summary:
        there = self.rows - self.missing
        if "empty" in self.forms:  # an empty list is one of whatever the other lists hold
            lists: Form = max(LISTED, key=lambda f: self.forms[f])
            self.forms[lists] += self.forms.pop("empty")
            self.first.setdefault(lists, []).extend(self.first.pop("empty"))
        # The commonest form names the column; texts win only if numbers (or pictures, or lists) do not reach 95 %.
        form: Form = self.forms.most_common(1)[0][0] if there else "nothing"
        if form not in ("text", "nothing") and "text" in self.forms and self.forms[form] < 0.95 * there:
            form = "text"
        if form == "text":  # texts of numbers or paths are texts too
            odd, oddities = self.no_texts, there - sum(self.characters.values())
        else:
            others = [cell for f, seen in self.first.items() if f != form for cell in seen]
            odd, oddities = sorted(others)[:10], there - self.forms[form]
        unit, lengths = self.lengths(form)
        top = self.values.most_common(1000)
        warnings = []
        if not there:
            warnings.append(f'"{self.name}" is empty in all {self.rows} rows.')
        elif len(self.values) == 1 and there > 1:
            warnings.append(f'"{self.name}" has one value only ({self.examples[0]}).')
        if oddities:
            shown = ", ".join(f"row {row}: {text}" for row, text in odd[:3])
            warnings.append(f'"{self.name}": {oddities} of {there} values are not {NAME[form]} ({shown}).')
        return Summary(
            self.name,
            form,
            self.rows,
            self.missing,
            self.missing_rows,
            len(self.values),
            {spell(v): n for v, n in top if not isinstance(v, tuple)} if form in COUNTED else {},
            unit,
            lengths,
            (float(self.low), self.sum / self.numbers, float(self.high)) if form == "number" and self.numbers else None,
            form == "number" and self.whole,
            odd,
            oddities,
            self.examples,
            [plain(warning) for warning in warnings],
        )

    def lengths(self, form: Form) -> tuple[str, tuple[int, int, int] | None]:
        if form == "text":
            words = median(self.words) > 1
            counter, unit = (self.words, "words") if words else (self.characters, "characters")
        elif form in ("numbers", "texts", "records"):
            counter, unit = self.items, "items"
        else:
            return "", None
        return unit, (min(counter), median(counter), max(counter)) if counter else None


NAME: dict[Form, str] = {
    "text": "text",
    "number": "numbers",
    "bool": "true or false",
    "numbers": "lists of numbers",
    "texts": "lists of texts",
    "picture": "pictures",
    "music": "MIDI files",
    "records": "records",
    "other": "of one kind",
    "empty": "empty lists",
    "nothing": "there",
}
COUNTED = ("text", "number", "bool")
LISTED: tuple[Form, ...] = ("numbers", "texts", "records")


def spell(value: Any) -> str:
    try:
        return label(value)
    except DataError:  # an empty text, an infinite number
        return value if isinstance(value, str) else show(value)


def median(counts: Counter[int]) -> int:
    half, seen = (sum(counts.values()) + 1) // 2, 0
    for length in sorted(counts):
        seen += counts[length]
        if seen >= half:
            return length
    return 0


def describe(table: Table, columns: Sequence[str] | None = None) -> dict[str, Summary]:
    """Read columns (all by default) once, streamed, and summarise each."""
    names = list(columns) if columns is not None else table.columns
    tallies = {name: Tally(name) for name in names}
    for chunk in table.chunks(names):
        for name, tally in tallies.items():
            for row, value in enumerate(chunk.columns[name], chunk.first):
                tally.add(value, row)
    return {name: tally.summary() for name, tally in tallies.items()}


def infer(summary: Summary, role: Literal["source", "target"] = "source") -> Guess:
    """The kind of a column, by these rules, the first that fits:

    1. pictures (paths, bytes, uint8 arrays of two axes or more): image; MIDI files (paths, bytes): music
    2. lists of numbers: series; lists of texts: a sequence as source, labels as target; records: set
    3. true and false: label
    4. numbers: number; as a target, whole numbers of at most 20 different values that repeat: label
    5. texts that repeat (twice each on average if at most 20 are different, else ten times): label
    6. other texts: sequence
    """  # noqa: D415
    there = summary.rows - summary.missing
    different = summary.distinct
    match summary.form:
        case "picture":
            return Guess("image", "pictures")
        case "music":
            return Guess("music", "MIDI files")
        case "numbers":
            return Guess("series", "lists of numbers")
        case "texts":
            return Guess("sequence" if role == "source" else "labels", "lists of texts")
        case "records":
            return Guess("set", "lists of records")
        case "bool":
            return Guess("label", "true and false")
        case "number":
            if role == "target" and summary.whole and different <= FEW and there >= 2 * different:
                return Guess("label", f"whole numbers of {different} different values; name:number to predict a number")
            return Guess("number", "numbers")
        case "text":
            if there >= different * (2 if different <= FEW else 10) and different < MOST:
                return Guess("label", f"{different} different texts in {there} rows")
            return Guess("sequence", "texts of words" if summary.unit == "words" else "texts that differ")
    return Guess("nothing", "no values" if summary.form == "nothing" else f"values such as {summary.examples[0]}")
