"""Named batches of predictions on disk, a file each: they outlive their process, and any other sends them."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from calib_serve.files import open_regular, write_whole

try:
    import fcntl
except ImportError:  # not on every platform: then two may send the same, which counts once
    fcntl = None  # type: ignore[assignment]

__all__ = ["Batch", "BatchFolder"]

log = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9]+-([0-9]{1,9})-([0-9a-f]+)\.json")  # when, how many, and under which name
_LARGEST = 256 << 20  # bytes of a file


class Batch(NamedTuple):
    """What is sent under one name, whatever happens."""

    name: str
    items: Sequence[Any]


class BatchFolder:
    """At most ``most`` items, what JSON has a form for, in a folder that is made when there are any."""

    def __init__(self, folder: Path, *, most: int) -> None:
        self._folder, self._most = folder, most

    def __len__(self) -> int:
        return sum(int(found[1]) for _, found in self._files())

    def put(self, batch: Batch) -> bool:
        """Write it, unless there are too many; raises OSError."""
        if len(self) + len(batch.items) > self._most:
            return False
        path = self._folder / f"{time.time_ns()}-{len(batch.items)}-{batch.name}.json"
        write_whole(path, json.dumps(batch.items), mode=0o600)
        return True

    def each(self, read: Callable[[Any], Any]) -> Iterator[Batch]:
        """Those that no other process sends now, oldest first; a file goes when the next one is asked for.

        ``read`` makes an item of its JSON; what is none is left out, and logged.
        """
        for path, found in self._files():
            with suppress(FileNotFoundError, BlockingIOError), open_regular(path) as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    items = [read(one) for one in json.loads(file.read(_LARGEST))]
                except (ValueError, TypeError, OverflowError, RecursionError) as error:
                    log.error("what waited in %s cannot be read and is left out: %r", path, error)
                else:
                    yield Batch(found[2], items)
                path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, re.Match[str]]]:
        for path in sorted(self._folder.glob("*.json")):
            if path.is_file() and (found := _NAME.fullmatch(path.name)):
                yield path, found
