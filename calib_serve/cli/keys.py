"""``calib-serve keys``: make, add, promote, retire and list the keys that sign receipts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calib_serve.cli.parse import positive
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.receipts import Keyring

__all__ = ["run"]

_ACTIONS = (
    "new: a first key. add: a fresh key that verifies and does not sign yet. promote: let a key sign. "
    "retire: forget a key. list: which there are. rotate: add and promote in one step, which is safe where "
    "one host alone uses the keys; a host that has not read the new key refuses its receipts."
)


def run(
    action: Annotated[
        Literal["new", "add", "promote", "rotate", "retire", "list"], typer.Argument(help=_ACTIONS)
    ],
    file: Annotated[Path, typer.Argument(help="The keyring file, which its owner alone may use.")],
    *,
    key: Annotated[str | None, typer.Option("--key", help="Which key to promote or to retire.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Add the keys of this keyring, another host's, instead of a fresh one."),
    ] = None,
    ttl_days: Annotated[
        float,
        typer.Option(
            "--ttl-days",
            parser=positive,
            metavar="NUMBER",
            help="For how long labels are accepted, as the servers have it: retire and list go by it.",
        ),
    ] = 30,
    force: Annotated[
        bool, typer.Option("--force", help="Retire a key though labels for its receipts may still come.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="List as JSON.")] = False,
) -> None:
    """Make a keyring, and change the key that signs, without a receipt refused.

    On several hosts: add the key on all of them, promote it on one after the other, and retire the old one
    when list says so. What runs reads a changed file within a second, or on SIGHUP. Secrets are never shown.
    """
    from calib_serve.receipts import DAY, Keyring

    if (action in ("promote", "retire")) != (key is not None):
        raise InputError("promote and retire need --key ID, and nothing else takes it")
    for given, option, taker in ((source, "--from", "add"), (force, "--force", "retire")):
        if given and action != taker:
            raise InputError(f"only {taker} takes {option}")
    if as_json and action != "list":
        raise InputError("only list takes --json")
    ttl = ttl_days * DAY
    if action == "list":
        return _list(Keyring.load(file), ttl=ttl, as_json=as_json)
    if action == "new":
        ring = Keyring.create(file)
    else:
        ring = Keyring.edit(
            file, lambda ring: _changed(ring, action, key or "", source=source, ttl=ttl, force=force)
        )
    others = sorted(set(ring.keys) - {ring.active})
    typer.echo(f"{file}: {ring.active} signs" + (f"; {', '.join(others)} verify" if others else ""))
    return None


def _changed(
    ring: Keyring, action: str, key: str, *, source: Path | None, ttl: float, force: bool
) -> Keyring:
    if action == "add":
        return ring.extended() if source is None else ring.joined(ring.load(source))
    if action == "promote":
        return ring.promoted(key)
    if action == "rotate":
        return ring.rotated()
    return ring.without(key) if force else ring.retired(key, ttl=ttl)


def _list(ring: Keyring, *, ttl: float, as_json: bool) -> None:
    rows = [_row(ring, key_id, ttl=ttl) for key_id in ring.keys]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    for row in rows:
        typer.echo(
            f"{row['key']}  {'signs' if row['signs'] else 'verifies':8}  added {_day(row['added'])}  "
            f"promoted {_day(row['promoted'])}  retire {_when_to_retire(row)}"
        )


def _row(ring: Keyring, key_id: str, *, ttl: float) -> dict[str, Any]:
    known = ring.times[key_id]
    return {
        "key": key_id,
        "signs": key_id == ring.active,
        "added": known.added,
        "promoted": known.promoted,
        "demoted": known.demoted,
        "retire_from": ring.unneeded_from(key_id, ttl=ttl),
    }


def _when_to_retire(row: dict[str, Any]) -> str:
    if row["signs"]:
        return "once another signs"
    if row["retire_from"] is None:
        return "once it signs nowhere (not known here)"
    return "now" if row["retire_from"] < time.time() else f"from {_day(row['retire_from'])} on"


def _day(when: float | None) -> str:
    from calib_serve.receipts import told_time

    return "-" if when is None else told_time(when)
