"""What is kept in a ledger and began anew, as it could not be read.

It is noted in the ledger, so that no process hides it by starting again, and told for a day.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from calib_serve.receipts import DAY

if TYPE_CHECKING:
    from calib_serve.watch.ledger import Ledger
    from calib_serve.watch.sums import Version

log = logging.getLogger(__name__)

_KIND = "anew"


def note_anew(ledger: Ledger, version: Version, what: str, why: object, *, now: float) -> None:
    """Log it and keep it in the ledger; to be called in the transaction that stores the new state."""
    log.error("%s %s: %s begins anew: %s", *version, what, why)
    ledger.keep(_KIND, version, what, str(why).encode(), now=now)


def told_anew(ledger: Ledger, *, now: float) -> str | None:
    """What began anew in the last day, in a sentence; None where nothing did."""
    lately = [one for one in ledger.states(_KIND) if abs(now - one.changed_at) < DAY]
    if not lately:
        return None
    one = lately[-1]
    others = f"; so did {len(lately) - 1} more in the last day" if len(lately) > 1 else ""
    why = one.value.decode("utf-8", "replace")
    return f"{one.name} of {one.version[0]} {one.version[1]} began anew: {why}{others}"
