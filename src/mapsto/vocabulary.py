"""Text and symbols to ids and back: bytes, characters, words, subwords, symbols. No torch here.

Ids 0, 1, 2 are the same in every vocabulary: unknown, begin, end.
"""

import importlib
import io
import json
import re
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mapsto.errors import ConfigError, DataError, ModelFileError, did_you_mean
from mapsto.pieces import check_pieces

__all__ = [
    "BEGIN",
    "END",
    "UNKNOWN",
    "Bytes",
    "Characters",
    "Subwords",
    "Symbols",
    "Vocabulary",
    "Words",
    "learn",
    "learn_column",
    "restore",
]

UNKNOWN, BEGIN, END = 0, 1, 2
SPECIAL = 3
MOST = 1 << 20  # symbols
MARKS = ("<unknown>", "<begin>", "<end>")


class Vocabulary(ABC):
    """The contract: ``decode(encode(text)) == text`` for every text the kind can hold.

    Attributes:
        kind: its name in files and on the command line.
        suffix: of the file it is kept in.
    """

    kind: ClassVar[str]
    suffix: ClassVar[str] = "json"

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of ids, the three special ones included."""

    @abstractmethod
    def encode(self, text: Any) -> NDArray[np.int32]:
        """The ids of a text (or of a list of symbols)."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> Any:
        """The text of ids; begin and end give nothing."""

    def decode_rows(self, ids: NDArray, lengths: NDArray) -> list[Any]:
        """The texts of rows of ids that stand end to end, so many ids each."""
        return [self.decode(part.tolist()) for part in np.split(ids, np.cumsum(lengths)[:-1])]

    @abstractmethod
    def names(self, ids: Iterable[int]) -> list[str]:
        """How to show each id to a person."""

    @abstractmethod
    def dump(self) -> bytes:
        """The content of the file that :func:`restore` reads."""


class Bytes(Vocabulary):
    """UTF-8 bytes: 256 ids, holds every text.

    Example:
        >>> Bytes().decode(Bytes().encode("é!"))
        'é!'
    """

    kind = "bytes"

    @property
    def size(self) -> int:
        """256 and the three special ids."""
        return SPECIAL + 256

    def encode(self, text: str) -> NDArray[np.int32]:
        """One id a byte."""
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8).astype(np.int32) + SPECIAL

    def decode(self, ids: Iterable[int]) -> str:
        """Bytes that are no UTF-8 become U+FFFD."""
        return bytes(i - SPECIAL for i in ids if i >= SPECIAL).decode("utf-8", "replace")

    def names(self, ids: Iterable[int]) -> list[str]:
        """Printable ASCII as itself, other bytes in hexadecimal."""
        return [MARKS[i] if i < SPECIAL else chr(i - 3) if 33 <= i - 3 < 127 else f"{i - 3:02X}" for i in ids]

    def dump(self) -> bytes:
        """Nothing but the kind."""
        return json.dumps({"kind": self.kind}).encode()


class Symbols(Vocabulary):
    """A list of known symbols; what is not in it is unknown.

    Example:
        >>> v = Symbols(["A", "B"])
        >>> v.encode(["B", "A", "?"]).tolist(), v.decode([4, 3])
        ([4, 3, 0], ['B', 'A'])
    """

    kind = "symbols"

    def __init__(self, symbols: Sequence[str]):
        if len(set(symbols)) != len(symbols):
            raise ModelFileError("vocabulary: a symbol occurs twice")
        self.symbols = list(symbols)
        self._ids = {s: i + SPECIAL for i, s in enumerate(self.symbols)}

    @property
    def size(self) -> int:
        """The known symbols and the three special ids."""
        return SPECIAL + len(self.symbols)

    def split(self, text: Any) -> list[str]:
        """The symbols of a text; here, a text is a list of symbols already."""
        if isinstance(text, str):
            return text.split()
        return [str(s) for s in text]

    def join(self, symbols: list[str]) -> Any:
        """The inverse of :meth:`split`."""
        return symbols

    def encode(self, text: Any) -> NDArray[np.int32]:
        """One id a symbol, 0 for an unknown one."""
        get = self._ids.get
        return np.array([get(s, UNKNOWN) for s in self.split(text)], np.int32)

    def decode(self, ids: Iterable[int]) -> Any:
        """Unknown symbols show as U+FFFD."""
        return self.join(
            [self.symbols[i - SPECIAL] if i >= SPECIAL else "\ufffd" for i in ids if i not in (BEGIN, END)]
        )

    def names(self, ids: Iterable[int]) -> list[str]:
        """The symbols themselves."""
        return [self.symbols[i - SPECIAL] if i >= SPECIAL else MARKS[i] for i in ids]

    def dump(self) -> bytes:
        """The list of symbols, in order."""
        return json.dumps({"kind": self.kind, "symbols": self.symbols}, ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )


class Characters(Symbols):
    """Unicode code points; holds every text made of the characters it has seen."""

    kind = "characters"

    def split(self, text: Any) -> list[str]:
        """Each code point."""
        return list(text)

    def join(self, symbols: list[str]) -> str:
        """Put together."""
        return "".join(symbols)


class Words(Symbols):
    """Lower-case words and punctuation marks; holds them, but neither case nor spacing.

    Example:
        >>> Words([]).split("It's a slow, lovely film!")
        ["it's", 'a', 'slow', ',', 'lovely', 'film', '!']
    """

    kind = "words"
    _pattern = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")

    def split(self, text: Any) -> list[str]:
        """Words (letters, digits, inner apostrophes) and single marks, in lower case."""
        return self._pattern.findall(text.lower())

    def join(self, symbols: list[str]) -> str:
        """With single spaces between."""
        return " ".join(symbols)


class Subwords(Vocabulary):
    """Pieces of words learned by sentencepiece (unigram model) with byte fallback: holds every text.

    Identity normalisation, no added or removed spaces (but U+2581, which stands for a space inside sentencepiece).
    """

    kind = "subwords"
    suffix = "model"

    def __init__(self, model: bytes):
        from sentencepiece import SentencePieceProcessor

        self.model = model
        try:
            check_pieces(model, MOST)
            self._processor = SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError, LookupError, struct.error) as error:
            cause = re.sub(r"[^ -~]+", "?", str(error))[:90]
            raise ModelFileError(f"vocabulary: this is no sentencepiece model of mapsto ({cause})") from None

    @property
    def size(self) -> int:
        """Pieces, bytes and special ids."""
        return int(self._processor.get_piece_size())

    def encode(self, text: str) -> NDArray[np.int32]:
        """The most probable cut."""
        return np.array(self._processor.encode(text), np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Put together, bytes included."""
        return str(self._processor.decode([int(i) for i in ids if i not in (BEGIN, END)]))

    def names(self, ids: Iterable[int]) -> list[str]:
        """The pieces, with a space shown as a space."""
        return [str(self._processor.id_to_piece(int(i))).replace("\u2581", " ") for i in ids]

    def dump(self) -> bytes:
        """The sentencepiece model."""
        return self.model


KINDS: dict[str, type[Vocabulary]] = {v.kind: v for v in (Bytes, Characters, Words, Symbols, Subwords)}
ELSEWHERE = {"music": "mapsto.music"}  # kinds that are not of texts, each a module with a ``restore`` of its own


def learn(kind: str, texts: Iterable[Any], *, size: int = 8000, least: int = 1) -> Vocabulary:
    """Learn a vocabulary from training texts.

    Symbols are ordered by falling count, then by themselves: the same texts give the same ids on every machine.

    Args:
        kind: ``bytes``, ``characters``, ``words``, ``symbols`` or ``subwords``.
        texts: the training texts, read once.
        size: at most so many symbols (for subwords, about so many pieces).
        least: leave out symbols seen less often.
    """
    if kind in ELSEWHERE:
        made: Vocabulary = importlib.import_module(ELSEWHERE[kind]).learn()
        return made
    if kind not in KINDS:
        raise ConfigError(f'vocabulary: "{kind}" is not one of {", ".join(KINDS)}.{did_you_mean(kind, KINDS)}')
    if kind == "bytes":
        return Bytes()
    if kind == "subwords":
        return _learn_subwords(texts, size)
    cls = KINDS[kind]
    assert issubclass(cls, Symbols)
    split = cls([]).split
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split(text))
    common = sorted((s for s, n in counts.items() if n >= least), key=lambda s: (-counts[s], s))
    return cls(common[:size])


def learn_column(kind: str, values: Iterable[Any], *, size: int, least: int, few: str) -> Vocabulary:
    """Learn the vocabulary of a column of texts or of lists of symbols, of a kind that fits it.

    Args:
        kind: as for :func:`learn`; or ``auto``: symbols for lists, characters for strings without spaces, subwords for
            other texts, or the kind ``few`` if there are less than a thousand of them.
        values: of the training rows, read once.
        size: at most so many symbols.
        least: leave out symbols seen less often.
        few: see ``kind``.
    """
    values = iter(values)
    head = list(islice(values, 1000))
    texts: Iterable[Any] = chain(head, values)
    if head and not isinstance(head[0], str):
        texts = ([str(s) for s in value] for value in texts)
        if kind == "auto":
            kind = "symbols"
    if kind == "auto":
        words = sum(len(t.split()) for t in head) / max(1, len(head))
        kind = "characters" if words < 2 else "subwords" if len(head) == 1000 else few
    return learn(kind, texts, size=size, least=least)


def _learn_subwords(texts: Iterable[str], size: int) -> Subwords:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=(line for t in texts for line in _lines(t) if line),
            model_writer=model,
            model_type="unigram",
            vocab_size=max(size, 300),
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            byte_fallback=True,
            character_coverage=0.9995,
            unk_id=UNKNOWN,
            bos_id=BEGIN,
            eos_id=END,
            num_threads=1,
            input_sentence_size=200_000,
            shuffle_input_sentence=False,
            max_sentence_length=1 << 20,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise DataError(
            f"vocabulary: too little text to learn subwords ({error}).   Use input.vocabulary=words or characters"
        ) from None
    return Subwords(model.getvalue())


def _lines(text: str) -> Iterable[str]:
    """A text that is too long to be one sentence of the trainer's, line by line."""
    return text.splitlines(keepends=True) if len(text) > MOST >> 4 else (text,)


def restore(kind: str, content: bytes) -> Vocabulary:
    """Read what :meth:`Vocabulary.dump` wrote, byte for byte.

    Raises:
        ModelFileError: it is anything else.
    """
    if kind in ELSEWHERE:
        other: Vocabulary = importlib.import_module(ELSEWHERE[kind]).restore(content)
        return other
    if kind not in KINDS:
        raise ModelFileError(f"vocabulary: kind {kind!r:.60} is not one of {', '.join([*KINDS, *ELSEWHERE])}")
    if kind == "subwords":
        return Subwords(content)
    try:
        if content.count(b",") > 2 * MOST:
            raise ValueError("too many symbols")
        data = json.loads(content.decode("utf-8", "surrogatepass"))
        symbols = [] if kind == "bytes" else data["symbols"]
        if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
            raise ValueError("symbols that are no text")
        made: Vocabulary = Bytes() if kind == "bytes" else KINDS[kind](symbols)  # type: ignore[call-arg]
        if made.dump() != content:
            raise ValueError("written otherwise")
        return made
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ModelFileError(f"vocabulary: the file holds no {kind} vocabulary") from None
