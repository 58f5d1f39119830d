"""Sources of labels with their progress, and stores of dead letters."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from calib_serve.core.errors import MissingDependency, ServerError
from calib_serve.core.files import private_folder, write_whole


@dataclass(frozen=True)
class DeadLetter:
    """A label that cannot be counted.

    Args:
        reason: Reason of a refused label, or "unreadable" of a file.
        message: The same in words.
        where: The place that it came from.
        item: Value of its JSON, where it has one.
        content: Bytes as they came; None: ``item`` says it.
        time: Seconds since 1970.
    """

    reason: str
    message: str
    where: str
    item: Any = None
    content: bytes | None = None
    time: float = field(default_factory=time.time)

    def json(self) -> bytes:
        """Write a line of JSON: a label and a field ``dead``, which readers of labels pass over."""
        dead = {"reason": self.reason, "message": self.message, "where": self.where, "time": self.time}
        found: dict[str, Any] = {"item": self.item}
        if self.content is not None:
            found = _content(self.content)
        elif isinstance(self.item, dict):
            found = self.item
        # A table may hold what JSON has no form for, such as a time.
        return json.dumps({**found, "dead": dead}, default=str).encode()


def _content(content: bytes) -> dict[str, str]:
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


class Stream:
    """A partition of a topic, or a file, and the position up to which it is settled.

    ``next``: every position before it is settled. ``given_up``: it belongs to somebody else by now, or has
    changed; what is still at hand of it is dropped, and will be read again.

    Args:
        name: Name for people.
        start: First position.

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
        """Note that a piece has come; positions rise.

        Args:
            position: Its position in the stream, above that of the piece before.
            labels: Number of labels to settle.
        """
        self._left[position] = labels
        self._advance()

    def settle(self, position: int) -> None:
        """Settle one more label of the piece at ``position``."""
        self._left[position] -= 1
        self._advance()

    @property
    def settled(self) -> bool:
        """Whether no piece of the stream is in hand."""
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
    """A message or a row: its labels, and its dead letters.

    Args:
        stream: Stream that it came from.
        position: Position in the stream.
        where: The same for a person.
        labels: Items, as the watch takes them.
        dead: Labels of it that cannot be counted.
    """

    stream: Stream
    position: int
    where: str
    labels: Sequence[dict[str, Any]] = ()
    dead: Sequence[DeadLetter] = field(default=())


class Source(Protocol):
    """A source of labels. ServerError where it fails for good; passing failures are waited out.

    ``failures``: how often it could not be read, or could not note what was settled.
    """

    failures: int

    def take(self, seconds: float) -> list[Piece]:
        """Take the next pieces; none after waiting for about that many ``seconds``."""

    def alive(self) -> None:
        """Keep this process alive to the source while it takes nothing."""

    def commit(self) -> None:
        """Note the settled position of every stream, from which a new start goes on."""

    def lag(self) -> int:
        """The number of messages or files that wait at the source."""

    def drained(self) -> bool:
        """Whether everything at the source has been taken."""

    def close(self) -> None:
        """Note the settled positions, and end."""


class DeadLetters(Protocol):
    """A store of dead letters."""

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Store letters, durable on return; ServerError where that fails."""

    def close(self) -> None:
        """End the store."""


class FolderDeadLetters:
    """Dead letters in a folder or a bucket at ``address``, a new file of JSON lines each time."""

    def __init__(self, address: str) -> None:
        try:
            import fsspec  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise MissingDependency("fsspec", "files") from error
        self._fs, self.path = fsspec.core.url_to_fs(address)
        self._local = "file" in self._fs.protocol

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Write letters into a new file, which only its owner may read where it is local."""
        name = f"dead-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}.jsonl"
        content = b"".join(one.json() + b"\n" for one in letters)
        try:
            if self._local:
                private_folder(Path(self.path))
                write_whole(Path(self.path) / name, content, mode=0o600)
            else:
                self._fs.pipe_file(f"{self.path}/{name}", content)
        except Exception as error:  # what a client of a bucket raises is its own
            raise ServerError(f"dead letters cannot be written to {self.path}: {error}") from error

    def close(self) -> None:
        """Do nothing: no resource is held."""
