"""A text file as one text, for a language model: what comes first is for training, what comes last is for the test."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from mapsto.data.block import blocks, digest, last_row
from mapsto.data.fault import fault
from mapsto.data.source import Chunk, Table

__all__ = ["Passages"]

PARTS = ("train", "val", "test")


class Passages(Table):
    """A text file in up to three passages that follow each other, each ending where a line does.

    Columns: ``text``, and ``split``, which says what a passage is for. CRLF and a CR alone become LF. Nothing else is
    changed, and put together the passages are the file.

    Args:
        path: the file, or a ``.gz`` of one.
        shares: of the characters, for train, val and test.
    """

    def __init__(self, path: Path, shares: Sequence[float]):
        self.path, self.name, self.root, self.shares = path, path.name, path.parent, tuple(shares)
        self.split = "split"

    @property
    def columns(self) -> list[str]:
        """``text`` and ``split``."""
        return ["text", "split"]

    def fingerprint(self) -> str:
        """The SHA-256 of the file."""
        return digest(self.path)

    @cached_property
    def passages(self) -> list[tuple[str, str]]:
        """(part, text), those that are not empty.

        Raises:
            DataError: fewer lines than parts.
        """
        found = [block.data.decode() for block in blocks(self.path, self.name, last_row)]
        text = "".join(found).replace("\r\n", "\n").replace("\r", "\n")
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
