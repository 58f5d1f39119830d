"""``calib-serve ledger``: back a ledger of labels up, restore, verify, prune it, take labels back."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from calib_serve.cli.ledger_revoke import revoke
from calib_serve.errors import InputError

__all__ = ["group"]

group = typer.Typer(
    no_args_is_help=True, help="Back a ledger of labels up, restore, verify or prune it, take labels back."
)
group.command("revoke")(revoke)

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
        datetime | None,
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
    from datetime import timezone

    from calib_serve.watch.ledger import prune_ledger

    if (model is None) != (version is None):
        raise InputError("a model version has both: --model NAME --version VERSION")
    done = prune_ledger(
        ledger,
        before=None if before is None else before.replace(tzinfo=timezone.utc).timestamp(),
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


def _moment(time: float) -> str:
    from datetime import timezone

    return f"{datetime.fromtimestamp(time, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _size(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"
