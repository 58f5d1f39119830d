"""Named batches of predictions on disk, a file each: they outlive their process, and any other sends them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from calib_serve.files import write_whole

try:
    import fcntl
except ImportError:  # not on every platform: then two may send the same, which counts once
    fcntl = None  # type: ignore[assignment]

__all__ = ["Batch", "BatchFolder"]

log = logging.getLogger(__name__)


class Batch(NamedTuple):
    """What is sent under one name, whatever happens."""

    name: str
    items: Sequence[Any]


class BatchFolder:
    """At most ``most`` items, what JSON has a form for, in a folder that is made when there are any."""

    def __init__(self, folder: Path, *, most: int) -> None:
        self._folder, self._most = folder, most

    def __len__(self) -> int:
        return sum(int(path.stem.split("-")[1]) for path in self._folder.glob("*-*-*.json"))

    def put(self, batch: Batch) -> bool:
        """Write it, unless there are too many; raises OSError."""
        if len(self) + len(batch.items) > self._most:
            return False
        path = self._folder / f"{time.time_ns()}-{len(batch.items)}-{batch.name}.json"
        write_whole(path, json.dumps(batch.items), mode=0o600)
        return True

    def each(self) -> Iterator[Batch]:
        """Those that no other process sends now, oldest first; a file goes when the next one is asked for."""
        for path in sorted(self._folder.glob("*-*-*.json")):
            with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    yield Batch(path.stem.split("-")[2], json.load(file))
                except ValueError as error:
                    log.error("what waited in %s cannot be read and is left out: %s", path, error)
                path.unlink(missing_ok=True)
