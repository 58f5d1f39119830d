"""What labels come from: pieces of streams, and how far each stream is settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from calib_serve.collect.dead_letters import DeadLetter

__all__ = ["Piece", "Source", "Stream"]


class Stream:
    """A partition of a topic, or a file: as far as all that came of it is settled.

    ``next``: every position before it is settled. ``given_up``: it belongs to somebody else by now, or has
    changed; what is still at hand of it is dropped, and will be read again.

    >>> stream = Stream("labels.csv")
    >>> stream.begin(0, labels=1); stream.begin(1, labels=2); stream.settle(1); stream.settle(1)
    >>> stream.next
    0
    >>> stream.settle(0)
    >>> stream.next
    2
    """

    def __init__(self, name: str, start: int = 0) -> None:
        self.name, self.next, self.given_up = name, start, False
        self._left: dict[int, int] = {}  # in the order of positions

    def begin(self, position: int, *, labels: int) -> None:
        """The piece at ``position`` has come, with so many labels to settle; positions rise."""
        self._left[position] = labels
        self._advance()

    def settle(self, position: int) -> None:
        """One more label of the piece at ``position`` is settled."""
        self._left[position] -= 1
        self._advance()

    @property
    def settled(self) -> bool:
        """Whether nothing of it is at hand."""
        return not self._left

    def _advance(self) -> None:
        while self._left:
            position = next(iter(self._left))
            if self._left[position]:
                return
            del self._left[position]
            self.next = position + 1


@dataclass(frozen=True)
class Piece:
    """A message or a row: its labels, and what of it can be none.

    ``where``: how people find it.
    """

    stream: Stream
    position: int
    where: str
    labels: Sequence[dict[str, Any]] = ()
    dead: Sequence[DeadLetter] = field(default=())


class Source(Protocol):
    """Where labels come from. ServerError where it cannot be used any more; what passes is waited out.

    ``failures``: how often it could not be read, or could not note what was settled.
    """

    failures: int

    def take(self, seconds: float) -> list[Piece]:
        """The next pieces; none after waiting for about that many ``seconds``."""

    def alive(self) -> None:
        """Say that this process is there, while it takes nothing."""

    def commit(self) -> None:
        """Note what is settled of every stream: a new start goes on behind it."""

    def lag(self) -> int:
        """How much waits at the source: messages of a topic, or files."""

    def drained(self) -> bool:
        """Whether everything that was there has been taken."""

    def close(self) -> None:
        """Note what is settled, and end."""
