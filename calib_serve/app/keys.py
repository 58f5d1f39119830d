"""``calib-serve keys``: make, add, promote, retire and list the keys that sign receipts; make tokens."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from calib_serve.app._command import Flat, Json, command, subcommand
from calib_serve.app._show import print_json, said
from calib_serve.core.options.base import Checked, check_positive
from calib_serve.core.options.servers import WatchOptions

if TYPE_CHECKING:
    from calib_serve.receipts import Keyring

app = command(
    "keys",
    "calib-serve keys new keyring.json\n"
    "calib-serve keys rotate keyring.json\n"
    "calib-serve keys token lab --scopes label",
    details="FILE is a keyring, which its owner alone may use. Its signing key changes without a receipt "
    "refused: on several hosts, add the key on all of them, promote it on one after the other, and retire "
    "the old one when list says so. What runs reads a changed file within a second, or on SIGHUP. Secrets "
    "are never shown.",
)


@dataclass(frozen=True, kw_only=True)
class _Accepted(Checked):
    """Options of the time for which keys are needed."""

    ttl_days: float = WatchOptions.ttl_days
    """For how many days labels are accepted, as the servers have it."""

    def _check(self) -> None:
        check_positive("ttl_days", self.ttl_days)

    @property
    def seconds(self) -> float:
        """The time to live in seconds."""
        return self.ttl_days * 86_400.0


@dataclass(frozen=True, kw_only=True)
class _Added:
    """Options of ``calib-serve keys add``."""

    from_: Path | None = None
    """Add the keys of this keyring, another host's, instead of a fresh one."""


@dataclass(frozen=True, kw_only=True)
class _Retired(_Accepted):
    """Options of ``calib-serve keys retire``."""

    early: bool = False
    """Retire it though labels for its receipts may still come."""


@dataclass(frozen=True, kw_only=True)
class _Listed(_Accepted, Json):
    """Options of ``calib-serve keys list``."""


@dataclass(frozen=True, kw_only=True)
class _Scopes:
    """Options of ``calib-serve keys token``."""

    scopes: str
    """What it is for: some of predict,label,ids,correct,scrape,admin, commas between."""


@subcommand(app)
def _new(file: Path) -> None:
    """Make a keyring with a first key."""
    from calib_serve.receipts import Keyring

    _say(file, Keyring.create(file))


@subcommand(app)
def _add(file: Path, *, options: Annotated[_Added, Flat] = _Added()) -> None:
    """Add a fresh key, which verifies and does not sign yet."""
    from calib_serve.receipts import Keyring

    other = options.from_
    ring = Keyring.edit(file, lambda ring: ring.extended(None if other is None else ring.load(other)))
    _say(file, ring)


@subcommand(app)
def _promote(file: Path, key: str) -> None:
    """Let a key sign."""
    from calib_serve.receipts import Keyring

    _say(file, Keyring.edit(file, lambda ring: ring.promoted(key)))


@subcommand(app)
def _rotate(file: Path) -> None:
    """Add and promote in one step, safe where one host alone uses the keys.

    A host that has not read the new key refuses its receipts.
    """
    from calib_serve.receipts import Keyring

    _say(file, Keyring.edit(file, lambda ring: ring.rotated()))


@subcommand(app)
def _retire(file: Path, key: str, *, options: Annotated[_Retired, Flat] = _Retired()) -> None:
    """Forget a key."""
    from calib_serve.receipts import Keyring

    # Refused while a receipt that it signed may still come home, unless that is meant.
    how: dict[str, Any] = {"ttl": options.seconds, "early": options.early}
    _say(file, Keyring.edit(file, lambda ring: ring.retired(key, **how)))


@subcommand(app)
def _list(file: Path, *, options: Annotated[_Listed, Flat] = _Listed()) -> None:
    """Say which keys there are, and when each may be retired."""
    from calib_serve.receipts import Keyring

    _print_keys(Keyring.load(file), ttl=options.seconds, as_json=options.json)


@subcommand(app)
def _token(name: str, *, options: Annotated[_Scopes, Flat]) -> None:
    """Make a token of the watch, to give to a client, and the line to add to the token file.

    NAME says whose it is: labels that come with it are counted as theirs. The line holds the token's sha256
    alone, so that the file gives no token away. A server that runs reads the file again when it changes.
    """
    from calib_serve.web import new_token

    secret, line = new_token(name, options.scopes)
    said(f"token: {secret}\nline:  {line}")


def _say(file: Path, ring: "Keyring") -> None:
    others = sorted(set(ring.keys) - {ring.active})
    more = f"; {', '.join(others)} verify" if others else ""
    said(f"{file}: {ring.active} signs{more}")


def _print_keys(ring: "Keyring", *, ttl: float, as_json: bool) -> None:
    rows = [_row(ring, key_id, ttl=ttl) for key_id in ring.keys]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        said(f"{row['key']}  {'signs' if row['signs'] else 'verifies':8}  retire {_when_to_retire(row)}")


def _row(ring: "Keyring", key_id: str, *, ttl: float) -> dict[str, Any]:
    return {
        "key": key_id,
        "signs": key_id == ring.active,
        "demoted": ring.demoted.get(key_id),
        "retire_from": ring.unneeded_from(key_id, ttl=ttl),
    }


def _when_to_retire(row: dict[str, Any]) -> str:
    if row["signs"]:
        return "once another signs"
    if row["retire_from"] is None:
        return "once it signs nowhere (not known here)"
    from calib_serve.core.text import when

    return "now" if row["retire_from"] < time.time() else f"from {when(row['retire_from'] + 60)} on"
