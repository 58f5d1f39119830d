"""``calib-serve scale``: another number of workers of a running server, with nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["run"]


def run(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    *,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="How many; 0 before a version is unregistered.")
    ],
    version: Annotated[
        str | None, typer.Option("--version", help="The model's version; default: the default one.")
    ] = None,
    folder: Annotated[
        Path, typer.Option("--folder", help="Where the server runs: its config.properties and tokens.")
    ] = Path("serving"),
) -> None:
    """Give a model more or fewer workers: no request fails or hangs, and every prediction is counted."""
    from calib_serve.serve.scaling import management_of, scale

    found, before = scale(management_of(folder), model, workers, version=version)
    typer.echo(f"{model} {found}: {workers} workers, {before} before")
