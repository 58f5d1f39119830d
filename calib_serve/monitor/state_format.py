"""The format of the states that followers of labels keep in a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calib_serve.core.errors import InputError, LedgerError, of_a_newer

FORMAT = 1


def check_state(state: Mapping[str, Any], what: str) -> None:
    """Raise InputError for a state of another format; KeyError, TypeError or ValueError for one without.

    LedgerError where a newer program wrote it, which goes on with it after an upgrade.
    """
    found = int(state["format"])
    if found > FORMAT:
        raise LedgerError(f"{what} {of_a_newer(found, reads=FORMAT)}")
    if found != FORMAT:
        raise InputError(f"it is of format {found}, and this program reads {FORMAT}")
