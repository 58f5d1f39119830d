"""``calib-serve ledger``: look after the ledger that labels are counted in."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import json
import math
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.watch.ledger import Ledger

__all__ = ["group"]

group = typer.Typer(no_args_is_help=True, help="Check, back up and export a ledger; take labels back.")

Where = Annotated[
    str, typer.Argument(metavar="LEDGER", help="The ledger: a file, or postgresql://HOST/DATABASE.")
]


@group.command("check")
def check(ledger: Where) -> None:
    """Say what is wrong with a ledger, while others use it; exit code 1 if anything is."""
    with _opened(ledger) as book:
        wrong = book.check()
        trouble, extent = book.database.trouble(), book.database.extent()
    for one in [*wrong, *([trouble] if trouble else [])]:
        typer.echo(one)
    if wrong or trouble:
        raise typer.Exit(1)
    typer.echo(f"{book.database.name} is sound: {extent}")


@group.command("backup")
def backup(ledger: Where, file: Annotated[Path, typer.Argument(help="The backup: a new file.")]) -> None:
    """Write a ledger's file of one moment to another, while others use it; a PostgreSQL has its own means."""
    from calib_serve.words import file_size

    with _opened(ledger) as book:
        size = file_size(book.database.backup(file))
    typer.echo(f"{file}: {size}; put it in the ledger's place, then run calib-serve ledger restored")


@group.command("restored")
def restored(ledger: Where) -> None:
    """Say that a backup was put in the ledger's place: what may have been counted since is refused.

    Labels of predictions made until now are refused as forgotten, and sums are published as new series.
    """
    with _opened(ledger) as book:
        book.restored(by=_who())
    typer.echo("labels of predictions made until now are refused as forgotten")


@group.command("drop")
def drop(
    ledger: Where,
    *,
    model: Annotated[str, typer.Option("--model", help="The model.")],
    version: Annotated[str, typer.Option("--version", help="Which version of it.")],
) -> None:
    """Take a version that is not served any more out of the sums; no receipt of it counts again."""
    with _opened(ledger) as book:
        labels = book.drop((model, version), by=_who())
    typer.echo(f"took {labels} labels of {model} {version} out")


@group.command("export")
def export(
    ledger: Where,
    folder: Annotated[Path, typer.Option("-o", "--out", help="The folder for its Parquet files.")],
) -> None:
    """Write labels, sums and incidents as Parquet files, whose columns say what they mean."""
    from calib_serve.watch.ledger import export_ledger

    with _opened(ledger) as book:
        rows = export_ledger(book, folder)
    for view, number in rows.items():
        typer.echo(f"{folder / view}.parquet: {number} rows")


@group.command("revoke")
def revoke(
    ledger: Where,
    *,
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

    May be repeated: each label is taken out once, and none of them is counted again. What drift detectors
    were fed with stays. Times without a zone are UTC.
    """
    from calib_serve.watch.samples import SampleLog

    if not source:
        raise InputError("name the source whose labels are taken back")
    begun, end = _time(since, -math.inf), _time(until, math.inf)
    log = None if samples is None else SampleLog(samples)
    with _opened(ledger) as book:
        if log is not None and not dry_run:  # first: what is revoked is not found again
            for version, nonces in book.revoke(source, since=begun, until=end, dry_run=True).nonces.items():
                log.take_back(*version, nonces)
        told = book.revoke(source, since=begun, until=end, by=_who(), dry_run=dry_run)
    labels = [{"model": m, "version": v, "labels": n} for (m, v), n in sorted(told.labels.items())]
    if as_json:
        typer.echo(json.dumps({"revoked": labels, "dry_run": dry_run}))
        return
    for one in labels:
        done = "would be taken back" if dry_run else "taken back"
        typer.echo(f"{one['model']} {one['version']}: {one['labels']} {done}")
    if not labels:
        typer.echo("nothing to take back")


@contextlib.contextmanager
def _opened(where: str) -> Iterator[Ledger]:
    from calib_serve.watch.ledger import Ledger

    with contextlib.closing(Ledger(where, must_exist=True, retention=0.0)) as book:
        yield book


def _who() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


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
