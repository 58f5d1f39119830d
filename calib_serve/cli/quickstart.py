"""``calib-serve quickstart``: a folder with a project of one's own that runs as it stands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

__all__ = ["run"]


def run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder, or an empty one.")],
    *,
    kind: Annotated[
        Literal["torch", "sklearn", "logits"],
        typer.Option("--kind", help="What you have: a torch model, one of scikit-learn, or logits."),
    ] = "torch",
    force: Annotated[
        bool,
        typer.Option("--force", help="Write into a folder that is not empty; files that are there stay."),
    ] = False,
) -> None:
    """Write a small project that calibrates, serves and watches a model; put your model and data into it."""
    from calib_serve.doctor import installed, missing
    from calib_serve.quickstart import KINDS, write_project

    chosen, packages = KINDS[kind], installed()
    if lacks := sorted({name for extra in chosen.extras for name in missing(extra, packages)}):
        typer.echo(
            f"calib-serve: to run it, {', '.join(lacks)} are missing here: "
            f"pip install 'calib-serve[{','.join(chosen.extras)}]'",
            err=True,
        )
    written = write_project(folder, kind, force=force)
    for name in written.kept:
        typer.echo(f"calib-serve: {folder / name} is there already, and stays as it is", err=True)
    typer.echo(f"written to {folder}: {', '.join(written.made) or 'nothing'}")
    typer.echo("next, as README.md there says:")
    for command in (f"cd {shlex.quote(str(folder))}", *chosen.first):
        typer.echo(f"  {command}")
