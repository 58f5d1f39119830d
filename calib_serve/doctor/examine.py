"""All checks, one after the other; one that fails says so, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from calib_serve.doctor.extras import extras, known_extras, numpy_for_all, python
from calib_serve.doctor.finding import Asked, Finding, note
from calib_serve.doctor.host import open_files, rights, temporary_files, user
from calib_serve.doctor.java import java
from calib_serve.doctor.libraries import libraries
from calib_serve.doctor.places import folder, keyring, ledger, store
from calib_serve.doctor.ports import ports
from calib_serve.doctor.world import World
from calib_serve.errors import InputError

__all__ = ["examine"]

Check = Callable[[Asked, World], Iterator[Finding]]

_CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", python),
    ("extras", extras),
    ("numpy", numpy_for_all),
    ("libraries", libraries),
    ("java", java),
    ("ports", ports),
    ("model store", store),
    ("folder", folder),
    ("keyring", keyring),
    ("ledger", ledger),
    ("user", user),
    ("umask", rights),
    ("open files", open_files),
    ("temporary files", temporary_files),
)
"""(what it is about, the check)"""


def examine(asked: Asked, world: World) -> list[Finding]:
    """What every check finds. Nothing is written or started, and no network is asked.

    InputError for an extra that there is not.
    """
    known = known_extras(world)
    if unknown := sorted(set(asked.extras) - set(known)) if known else []:
        raise InputError(f"there is no extra {', '.join(unknown)}; there are {', '.join(known)}")
    return [finding for about, check in _CHECKS for finding in _guarded(about, check, asked, world)]


def _guarded(about: str, check: Check, asked: Asked, world: World) -> Iterator[Finding]:
    try:
        yield from check(asked, world)
    except Exception as error:  # a host may be odd in any way, and the other checks still say what they see
        yield note(about, f"could not be looked at: {type(error).__name__}: {error}")
