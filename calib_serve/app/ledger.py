"""``calib-serve ledger``: look after the ledger that labels are counted in."""

import contextlib
import datetime
import getpass
import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from calib_serve.app._command import Flat, command, subcommand
from calib_serve.app._serving import named_version
from calib_serve.app._show import said
from calib_serve.core.errors import InputError

if TYPE_CHECKING:
    from calib_serve.ledger import Ledger

app = command(
    "ledger",
    "calib-serve ledger check ledger.db\n"
    "calib-serve ledger backup ledger.db ledger-backup.db\n"
    "calib-serve ledger revoke ledger.db --source lab --since 2026-05-01T12:00 --dry-run",
    details="LEDGER is a file, or postgresql://HOST/DATABASE.",
)


@dataclass(frozen=True, kw_only=True)
class _Repair:
    """Options of ``calib-serve ledger clock``."""

    repair: bool = False
    """Say that the clock is right now: the ledger goes by it, and marks that are ahead go."""


@dataclass(frozen=True, kw_only=True)
class _Revoked:
    """Options of ``calib-serve ledger revoke``."""

    source: str
    """Whose labels: the name of a token."""
    since: str = ""
    """Labels that came from then on: 2026-05-01T12:00, or seconds."""
    until: str = ""
    """Labels that came before then."""
    samples: Path | None = None
    """A folder of samples, which forget these labels as well."""
    dry_run: bool = False
    """Say how many there are, and change nothing."""


@subcommand(app)
def _check(ledger: str) -> int:
    """Name the faults of a ledger, while others use it; exit code 1 if there are any."""
    with _opened(ledger) as book:
        wrong = book.check()
        trouble, extent = book.database.trouble(), book.database.extent()
    for one in [*wrong, *([trouble] if trouble else [])]:
        said(one)
    if wrong or trouble:
        return 1
    said(f"{book.database.name} is sound: {extent}")
    return 0


@subcommand(app)
def _backup(ledger: str, file: Path) -> None:
    """Write a ledger's file of one moment to a new FILE, while others use it.

    A PostgreSQL has its own means.
    """
    from calib_serve.core.text import file_size

    with _opened(ledger) as book:
        size = file_size(book.database.backup(file))
    said(f"{file}: {size}; put it in the ledger's place, then run calib-serve ledger restored on that")


@subcommand(app)
def _upgrade(ledger: str, backup: Path) -> None:
    """Bring a ledger to this version's format, in one transaction, once there is a backup.

    BACKUP is the new file for a copy; of a PostgreSQL, the file that pg_dump wrote. Stop what counts first:
    programs of the older format are refused afterwards.
    """
    from calib_serve.ledger import upgrade_ledger

    said(f"the ledger was of format {upgrade_ledger(ledger, backup)}, and is of this version's")


@subcommand(app)
def _restored(ledger: str) -> None:
    """Say that a backup was put in the ledger's place: what may have been counted since is refused.

    Labels of predictions made until now are refused as forgotten, and sums are published as new series.
    """
    with _opened(ledger) as book:
        book.restored(by=_who())
    said("labels of predictions made until now are refused as forgotten")


@subcommand(app)
def _clock(ledger: str, *, options: Annotated[_Repair, Flat] = _Repair()) -> int:
    """Name what is wrong with this host's clock or the ledger's time; exit code 1 if anything is.

    Set the clock by NTP before a repair; a PostgreSQL's programs go by its server's.
    """
    with _opened(ledger) as book:
        told = book.repair_clock() if options.repair else {}
        trouble = book.time.trouble(book.forgotten_until())
    said(trouble or "this host's clock and the ledger's time agree")
    if told.get("ledger"):
        said("labels of predictions from now on count; of earlier ones it is not known which had")
    if ahead := told.get("label"):
        said(f"{ahead} labels of predictions dated ahead stay counted, in windows when their time comes")
    return int(trouble is not None)


@subcommand(app)
def _promoted(ledger: str) -> None:
    """Say that a failover of PostgreSQL is known: the check "timeline" is well again, and nothing is refused.

    What it lost counts if it is sent again.
    """
    with _opened(ledger) as book:
        book.promoted()
    said("the failover is known; labels that it lost count if they are sent again")


@subcommand(app)
def _drop(ledger: str, model: str) -> None:
    """Take a version that is not served any more out of the sums; no receipt of it counts again.

    MODEL is its NAME:VERSION.
    """
    name, version = named_version(model)
    with _opened(ledger) as book:
        labels = book.drop((name, version), by=_who())
    said(f"took {labels} labels of {name} {version} out")


@subcommand(app)
def _revoke(ledger: str, *, options: Annotated[_Revoked, Flat]) -> None:
    """Take a source's labels out of every sum; servers may go on.

    May be repeated: each label is taken out once, and none of them is counted again. What drift detectors
    were fed with stays. Times without a zone are UTC.
    """
    from calib_serve.receipts import SampleLog

    source, dry_run = options.source, options.dry_run
    if not source:
        raise InputError("name the source whose labels are taken back")
    begun, end = _time(options.since, -math.inf), _time(options.until, math.inf)
    if options.samples is not None and not options.samples.is_dir():
        raise InputError(f"there are no samples at {options.samples}: a refit would go on with these labels")
    log = None if options.samples is None else SampleLog(options.samples)
    with _opened(ledger) as book:
        # Of samples before: what is revoked is not found again; and after: labels may have come meanwhile.
        for look in [dry_run] if log is None else [True, dry_run]:
            told = book.revoke(source, since=begun, until=end, by=_who(), dry_run=look)
            if log is not None and not dry_run:
                for version, nonces in told.items():
                    log.take_back(*version, nonces)
    done = "would be taken back" if dry_run else "taken back"
    for (model, own), nonces in sorted(told.items()):
        said(f"{model} {own}: {len(nonces)} {done}")
    if not told:
        said("nothing to take back")


@contextlib.contextmanager
def _opened(where: str) -> Iterator["Ledger"]:
    from calib_serve.ledger import Ledger

    # No client waits for these commands, so they wait for what others write.
    with contextlib.closing(Ledger(where, must_exist=True, timeout=10.0)) as book:
        yield book


def _who() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _time(text: str, default: float) -> float:
    """Read a date and time, or seconds since 1970, as seconds.

    >>> _time("1970-01-02T00:00", 0.0), _time("90", 0.0), _time("", 7.0)
    (86400.0, 90.0, 7.0)
    """
    if not text:
        return default
    try:
        found = float(text) if text.replace(".", "", 1).isdecimal() else _seconds(text)
    except ValueError as error:
        raise InputError(
            f"a time is such as 2026-05-01T12:00, or seconds since 1970, got {text!r}"
        ) from error
    return found


def _seconds(text: str) -> float:
    when = datetime.datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=datetime.timezone.utc)).timestamp()
