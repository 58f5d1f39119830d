"""``calib-serve ledger``: back a ledger of labels up, restore, verify, prune it, take labels back."""

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

__all__ = ["group"]

group = typer.Typer(
    no_args_is_help=True, help="Back a ledger of labels up, restore, verify or prune it, take labels back."
)

Where = Annotated[
    str, typer.Argument(metavar="LEDGER", help="The ledger: a file, redis://..., or redis+cluster://...")
]


@group.command("backup")
def backup(
    ledger: Where,
    file: Annotated[Path, typer.Argument(help="The backup; an earlier one is replaced whole.")],
) -> None:
    """Write the ledger of one moment to a file, while others use it."""
    from calib_serve.watch.ledger import backup_ledger

    made = backup_ledger(ledger, file)
    typer.echo(f"{file}: the {made.store} ledger of {_moment(made.taken)}, {_size(made.bytes)}")


@group.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="What backup wrote.")],
    ledger: Where,
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Set the ledger that is there aside; it is never deleted.")
    ] = False,
    recount: Annotated[
        bool,
        typer.Option("--recount", help="Labels counted since the backup will be sent again: count them."),
    ] = False,
    clock_skew: Annotated[
        float,
        typer.Option("--clock-skew", min=0, help="Seconds that hosts' clocks may run ahead of this one."),
    ] = 300.0,
) -> None:
    """Make a backup the ledger, while nobody uses it.

    Labels of predictions made until now are refused as forgotten, unless the lost ones are to be sent again.
    """
    from calib_serve.addresses import shown
    from calib_serve.watch.ledger import restore_ledger

    done = restore_ledger(file, ledger, replace=replace, recount=recount, clock_skew=clock_skew)
    typer.echo(f"{shown(ledger)}: as it was at {_moment(done.taken)}")
    if done.aside is not None:
        typer.echo(f"the ledger before is now {done.aside}")
    if recount:
        typer.echo("send the labels again that were counted since; the others are duplicates")
    else:
        typer.echo(
            f"labels of predictions made until {_moment(done.forgotten_until)} are refused as forgotten"
        )


@group.command("verify")
def verify(ledger: Where) -> None:
    """Say what is wrong with a ledger, while others use it; exit code 1 if anything is.

    What was damaged earlier and set aside is said as well: the ledger counts on without it.
    """
    from calib_serve.addresses import shown
    from calib_serve.watch.ledger import set_aside_rows, verify_ledger

    wrong = verify_ledger(ledger)
    for one in wrong:
        typer.echo(one)
    if wrong:
        raise typer.Exit(1)
    for one in set_aside_rows(ledger):
        typer.echo(one)
    typer.echo(f"{shown(ledger)} is sound")


@group.command("prune")
def prune(
    ledger: Where,
    *,
    before: Annotated[
        datetime.datetime | None,
        typer.Option("--before", help="Forget receipts of predictions before this UTC date, too."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Take a model version out of the sums.")
    ] = None,
    version: Annotated[str | None, typer.Option("--version", help="Which version of it.")] = None,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Delete damaged rows that were set aside, too.")
    ] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Give free pages of a file back, if nobody has it open.")
    ] = False,
) -> None:
    """Forget what has expired now, or take a version that is not served any more out of the sums."""
    from calib_serve.watch.ledger import prune_ledger

    if (model is None) != (version is None):
        raise InputError("a model version has both: --model NAME --version VERSION")
    done = prune_ledger(
        ledger,
        before=None if before is None else before.replace(tzinfo=datetime.timezone.utc).timestamp(),
        version=None if model is None or version is None else (model, version),
        set_aside=set_aside,
        compact=compact,
    )
    if model is not None:
        typer.echo(
            f"took {done.labels:.0f} labels of {model} {version} out; no receipt of theirs counts again"
        )
    else:
        typer.echo(f"forgot {done.forgotten} receipts and epochs of receipts")
    if set_aside:
        typer.echo(f"deleted {done.set_aside} damaged rows that were set aside")
    how = {None: "", True: ", given back", False: "; a process uses it, so nothing was given back"}
    typer.echo(f"freed {_size(done.freed)}{how[done.compacted]}")


@group.command("revoke")
def revoke(
    ledger: Where,
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


def _moment(time: float) -> str:
    return f"{datetime.datetime.fromtimestamp(time, datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _size(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
