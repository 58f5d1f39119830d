"""``calib-serve keys``: make, rotate and retire the keys that sign receipts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from calib_serve.errors import InputError, KeyringError

__all__ = ["run"]


def run(
    action: Annotated[
        Literal["new", "rotate", "retire"],
        typer.Argument(help="new: a first key. rotate: a fresh key signs. retire: forget a key."),
    ],
    file: Annotated[Path, typer.Argument(help="The keyring file, readable by its owner alone.")],
    key: Annotated[str | None, typer.Option("--key", help="Which key to retire.")] = None,
) -> None:
    """Make a keyring, let a fresh key sign, or retire an old one.

    After a rotation the old key still verifies: retire it once its receipts have expired. Workers
    read the keyring when they start.
    """
    from calib_serve.receipts import Keyring

    if (action == "retire") != (key is not None):
        raise InputError("retire needs --key ID, and nothing else takes it")
    if action == "new":
        if file.exists():
            raise KeyringError(f"{file} exists and its receipts would be lost; use: calib-serve keys rotate")
        ring = Keyring.new()
    else:
        ring = Keyring.load(file)
        ring = ring.rotated() if key is None else ring.without(key)
    ring.save(file)
    others = sorted(set(ring.keys) - {ring.active})
    typer.echo(f"{file}: {ring.active} signs" + (f"; {', '.join(others)} still verify" if others else ""))
