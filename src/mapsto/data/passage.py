"""A text file as one text, for a language model: what comes first is for training, what comes last is for the test."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from mapsto.data.block import blocks, last_row
from mapsto.data.fault import fault
from mapsto.data.source import Chunk, Table

__all__ = ["Passages", "is_text"]

PARTS = ("train", "val", "test")


def is_text(path: Path) -> bool:
    """Whether there is such a text file, or a ``.gz`` of one."""
    plain = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return plain.suffix.lower() == ".txt" and path.is_file()


class Passages(Table):
    """A text file in up to three passages that follow each other, each ending where a line does.

    Columns: ``text``, and ``split``, which says what a passage is for. CRLF and a CR alone become LF. Nothing else is
    changed, and put together the passages are the file.

    Args:
        name: how errors call it.
        content: reads the whole text.
        shares: of the characters, for train, val and test.
        root: see :class:`~mapsto.data.source.Table`.
    """

    split = "split"

    def __init__(self, name: str, content: Callable[[], str], shares: Sequence[float], root: Path | None = None):
        self.name, self.root, self.content, self.shares = name, root or Path(), content, tuple(shares)

    @classmethod
    def of(cls, path: Path, shares: Sequence[float]) -> "Passages":
        """Those of a text file, or of a ``.gz`` of one."""

        def content() -> str:
            return "".join(block.data.decode() for block in blocks(path, path.name, last_row))

        return cls(path.name, content, shares, path.parent)

    @property
    def columns(self) -> list[str]:
        """``text`` and ``split``."""
        return ["text", "split"]

    def fingerprint(self) -> str:
        """The SHA-256 of the text."""
        return sha256(self.content().encode()).hexdigest()

    @cached_property
    def passages(self) -> list[tuple[str, str]]:
        """(part, text), those that are not empty.

        Raises:
            DataError: fewer lines than parts.
        """
        text = self.content().replace("\r\n", "\n").replace("\r", "\n")
        cuts, total = [0], 0.0
        for share in self.shares[:-1]:
            total += share
            # The end of a line, so that no passage begins in the middle of one; a text of one line is cut between words.
            near = round(total * len(text))
            end = text.rfind("\n", cuts[-1], near) + 1 or text.rfind(" ", cuts[-1], near) + 1
            cuts.append(end or cuts[-1])
        bounds = zip(cuts, [*cuts[1:], len(text)], strict=True)
        parts = [(part, text[a:b]) for part, (a, b) in zip(PARTS, bounds, strict=True) if b > a]
        if len(parts) < sum(share > 0 for share in self.shares):
            raise fault(
                f"{self.name}: {len(text)} characters are too few to train, validate and test on.   Give more text, or "
                "--to text to learn from its lines"
            )
        return parts

    def read(self, columns: list[str]) -> Iterator[Chunk]:
        """All passages."""
        rows = [{"text": text, "split": part} for part, text in self.passages]
        yield Chunk(1, {c: [row[c] for row in rows] for c in columns})
