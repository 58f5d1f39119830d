"""What an operator does to a whole ledger: back it up, restore it, verify it, prune it.

A backup is of one moment, taken while others write. A restored ledger does not know which labels were
counted after its backup was taken, so those sent again could count twice: it refuses labels of predictions
made until the restore as forgotten, unless the lost labels are to be sent again (``recount``).

Of a ledger in partitions each has a backup of its own, ``file.1`` and so on, of its own moment.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from calib_serve.errors import InputError, LedgerError, of_a_newer
from calib_serve.files import written_whole
from calib_serve.watch.ledger import sqlite_copy
from calib_serve.watch.ledger.address import Place, check_address, is_redis, places_of
from calib_serve.watch.ledger.generations import count_taken_out
from calib_serve.watch.ledger.inspection import set_aside_in, verify_file
from calib_serve.watch.ledger.opening import as_one
from calib_serve.watch.ledger.partitioned import PartitionedLedger
from calib_serve.watch.ledger.protocol import Ledger
from calib_serve.watch.ledger.sums import Version

__all__ = [
    "Header", "Pruned", "Restored", "Store", "backup_ledger", "existing_ledger", "prune_ledger",
    "read_header", "restore_ledger", "set_aside_rows", "unpacked_content", "verify_ledger", "write_backup",
]  # fmt: skip

CLOCK_SKEW = 300.0
"""How far ahead of our clock receipts are dated at most, seconds: further ones are refused when they come."""


@dataclass(frozen=True)
class Restored:
    """A restored ledger: when its backup was ``taken``, ``aside`` where the one before went, if any.

    Labels of predictions made until ``forgotten_until`` are refused, or minus infinity.
    """

    taken: float
    aside: str | None
    forgotten_until: float


@dataclass(frozen=True)
class Pruned:
    """How many receipts or epochs were forgotten, labels taken out, and bytes given back or free inside.

    ``set_aside``: how many damaged rows were deleted that had been set aside.
    ``compacted``: whether free pages were given back; None where that was not asked for.
    """

    forgotten: int = 0
    labels: float = 0.0
    freed: int = 0
    set_aside: int = 0
    compacted: bool | None = None


def backup_ledger(where: str, file: str | Path, *, clock: Callable[[], float] = time.time) -> Header:
    """Write the ledger of one moment to ``file``, which is replaced whole and its owner's alone.

    ``where``: as ``open_ledger`` has it. Others may read and write meanwhile. The copy is verified before
    it is kept; LedgerError where it is not sound, or ``file`` is there and is no backup. Of partitions, it
    returns the header of the first one, with the bytes of all.
    """
    check_address(where)
    places = places_of(where)
    # The first one first: what the others lack of it later was fed to detectors, and is not fed again.
    made = [
        _backed_up(place, one, clock=clock) for place, one in zip(places, _files(file, places), strict=True)
    ]
    return dataclasses.replace(made[0], bytes=sum(one.bytes for one in made))


def _files(file: str | Path, places: Sequence[Place]) -> list[Path]:
    """The backups of these places."""
    if len(places) == 1:
        return [Path(file)]
    return [Path(f"{file}.{number}") for number in range(1, len(places) + 1)]


def _backed_up(place: Place, file: Path, *, clock: Callable[[], float]) -> Header:
    if file.exists():
        read_header(file)  # at once, not after all the work
    with _folder(file) as folder:
        copy = folder / "copy"
        if is_redis(place.where):
            from calib_serve.watch.ledger import redis_copy  # noqa: PLC0415  an optional extra

            taken = redis_copy.copied(place, copy)
            if wrong := _wrong(place):
                raise LedgerError(f"the ledger is not sound: {wrong[0]}")
            return write_backup(file, copy, store="redis", taken=taken)
        taken = sqlite_copy.copied(Path(place.where), copy, clock=clock)
        _verify_copy(copy, place.where)
        return write_backup(file, copy, store="sqlite", taken=taken)


@contextmanager
def _folder(beside: Path) -> Iterator[Path]:
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{beside.name}.", dir=beside.parent) as folder:
            yield Path(folder)
    except OSError as error:
        raise LedgerError(f"cannot write beside {beside}: {error}") from error


def _verify_copy(copy: Path, where: str) -> None:
    try:
        with closing(sqlite_copy.as_it_is(copy)) as ledger:
            wrong = ledger.verify()
    except LedgerError as error:  # it names the copy
        wrong = verify_file(copy) or [str(error)]
    if wrong:
        raise LedgerError(f"the ledger {where} is not sound: {wrong[0]}")


def restore_ledger(
    file: str | Path,
    where: str,
    *,
    replace: bool = False,
    recount: bool = False,
    clock_skew: float = CLOCK_SKEW,
    clock: Callable[[], float] = time.time,
) -> Restored:
    """Make the ledger in a backup the one at ``where``, at every moment the old or the new one, whole.

    With ``replace`` a ledger that is there is set aside, never deleted; without, LedgerError. LedgerError
    while a process of this program uses it. Labels of predictions made until now, and ``clock_skew``
    seconds for hosts whose clocks run ahead, are refused as forgotten; with ``recount``, those counted
    after the backup was taken may be sent again and count again.
    """
    check_address(where)
    places = places_of(where)
    files = _files(file, places)
    for one in files:
        store = read_header(one).store
        if (store == "redis") != is_redis(where):
            raise LedgerError(f"{one} is a backup of a {store} ledger; restore it to one")
    until = float("-inf") if recount else clock() + clock_skew
    done = [
        _put_back(one, place, until, replace=replace, clock=clock)
        for one, place in zip(files, places, strict=True)
    ]
    aside = ", ".join(one.aside for one in done if one.aside is not None)
    return Restored(done[0].taken, aside or None, until)


def _put_back(
    file: Path, place: Place, until: float, *, replace: bool, clock: Callable[[], float]
) -> Restored:
    if is_redis(place.where):
        return _restored_to_redis(file, place, until, replace=replace)
    header, path = read_header(file), Path(place.where)
    if not replace and sqlite_copy.is_there(path):
        raise LedgerError(f"there is a ledger {path}, or what is left of one; set it aside with --replace")
    with sqlite_copy.unused(path), _folder(path) as folder:
        ready = folder / "ledger"
        ready.touch(mode=0o600)
        unpacked_content(file, ready)
        with closing(sqlite_copy.as_it_is(ready)) as ledger:
            _begin(ledger, until)
        return Restored(header.taken, _text(sqlite_copy.put_in_place(ready, path, clock=clock)), until)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _restored_to_redis(file: Path, place: Place, until: float, *, replace: bool) -> Restored:
    from calib_serve.watch.ledger import redis_copy  # noqa: PLC0415  an optional extra

    if redis_copy.in_use(place):
        raise LedgerError("a process uses this Redis ledger; stop it first")
    with tempfile.TemporaryDirectory(prefix="calib-serve-") as folder:
        content = Path(folder) / "content"
        content.touch(mode=0o600)
        header = unpacked_content(file, content)
        with redis_copy.staged(place, content) as ledger:
            _begin(ledger, until)
            aside = redis_copy.put_in_place(place, ledger, replace=replace)
    return Restored(header.taken, aside, until)


def _begin(ledger: Ledger, until: float) -> None:
    """What a restored ledger is told before anybody uses it."""
    if wrong := ledger.verify():
        raise LedgerError(f"the ledger in the backup is not sound: {wrong[0]}")
    if until > float("-inf"):
        ledger.forget(until)
    ledger.new_generation("restore")


def existing_ledger(where: str) -> Ledger:
    """Open a ledger that is there, in its own bins and with its own retention; LedgerError where none is.

    ``where``: as ``open_ledger`` has it.
    """
    check_address(where)
    return as_one(where, _existing)


def _existing(place: Place) -> Ledger:
    if is_redis(place.where):
        from calib_serve.watch.ledger import redis_copy  # noqa: PLC0415  an optional extra

        return redis_copy.as_it_is(place)
    return sqlite_copy.as_it_is(sqlite_copy.needed(Path(place.where)))


def verify_ledger(where: str) -> list[str]:
    """What is wrong with the ledger at ``where``, in sentences; others may use it meanwhile.

    LedgerError where there is none.
    """
    return _of_all(where, _wrong)


def set_aside_rows(where: str) -> list[str]:
    """What was damaged in the ledger at ``where`` and set aside; it is missing in what the rest counts."""
    return _of_all(
        where,
        lambda place: [] if is_redis(place.where) else set_aside_in(sqlite_copy.needed(Path(place.where))),
    )


def _wrong(place: Place) -> list[str]:
    if not is_redis(place.where):
        return verify_file(sqlite_copy.needed(Path(place.where)))  # also one that cannot be opened
    with closing(_existing(place)) as ledger:
        return ledger.verify()


def _of_all(where: str, say: Callable[[Place], list[str]]) -> list[str]:
    """What ``say`` says of a ledger, or of each of its partitions, with their numbers."""
    check_address(where)
    places = places_of(where)
    if len(places) == 1:
        return say(places[0])
    return [f"partition {i}: {one}" for i, place in enumerate(places, 1) for one in say(place)]


def prune_ledger(
    where: str,
    *,
    before: float | None = None,
    version: Version | None = None,
    set_aside: bool = False,
    compact: bool = False,
    clock: Callable[[], float] = time.time,
) -> Pruned:
    """Forget receipts that expired and merge old spans now, which servers do step by step.

    ``before``: forget receipts of predictions before that moment, too; their labels are refused from then on.
    ``version``: take its sums out instead; its receipts stay until they expire. Servers must not serve it any
    more. ``set_aside`` deletes damaged rows that were set aside. ``compact`` gives free pages of a file back,
    unless a process has it open.
    """
    if before is not None and version is not None:
        raise InputError("prune by time, or a version; one at a time")
    if is_redis(where) and compact:
        raise InputError("Redis gives memory back itself; --compact is for files")
    with closing(existing_ledger(where)) as ledger:
        was = _used_bytes(where)
        gone, labels = _pruned(ledger, before, version, clock)
        damaged = ledger.forget_set_aside() if set_aside else 0
    compacted = [sqlite_copy.compact(Path(place.where)) for place in places_of(where) if compact]
    done = all(compacted) if compact else None
    return Pruned(gone, labels, max(was - _used_bytes(where), 0), damaged, done)


def _used_bytes(where: str) -> int:
    places = places_of(where)
    if not is_redis(where):
        return sum(sqlite_copy.used_bytes(Path(place.where)) for place in places)
    from calib_serve.watch.ledger import redis_copy  # noqa: PLC0415  an optional extra

    return redis_copy.used_bytes(places[0])


def _pruned(
    ledger: Ledger, before: float | None, version: Version | None, clock: Callable[[], float]
) -> tuple[int, float]:
    if version is not None:
        parts = ledger.parts if isinstance(ledger, PartitionedLedger) else (ledger,)
        return 0, sum(_retire(part, version) for part in parts)
    return ledger.sweep(clock()) if before is None else ledger.forget(before, drop=True), 0.0


def _retire(ledger: Ledger, version: Version) -> float:
    with ledger.transaction():
        sums = ledger.sums().get(version)
        labels = 0.0 if sums is None else float(sums.labels.sum())
        count_taken_out(ledger, math.ceil(labels))
        ledger.drop(version)
    return labels


Store = Literal["sqlite", "redis"]

_WHAT, _FORMAT = "calib-serve ledger backup", 1
_LONGEST = 1024  # bytes of the first line
_PIECE = 1 << 20


@dataclass(frozen=True)
class Header:
    """The ``store`` whose content follows, when it was ``taken``, seconds since 1970, and its bytes."""

    store: Store
    taken: float
    bytes: int
    sha256: str


def write_backup(file: Path, content: Path, *, store: Store, taken: float) -> Header:
    """Write a backup whole, for its owner alone; LedgerError where ``file`` is there and is no backup."""
    if file.exists():
        read_header(file)  # what is no backup is not overwritten
    try:
        with content.open("rb") as pieces:
            header = Header(store, taken, content.stat().st_size, _hashed(store, taken, pieces))
        line = json.dumps({"what": _WHAT, "format": _FORMAT, **asdict(header)})
        with written_whole(file, mode=0o600) as partial, partial.open("wb") as to, content.open("rb") as rest:
            to.write(line.encode() + b"\n")
            shutil.copyfileobj(rest, to, _PIECE)
    except OSError as error:
        raise LedgerError(f"cannot write the backup {file}: {error}") from error
    return header


def read_header(file: Path) -> Header:
    """What a backup says of itself; LedgerError for any other file."""
    with _opened(file) as (_, header):
        return header


def unpacked_content(file: Path, to: Path) -> Header:
    """Write a backup's content into ``to``, which is there; LedgerError where it is not what was taken."""
    with _opened(file) as (rest, header):
        with to.open("wb") as out:
            shutil.copyfileobj(rest, out, _PIECE)
        with to.open("rb") as pieces:
            found = to.stat().st_size, _hashed(header.store, header.taken, pieces)
    if found != (header.bytes, header.sha256):
        raise LedgerError(f"the backup {file} is damaged or cut off ({found[0]} bytes); restore another one")
    return header


def _hashed(store: Store, taken: float, content: BinaryIO) -> str:
    digest = hashlib.sha256(f"{store} {taken!r}\n".encode())
    while piece := content.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, Header]]:
    try:
        with file.open("rb") as opened:
            yield opened, _parsed(opened.readline(_LONGEST), file)
    except OSError as error:
        raise LedgerError(f"cannot use the backup {file}: {error}") from error


def _parsed(line: bytes, file: Path) -> Header:
    try:
        told = json.loads(line)
        if told["what"] != _WHAT:
            raise ValueError(told["what"])
        if told["format"] != _FORMAT:
            raise LedgerError(f"{file} is a backup {of_a_newer(told['format'], reads=_FORMAT)}")
        if told["store"] not in ("sqlite", "redis"):
            raise ValueError(told["store"])
        return Header(told["store"], float(told["taken"]), int(told["bytes"]), str(told["sha256"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise LedgerError(f"{file} is no backup of a ledger; make one: calib-serve ledger backup") from error
