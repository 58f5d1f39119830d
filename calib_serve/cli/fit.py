"""``calib-serve fit``: calibration data in, an artifact out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact

__all__ = ["run"]


def run(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder the artifact is written to.")],
    method: Annotated[
        str, typer.Option("--method", help="A method's name, or auto to choose by cross-validation.")
    ] = "auto",
    logits: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, also on 3.10
        typer.Option("--logits", help="Logits and labels: npz, npy, csv, parquet or safetensors."),
    ] = None,
    labels: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--labels", help="Labels in an npy file of their own."),
    ] = None,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--model", help="The deployed model, instead of its logits."),
    ] = None,
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--data", help="The calibration data for --model."),
    ] = None,
    split: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--split", help="Which split of the file to fit on, such as cal."),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="NAME=VALUE", help="An option of the method; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of everything that is drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest's facts as JSON.")] = False,
) -> None:
    """Fit a calibration and write it as an artifact."""
    if (logits is None) == (model is None):
        raise InputError("say what to fit on: --logits FILE, or --model MODEL with --data DATA")
    options = _options(settings or [])
    if logits is not None:
        artifact = fit_on_logits(logits, labels, split=split, method=method, options=options, seed=seed)
    else:
        from calib_serve.cli.fit_model import fit_on_model

        if data is None:
            raise InputError("--model needs --data: the images or arrays to calibrate it on")
        artifact = fit_on_model(
            str(model), data, split=split, method=method, options=options, seed=seed, quiet=as_json
        )
    artifact.save(out)
    _show(artifact, out, as_json=as_json)


def fit_on_logits(
    path: Path,
    labels: Path | None,
    *,
    split: str | None,
    method: str,
    options: dict[str, Any],
    seed: int,
) -> Artifact:
    """Fit an output calibrator, by name or by ``auto``, to a file of logits and labels."""
    from calib_serve.fit.candidates import fit_by_name
    from calib_serve.logits_file import read_logits

    found = read_logits(path, split=split, labels=labels)
    if found.labels is None:
        raise InputError(f"{path} has logits but no labels; name an npy file of labels with --labels")
    return fit_by_name(
        method, found.logits, found.labels, class_names=found.class_names, seed=seed, **options
    )


def _options(settings: list[str]) -> dict[str, Any]:
    """What ``--set`` gave: numbers, true, false and null as JSON reads them, all else as text."""
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"--set wants NAME=VALUE, got {setting!r}")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _show(artifact: Artifact, out: Path, *, as_json: bool) -> None:
    if as_json:
        from calib_serve.cli.inspect import facts

        typer.echo(json.dumps({"artifact": str(out), **facts(artifact)}))
        return
    from rich.console import Console

    from calib_serve.cli.inspect import tables

    console = Console()
    for table in tables(artifact):
        console.print(table)
    console.print(f"written to {out}", highlight=False)
