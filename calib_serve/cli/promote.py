"""``calib-serve promote``: the next version of a served model, where labels say that it is better."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.promotion import Host

__all__ = ["run"]


def run(
    archive: Annotated[
        Path | None,
        typer.Argument(help="The archive of the new version, of which the served one has a shadow."),
    ] = None,
    *,
    folder: Annotated[
        Path, typer.Option("--folder", help="Where the server runs: its config.properties and tokens.")
    ] = Path("serving"),
    ledger: Annotated[
        str, typer.Option("--ledger", help="Where its labels are counted; default: the server's own.")
    ] = "",
    unless_worse: Annotated[
        bool, typer.Option("--unless-worse", help='The verdict "no worse" is enough.')
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Whatever labels say.")] = False,
    back: Annotated[
        bool, typer.Option("--back", help="Go back to the version before the last promotion.")
    ] = False,
    model: Annotated[str, typer.Option("--model", help="The model, with --back.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Make another version of a model the served one, without a lost request or label.

    Shows what labels say of the new version, by the predictions that carried it as a shadow, and asks. Exit
    code 0: done. 1: refused, as labels do not say that it is better, or not yet. 2: it could not be done;
    what was served is still served.
    """
    from calib_serve.promotion import Host

    if (archive is not None) == back:
        raise InputError("give the archive of the new version, or --back")
    if back and not model:
        raise InputError("name the model with --model")
    host = Host.of(folder)
    with host.alone():
        if archive is None:
            last = host.before(model)
            archive, served, version = host.store / last.archive_before, last.version, last.before
        else:
            model, served, version = _checked(host, archive, ledger, unless_worse=unless_worse, force=force)
        if not yes:
            typer.confirm(f"Serve {model} {version} instead of {served}?", abort=True)
        _swap(host, archive)


def _swap(host: Host, archive: Path) -> None:
    from calib_serve.promotion import swap

    model, version, before = swap(host, archive)
    typer.echo(f"{model} {version} is served, {before} before")


def _checked(
    host: Host, archive: Path, ledger: str, *, unless_worse: bool, force: bool
) -> tuple[str, str, str]:
    """Show what labels say of the archive; (model, served version, its version) where that is enough."""
    from calib_serve.fuse.torchserve import same_model, served_artifact
    from calib_serve.promotion import evidence_of
    from calib_serve.watch.ledger import Ledger

    artifact, model, version = served_artifact(archive)
    running = host.default(model)
    if force or running.version == version:
        return model, running.version, version
    if not same_model(archive, host.store / running.archive):
        raise InputError(
            f"{archive} holds another model file than {running.archive}, in whose shadow only its "
            "calibration ran: labels say nothing of it; look at it yourself, then give --force"
        )
    where = ledger or host.ledger
    with contextlib.closing(Ledger(where, must_exist=True)) as book:
        found = evidence_of(book, (model, running.version), artifact.fingerprint, unless_worse=unless_worse)
    typer.echo(found.says)
    if not found.enough:
        raise typer.Exit(1)
    return model, running.version, version
