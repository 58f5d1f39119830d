"""``calib-serve refit``: from a served archive and its sampled predictions to its next calibration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from calib_serve.cli import options
from calib_serve.errors import InputError

__all__ = ["run"]


def run(
    served: Annotated[Path, typer.Argument(help="What is served now: an archive, or an artifact.")],
    *,
    samples: Annotated[Path, typer.Option("--samples", help="The folder of sampled logits and labels.")],
    name: Annotated[str, typer.Option("--name", help="The model's name; an archive knows its own.")] = "",
    version: Annotated[
        str, typer.Option("--version", help="The version whose samples to use; an archive knows its own.")
    ] = "",
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder the new artifact is written to.")],
    days: Annotated[
        float, typer.Option("--days", help="How far back to look at least, and at most twice as far.")
    ] = 7.0,
    method: Annotated[str, typer.Option("--method", help="A method's name, or auto.")] = "auto",
    alpha: Annotated[
        float, typer.Option("--alpha", help="The chance to replace a calibration that is right, at most.")
    ] = 0.05,
    new_version: Annotated[
        str, typer.Option("--new-version", help="Pack the archive again as this version.")
    ] = "",
    store: Annotated[
        Path | None, typer.Option("--store", help="The model store to pack into; default: the archive's.")
    ] = None,
    seed: options.Seed = 0,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Fit again on recent labelled samples, and keep the result only where there is evidence for it.

    The model, its input shift and its head stay as they are, and so do all options of an archive. Ask as
    often as you like. Exit code 1 and nothing written while there is not enough evidence.
    """
    from calib_serve.cli.progress import stages
    from calib_serve.fuse.torchserve import is_archive, recalibrated
    from calib_serve.refit import refit_served

    if new_version and not is_archive(served):
        raise InputError(f"--new-version packs an archive again; give the .mar that is served, not {served}")
    if out.exists() and not force:
        raise InputError(f"{out} exists; give --force to replace it, or another --out")
    with stages(quiet=as_json) as progress:
        found = refit_served(
            served,
            samples,
            name=name,
            version=version,
            days=days,
            method=method,
            alpha=alpha,
            seed=seed,
            progress=progress,
        )
    typer.echo(json.dumps(found.as_dict()) if as_json else found.says())
    if found.artifact is None:
        raise typer.Exit(1)
    found.artifact.save(out)
    typer.echo(f"written to {out}", err=as_json)
    if new_version:
        packed = recalibrated(
            served, found.artifact, store or served.parent, version=new_version, force=force
        )
        typer.echo(f"packed {packed}; register it and make it the default", err=as_json)
