"""Whom a trainer tells how it goes."""

from typing import Any, Protocol

from mapsto.errors import ResourceError

__all__ = ["Watcher"]


class Watcher(Protocol):
    """Who is told how training goes."""

    def stepped(self, step: int, loss: float) -> None:
        """After every step: its number, counted from 1, and its loss per target."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """After every evaluation: a line of ``metrics.jsonl``."""

    def skipped(self, step: int, rows: list[int], cause: str) -> None:
        """A step whose loss or gradient was not finite changed nothing: its rows, and what went wrong first."""

    def unsaved(self, error: ResourceError) -> None:
        """A checkpoint could not be written; training goes on."""

    def positions(self) -> dict[str, int]:
        """Bytes on the disk of each append-only file, for resume to cut them back to."""
