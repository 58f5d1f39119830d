"""The label journal: who sent each label, on disk before it is counted, so that a source can be taken back.

A folder of files of JSON lines that only its owner may read. A batch of labels is written and synced before
the ledger counts it, one line a label; what became of each follows in one more line when the ledger has said
so. Where a process dies in between, the ledger knows: in the step that counts a batch it keeps its fates
under the key of the journal's writer. So the journal holds every label that is counted, and says which are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from calib_serve.errors import InputError, LedgerError, of_a_newer
from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Entry, Fate, Key, Ledger, Mark, Noted, PartitionedLedger, Shadowed, noted

__all__ = ["JournalBatch", "LabelJournal", "Line", "read_journal"]

log = logging.getLogger(__name__)

_FORMAT = 1
_SLOTS = 64  # processes that may write into one folder
_FILES = "labels-*.ndjson"


@dataclass(frozen=True)
class Line:
    """A label as it came: who sent it, which class it named, and as the ledger notes it."""

    source: str
    label: int
    noted: Noted


@dataclass
class JournalBatch:
    """Labels that were counted in one step, by their place among ``of``, and what became of them.

    ``fates``: a letter each, that of ``Mark``; None where the journal does not say. ``mark``: the ledger's
    key that may.
    """

    name: str
    mark: str
    of: int
    lines: dict[int, Line] = field(default_factory=dict)
    fates: str | None = None

    def resolved(self, ledger: Ledger) -> str:
        """The fates of a batch whose writer died; those of one that was not counted are blanks."""
        if self.fates is not None:
            return self.fates
        return Mark(self.mark, self.name).fates_in(ledger.load(self.mark)) or " " * self.of


class LabelJournal:
    """Appends to ``folder``; processes that share it write files of their own. Close it.

    A file is followed by another once it has ``max_bytes`` or is ``max_age`` seconds old, and deleted after
    ``days``: what is not in the journal cannot be taken back. Raises LedgerError where it cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        ledger: Ledger,
        *,
        max_bytes: int = 64 << 20,
        max_age: float = DAY,
        days: float = 90.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if isinstance(ledger, PartitionedLedger):
            raise InputError(
                "a ledger in partitions takes no labels back: leave out the label journal, or the partitions"
            )
        self.folder, self._ledger, self._clock = Path(folder), ledger, clock
        self._max_bytes, self._max_age, self._days = max_bytes, max_age, days
        self._lock = threading.RLock()
        self._file: IO[bytes] | None = None
        self._began = 0.0
        self._open: JournalBatch | None = None  # written, and not yet said what became of it
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._slot, self._held = _take_slot(self.folder)
        except OSError as error:
            raise InputError(f"cannot keep a label journal in {self.folder}: {error}") from error
        self._mark = f"sources/journal/{self._held.read().decode()}"
        try:
            self._open = self._left_open()
        except InputError:
            self._held.close()
            raise

    def _left_open(self) -> JournalBatch | None:
        """The batch whose fates the last writer of this slot did not write."""
        files = sorted(self.folder.glob(f"labels-{self._slot:02d}-*.ndjson"))
        # Its fates may be in the file after it.
        last = [one for one in _batches(files[-2:]) if one.mark == self._mark][-1:]
        return last[0] if last and last[0].fates is None else None

    @contextlib.contextmanager
    def writing(self) -> Iterator[LabelJournal]:
        """Write one batch inside; what became of it is written when the block ends well."""
        with self._lock:
            self._settle()
            yield self
            if self._open is not None:
                with contextlib.suppress(LedgerError):  # written before the next batch
                    self._settle()

    def count(self, entries: Sequence[Entry], accept: Callable[[Mark], list[Fate]]) -> list[Fate]:
        """Write these labels ahead, and count them by ``accept``; to be called while ``writing``."""
        batch = JournalBatch(secrets.token_hex(8), self._mark, len(entries))
        rows = [_line(batch.name, i, len(entries), one, self._ledger) for i, one in enumerate(entries)]
        self._append(rows, sync=True)
        self._open = batch
        return accept(Mark(batch.mark, batch.name))

    def _settle(self) -> None:
        """Write what became of the batch before; LedgerError where that cannot be known or written."""
        if self._open is not None:
            # Asked of the ledger: what it returned may have been undone by a transaction around it.
            mark = Mark(self._open.mark, self._open.name)
            fates = mark.fates_in(self._ledger.load(mark.key))
            if fates is None:
                # A Redis that hung may still come to it: from here on it will not count it.
                self._ledger.store(mark.given_up, mark.batch.encode())
                fates = self._open.resolved(self._ledger)
            self._append([{"batch": self._open.name, "fates": fates}], sync=False)
            self._open = None

    def _append(self, rows: Sequence[dict[str, Any]], *, sync: bool) -> None:
        text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        try:
            file = self._current()
            begun = file.tell()
            try:
                _write_all(file, text)
                if sync:
                    os.fsync(file.fileno())
            except OSError:
                self._file = None  # the next batch begins another: nothing follows half a line
                with contextlib.suppress(OSError):
                    file.truncate(begun)
                file.close()
                raise
        except OSError as error:
            raise LedgerError(
                f"the label journal {self.folder} cannot be written: {error}; nothing was counted"
            ) from error

    def _current(self) -> IO[bytes]:
        now = self._clock()
        old = now - self._began > self._max_age or now < self._began
        if self._file is not None and (old or self._file.tell() >= self._max_bytes):
            self._file.close()
            self._file = None
        if self._file is None:
            self._forget(now)
            self._file = self._begin(now)
            self._began = now
        return self._file

    def _begin(self, now: float) -> IO[bytes]:
        after = max((_began(path) for path in self.folder.glob(f"labels-{self._slot:02d}-*")), default=-1)
        path = self.folder / f"labels-{self._slot:02d}-{max(int(now * 1000), after + 1):015d}.ndjson"
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600), "ab", 0)
        _write_all(file, f"{json.dumps({'journal': _FORMAT, 'mark': self._mark})}\n".encode())
        os.fsync(file.fileno())
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return file

    def _forget(self, now: float) -> None:
        found = {path: _began(path) / 1000 for path in self.folder.glob(_FILES)}
        # A clock that runs ahead is trusted for a day beyond the latest file.
        now = min(now, max(found.values(), default=now) + self._max_age + DAY)
        for path, began in found.items():
            if began < now - self._days * DAY - self._max_age:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Write what became of the last batch, and let go of the folder."""
        with self._lock:
            with contextlib.suppress(LedgerError):
                self._settle()
            if self._file is not None:
                self._file.close()
                self._file = None
            self._held.close()


def read_journal(folder: str | Path) -> Iterator[JournalBatch]:
    """The batches in a journal's folder, those of each writer in their order; what is cut off is left out."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no label journal at {folder}; start the server with --label-journal")
    for slot in range(_SLOTS):
        yield from _batches(sorted(folder.glob(f"labels-{slot:02d}-*.ndjson")))


def _batches(files: Sequence[Path]) -> Iterator[JournalBatch]:
    """The batches of one slot's files, in order."""
    batch: JournalBatch | None = None
    mark, damaged = "", 0
    for row in _rows(files):
        try:
            if "journal" in row:
                mark = str(row["mark"])
            elif batch is not None and batch.name == row["batch"] and "fates" in row:
                batch.fates = str(row["fates"])
            elif "row" in row:
                if batch is None or batch.name != row["batch"]:
                    if batch is not None:
                        yield batch
                    batch = JournalBatch(row["batch"], mark, row["of"])
                batch.lines[row["row"]] = _read(row)
        except (KeyError, TypeError, ValueError):
            damaged += 1
    if batch is not None:
        yield batch
    if damaged:
        log.warning("%d lines of the label journal cannot be read", damaged)


def _rows(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for path in files:
        try:
            with path.open("rb") as file:
                for line in file:
                    try:
                        row = json.loads(line)
                    except (ValueError, RecursionError):
                        continue  # cut off: its batch was never counted
                    if isinstance(row, dict):
                        _check_format(row.get("journal"), path)
                        yield row
        except FileNotFoundError:
            continue  # deleted by age
        except OSError as error:
            raise InputError(f"cannot read the label journal {path}: {error}") from error


def _check_format(found: object, path: Path) -> None:
    if isinstance(found, int) and found > _FORMAT:
        raise InputError(f"{path} is a label journal {of_a_newer(found, reads=_FORMAT)}")


def _line(batch: str, row: int, of: int, entry: Entry, ledger: Ledger) -> dict[str, Any]:
    one = noted(entry, writer=ledger.writer)
    told = {**one._asdict(), "nonce": one.nonce.hex(), "correct": bool(one.correct)}
    told["shadow"] = one.shadow and list(one.shadow)
    told["slices"] = [[key.kind, key.name] for key in one.slices]
    return {
        "batch": batch, "row": row, "of": of, "source": entry.source, "label": entry.label.label,
        "segment": entry.label.receipt.segment, **told,
    }  # fmt: skip


def _read(row: dict[str, Any]) -> Line:
    keys = tuple(Key(row["model"], row["version"], name, kind) for kind, name in row["slices"])
    shadow = row["shadow"]
    values = {name: row[name] for name in Noted._fields if name != "shadow"} | {
        "nonce": bytes.fromhex(row["nonce"]),
        "slices": keys,
        "shadow": shadow and Shadowed.of(*shadow),
    }
    return Line(str(row["source"]), int(row["label"]), Noted(**values))


def _write_all(file: IO[bytes], text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[file.write(left) :]


def _began(path: Path) -> int:
    """Milliseconds since 1970, from the file's name."""
    part = path.stem.split("-")[-1]
    return int(part) if part.isdigit() else 0


def _take_slot(folder: Path) -> tuple[int, IO[bytes]]:
    """The first slot that no process holds, and the file that holds it and says its name."""
    for slot in range(_SLOTS):
        path = folder / f"writer-{slot:02d}.lock"
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", 0)
        if _locked(file):
            if not file.read():
                _write_all(file, secrets.token_hex(8).encode())
                os.fsync(file.fileno())
            file.seek(0)
            return slot, file
        file.close()
    raise OSError(f"{_SLOTS} processes write there already")


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
