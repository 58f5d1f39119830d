"""Take back what a source of labels sent: out of every sum, exactly and once.

What is taken back is what the label journal says was counted. Receipts stay used: the predictions can not be
labelled again. What a drift detector has been fed, and what alarms and incidents it made of it, stays.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calib_serve.errors import InputError, LedgerError
from calib_serve.watch.journal import JournalBatch, read_journal
from calib_serve.watch.ledger import Ledger, Noted, Version
from calib_serve.watch.samples import SampleLog

__all__ = ["Revoked", "revoke"]

_KEY = "sources/revoked/"
_LOG = "revoked.log"
_TRIES = 5  # where another revocation takes labels of the same batch back


@dataclass(frozen=True)
class Revoked:
    """How many labels were taken back, by version; how many had been ``before``."""

    labels: Mapping[Version, int]
    before: int
    dry: bool


def revoke(
    ledger: Ledger,
    journal: str | Path,
    *,
    source: str,
    since: float = -np.inf,
    until: float = np.inf,
    samples: str | Path | None = None,
    dry_run: bool = False,
    by: str = "",
    clock: Callable[[], float] = time.time,
) -> Revoked:
    """Take the labels of ``source`` back that arrived in [since, until), seconds since 1970.

    May be repeated, also after a crash in its midst: each label is taken back once. ``samples``: a folder of
    samples, which forget the labels as well. ``by``: who does so, for the journal. LedgerError where a batch
    cannot be taken back; those before it are.
    """
    if not source:
        raise InputError("name the source whose labels are taken back")
    log = None if samples is None else SampleLog(samples)
    labels: Counter[Version] = Counter()
    before: int | None = None
    for _ in range(_TRIES):
        found, known = Counter[Version](), 0
        for batch in read_journal(journal):
            rows = dict(_counted(batch, ledger, source=source, since=since, until=until))
            fresh = _take_back(ledger, batch.name, rows, log, dry_run=dry_run) if rows else []
            found.update((row.model, row.version) for row in fresh)
            known += len(rows) - len(fresh)
        labels.update(found)
        before = known if before is None else before
        # A server that goes on may have settled a batch between the reading of its lines and of its fates.
        if dry_run or not found:
            break
    told = Revoked(dict(labels), before or 0, dry_run)
    if labels and not dry_run:
        ledger.new_generation("revoke")
        _note(Path(journal), told, source=source, since=since, until=until, by=by, now=clock())
    return told


def _counted(
    batch: JournalBatch, ledger: Ledger, *, source: str, since: float, until: float
) -> Iterator[tuple[int, Noted]]:
    """The labels of a batch that were counted, of this source and time, by their place in it."""
    mine = {
        place: line.noted
        for place, line in batch.lines.items()
        if line.source == source and since <= line.noted.arrived < until
    }
    fates = batch.resolved(ledger) if mine else ""
    return ((place, row) for place, row in mine.items() if fates[place : place + 1] == "c")


def _take_back(
    ledger: Ledger, batch: str, rows: Mapping[int, Noted], samples: SampleLog | None, *, dry_run: bool
) -> list[Noted]:
    """The labels of a batch that were taken back now, or would be; none that were before."""
    for _ in range(_TRIES):
        kept = ledger.load(_KEY + batch) or b""
        done = _places(kept)
        fresh = [row for place, row in rows.items() if place not in done]
        if dry_run or not fresh:
            return fresh
        if samples is not None:
            _forget(samples, fresh)
        if ledger.take_back(fresh, mark=_KEY + batch, before=kept, after=_packed(done | rows.keys())):
            return fresh
    raise LedgerError("another process takes the same labels back; run it again when it has ended")


def _places(kept: bytes) -> set[int]:
    """The places of a batch that were taken back, of their bits."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(kept.decode()), np.uint8))
    return set(np.flatnonzero(bits).tolist())


def _packed(places: set[int]) -> bytes:
    bits = np.zeros(max(places) + 1, np.uint8)
    bits[list(places)] = 1
    return np.packbits(bits).tobytes().hex().encode()


def _forget(samples: SampleLog, rows: list[Noted]) -> None:
    by_version: dict[Version, list[bytes]] = {}
    for row in rows:
        by_version.setdefault((row.model, row.version), []).append(row.nonce)
    for version, nonces in by_version.items():
        samples.take_back(*version, nonces)


def _note(
    journal: Path, told: Revoked, *, source: str, since: float, until: float, by: str, now: float
) -> None:
    """Who took what back, and when, in a file beside the labels."""
    row = {
        "revoked": source,
        "by": by,
        "time": now,
        "since": since if np.isfinite(since) else None,
        "until": until if np.isfinite(until) else None,
        "labels": [[*version, n] for version, n in told.labels.items()],
    }
    try:
        descriptor = os.open(journal / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab", 0) as file:
            file.write(f"{json.dumps(row)}\n".encode())
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"the labels are taken back, but that could not be noted in {journal / _LOG}: {error}"
        ) from error
