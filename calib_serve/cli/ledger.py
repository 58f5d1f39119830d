"""``calib-serve ledger``: what can be done to a ledger beside a server."""

from __future__ import annotations

import typer

from calib_serve.cli.ledger_revoke import revoke

__all__ = ["group"]

group = typer.Typer(no_args_is_help=True, help="Look after the ledger of counted labels.")
group.command("revoke")(revoke)


@group.callback()
def _several() -> None:
    """Look after the ledger of counted labels."""
