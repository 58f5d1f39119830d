"""States that label followers keep in a ledger: read them, and note each that must begin anew.

It is noted in the ledger, so that no process hides it by starting again, and told for a day.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from calib_serve.core.errors import InputError
from calib_serve.receipts import DAY

if TYPE_CHECKING:
    from calib_serve.ledger.ledger import Ledger
    from calib_serve.receipts import Version

log = logging.getLogger(__name__)

T = TypeVar("T")
_KIND = "anew"


def read_kept(
    ledger: Ledger, kind: str, version: Version, read: Callable[[bytes], T]
) -> tuple[dict[str, T], dict[str, Exception]]:
    """Read the states of a kind by name, the latest changed last; and the errors of damaged ones, by name.

    Args:
        ledger: Ledger that keeps the states.
        kind: Name of the follower.
        version: Model and version.
        read: From a stored state to what it holds; InputError, ValueError and RecursionError mean that it is
            damaged.

    Raises:
        LedgerError: Where a newer program wrote one: it goes on with it after an upgrade.
    """
    found: dict[str, T] = {}
    damaged: dict[str, Exception] = {}
    for state in ledger.followers.states(kind, version):
        try:
            found[state.name] = read(state.value)
        except (InputError, ValueError, RecursionError) as error:
            damaged[state.name] = error
    return found, damaged


def note_recovery(ledger: Ledger, version: Version, what: str, why: object, *, now: float) -> None:
    """Log that a state begins anew, and note it in the ledger, in the transaction that stores the new one.

    Args:
        ledger: Ledger in a transaction.
        version: Model and version.
        what: Name of the state.
        why: Reason, such as an error.
        now: Seconds since 1970.
    """
    log.error("%s %s: %s begins anew: %s", *version, what, why)
    ledger.followers.keep(_KIND, version, what, str(why).encode(), now=now)


def recent_recovery(ledger: Ledger, *, now: float) -> str | None:
    """The states that began anew in the last day, in a sentence; None where none did.

    Args:
        ledger: Ledger that noted them.
        now: Seconds since 1970.
    """
    lately = [one for one in ledger.followers.states(_KIND) if abs(now - one.changed_at) < DAY]
    if not lately:
        return None
    one = lately[-1]
    others = f"; so did {len(lately) - 1} more in the last day" if len(lately) > 1 else ""
    why = one.value.decode("utf-8", "replace")
    return f"{one.name} of {one.version[0]} {one.version[1]} began anew: {why}{others}"
