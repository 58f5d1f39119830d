"""``calib-serve ledger revoke``: take back the labels of a source."""

from __future__ import annotations

import datetime
import getpass
import json
import math
import socket
from pathlib import Path
from typing import Annotated

import typer

from calib_serve.errors import InputError

__all__ = ["revoke"]


def revoke(
    ledger: Annotated[
        str, typer.Argument(metavar="LEDGER", help="The ledger: a file, redis://..., or redis+cluster://...")
    ],
    *,
    journal: Annotated[Path, typer.Option("--journal", help="The folder of --label-journal.")],
    source: Annotated[str, typer.Option("--source", help="Whose labels: the name of a token.")],
    since: Annotated[
        str, typer.Option("--since", help="Labels that came from then on: 2026-05-01T12:00, or seconds.")
    ] = "",
    until: Annotated[str, typer.Option("--until", help="Labels that came before then.")] = "",
    samples: Annotated[
        Path | None, typer.Option("--samples", help="A folder of samples, which forget these labels as well.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many there are, and change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Take a source's labels out of every sum; servers may go on.

    May be repeated: each label is taken back once, and none of them is counted again. What drift detectors
    were fed with stays. Times without a zone are UTC.
    """
    from calib_serve.watch.ledger import existing_ledger
    from calib_serve.watch.revoke import revoke as take_back

    book = existing_ledger(ledger)
    try:
        told = take_back(
            book,
            journal,
            source=source,
            since=_time(since, -math.inf),
            until=_time(until, math.inf),
            samples=samples,
            dry_run=dry_run,
            by=f"{getpass.getuser()}@{socket.gethostname()}",
        )
    finally:
        book.close()
    labels = [{"model": m, "version": v, "labels": n} for (m, v), n in sorted(told.labels.items())]
    done = "would be taken back" if told.dry else "taken back"
    if as_json:
        typer.echo(json.dumps({"revoked": labels, "before": told.before, "dry_run": told.dry}))
        return
    for one in labels:
        typer.echo(f"{one['model']} {one['version']}: {one['labels']} {done}")
    if not labels:
        typer.echo("nothing to take back")
    if told.before:
        typer.echo(f"{told.before} were taken back before")


def _time(text: str, default: float) -> float:
    """Seconds since 1970 of a date and time, or of such a number.

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
