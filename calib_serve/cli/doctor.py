"""``calib-serve doctor``: what on this host would not work, and what mends it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calib_serve.cli import options, parse

if TYPE_CHECKING:
    from calib_serve.doctor import Finding

__all__ = ["run"]

_COLORS = {"ok": "green", "note": "yellow", "wrong": "red"}


def run(
    *,
    extras: Annotated[
        Any,
        typer.Option(
            "--for",
            parser=parse.names,
            metavar="EXTRAS",
            help="What the host is for, such as torch, torchserve or watch; default: what is installed.",
        ),
    ] = None,
    keyring: Annotated[Path | None, typer.Option("--keyring", help="The keyring that will be used.")] = None,
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="Where labels will be counted, such as ledger.db.")
    ] = None,
    store: Annotated[Path | None, typer.Option("--store", help="The model store.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where calib-serve serve runs: tokens, keyring, ledger.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A config.properties with TorchServe's ports.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=1, max=65_535, help="Where calib-serve watch will listen.")
    ] = 9300,
    as_json: options.AsJson = False,
) -> None:
    """Look at this host and say what is wrong and what to do; exit code 1 if anything is wrong.

    It writes nothing, starts no server and asks no network.
    """
    from calib_serve.doctor import Asked, examine

    asked = Asked(
        extras=tuple(extras or ()),
        config=config,
        port=port,
        folder=folder,
        store=store,
        keyring=keyring,
        ledger=ledger,
    )
    found = examine(asked)
    count = {level: sum(one.level == level for one in found) for level in _COLORS}
    if as_json:
        typer.echo(json.dumps({**count, "findings": [asdict(one) for one in found]}))
    else:
        _show(found)
        typer.echo(f"{count['ok']} ok, {count['note']} to note, {count['wrong']} wrong")
    if count["wrong"]:
        raise typer.Exit(1)


def _show(found: list[Finding]) -> None:
    for one in found:
        level = typer.style(f"{one.level:6}", fg=_COLORS[one.level])
        typer.echo(f"{level} {one.about}: {one.what}")
        if one.do:
            typer.echo(f"       do: {one.do}")
