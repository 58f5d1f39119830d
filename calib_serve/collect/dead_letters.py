"""What cannot be counted is kept with the reason, so that it can be mended and sent again."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from calib_serve.errors import MissingDependency, ServerError
from calib_serve.files import private_folder, write_whole

__all__ = ["DeadLetter", "DeadLetters", "FolderDeadLetters"]


@dataclass(frozen=True)
class DeadLetter:
    """A label, or what was none: ``content`` as it came, else ``item``, what its JSON held.

    ``reason``: one of a refused label, or ``unreadable`` of a file. ``where``: the place that it came from.
    """

    reason: str
    message: str
    where: str
    item: Any = None
    content: bytes | None = None
    time: float = field(default_factory=time.time)

    def json(self) -> bytes:
        """A line of JSON: a label with a field ``dead`` beside its own, which readers of labels pass over."""
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


class DeadLetters(Protocol):
    """Where dead letters go."""

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Keep them, for good on return; ServerError where that cannot be: none may be taken for kept."""

    def close(self) -> None:
        """End."""


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
        """Write them into a new file; readable by its owner alone where it is local."""
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
        """Nothing to end."""
