"""What is kept in a ledger and began anew, as it could not be read.

It is noted in the ledger, so that no process hides it by starting again, and told for a day.
"""

from __future__ import annotations

import json
import logging
import math
from typing import NamedTuple

from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Ledger, Version

__all__ = ["Anew", "begun_anew", "note_anew", "told_anew"]

log = logging.getLogger(__name__)

_KEY = "watch/anew"
_MOST = 50
_TOLD = DAY


class Anew(NamedTuple):
    """``what`` of this model version began anew at ``time``, seconds since 1970, and why."""

    model: str
    version: str
    what: str
    why: str
    time: float


def note_anew(ledger: Ledger, version: Version, what: str, why: object, *, now: float) -> None:
    """Log it and keep it in the ledger; to be called in the transaction that stores the new state."""
    log.error("%s %s: %s begins anew: %s", *version, what, why)
    found = [*begun_anew(ledger), Anew(*version, what, str(why), now)]
    ledger.store(_KEY, json.dumps(found[-_MOST:]).encode())


def begun_anew(ledger: Ledger) -> list[Anew]:
    """The latest of them, oldest first; LedgerError where the ledger cannot be read."""
    try:
        kept = json.loads(ledger.load(_KEY) or b"[]")
        rows = [Anew(str(m), str(v), str(what), str(why), float(time)) for m, v, what, why, time in kept]
    except (ValueError, TypeError, OverflowError, RecursionError):
        return []  # damaged: noted anew
    return [one for one in rows if math.isfinite(one.time)]


def told_anew(ledger: Ledger, *, now: float) -> str | None:
    """What began anew in the last day, in a sentence; None where nothing did."""
    lately = [one for one in begun_anew(ledger) if abs(now - one.time) < _TOLD]
    if not lately:
        return None
    one = lately[-1]
    others = f"; so did {len(lately) - 1} more in the last day" if len(lately) > 1 else ""
    return f"{one.what} of {one.model} {one.version} began anew: {one.why}{others}"
