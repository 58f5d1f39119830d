"""``calib-serve tokens``: make the tokens that ``calib-serve watch`` asks for."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

__all__ = ["run"]


def run(
    action: Annotated[Literal["new"], typer.Argument(help="new: a fresh token.")],
    name: Annotated[str, typer.Argument(help="Whose it is: labels that come with it are counted as theirs.")],
    *,
    scopes: Annotated[
        str,
        typer.Option("--scopes", help="What it is for: some of predict,label,scrape,admin, commas between."),
    ],
) -> None:
    """Print a fresh token, to give to its client, and the line to add to the token file.

    The line holds the token's sha256 alone, so that the file gives no token away. A server that runs reads
    the file again when it changes.
    """
    from calib_serve.watch.http import new_token

    token, line = new_token(name, scopes)
    typer.echo(f"token: {token}")
    typer.echo(f"line:  {line}")
