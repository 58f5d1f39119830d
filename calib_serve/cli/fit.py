"""``calib-serve fit``: calibration data in, an artifact out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from calib_serve.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from calib_serve.artifact import Artifact
    from calib_serve.data.logits_file import LogitsFile

__all__ = ["fit_output", "run"]

_AUTO_OPTIONS = ("candidates", "criterion", "folds", "tolerance", "level")


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
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the method, or of auto: candidates, criterion, folds, tolerance.",
        ),
    ] = None,
    eval_split: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--eval-split", help="A split to measure before and after on, such as test."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of everything that is drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest's facts as JSON.")] = False,
) -> None:
    """Fit a calibration and write it as an artifact."""
    if (logits is None) == (model is None):
        raise InputError("say what to fit on: --logits FILE, or --model MODEL with --data DATA")
    options = _options(settings or [])
    if logits is not None:
        artifact = fit_on_logits(
            logits,
            labels,
            split=split,
            eval_split=eval_split,
            method=method,
            options=options,
            seed=seed,
            quiet=as_json,
        )
    else:
        from calib_serve.cli.fit_model import fit_on_model

        if data is None:
            raise InputError("--model needs --data: the images or arrays to calibrate it on")
        artifact = fit_on_model(
            str(model),
            data,
            split=split,
            eval_split=eval_split,
            method=method,
            options=options,
            seed=seed,
            quiet=as_json,
        )
    artifact.save(out)
    _show(artifact, out, as_json=as_json)


def fit_on_logits(
    path: Path,
    labels: Path | None,
    *,
    split: str | None,
    eval_split: str | None,
    method: str,
    options: dict[str, Any],
    seed: int,
    quiet: bool,
) -> Artifact:
    """Fit an output calibrator to a file of logits and labels, and measure it on another split."""
    from calib_serve.data.logits_file import read_logits

    found = read_logits(path, split=split, labels=labels)
    if found.labels is None:
        raise InputError(f"{path} has logits but no labels; name an npy file of labels with --labels")
    # Read before the fit: a split that does not exist should not cost one.
    held_out = None if eval_split is None else read_logits(path, split=eval_split)
    artifact = fit_output(
        method,
        found.logits,
        found.labels,
        class_names=found.class_names,
        options=options,
        seed=seed,
        quiet=quiet,
    )
    return artifact if held_out is None else _measured(artifact, held_out, str(eval_split), seed)


def fit_output(
    method: str,
    logits: NDArray[Any],
    labels: NDArray[Any],
    *,
    class_names: Sequence[str],
    options: dict[str, Any],
    seed: int,
    quiet: bool,
) -> Artifact:
    """Fit the output method called ``method``, or choose one where that is ``auto``."""
    from calib_serve.cli.progress import steps
    from calib_serve.fit.output import default_candidates, fit_by_name, select
    from calib_serve.fit.samples import Samples

    if method != "auto":
        with steps(1, quiet=quiet) as advance:
            advance(method)
            return fit_by_name(method, logits, labels, class_names=class_names, seed=seed, **options)
    unknown = sorted(set(options) - set(_AUTO_OPTIONS))
    if unknown:
        raise InputError(f"auto has no option {', '.join(unknown)}; it has {', '.join(_AUTO_OPTIONS)}")
    samples = Samples.of(logits, labels)
    names = options.pop("candidates", None) or default_candidates(samples.classes)
    if isinstance(names, str):
        names = tuple(name.strip() for name in names.split(","))
    with steps(len({"none", *names}), quiet=quiet) as advance:
        artifact = select(samples, labels, candidates=names, seed=seed, progress=advance, **options)
    return replace(artifact, class_names=tuple(class_names))


def _measured(artifact: Artifact, held_out: LogitsFile, split: str, seed: int) -> Artifact:
    from calib_serve.metrics import two_columns

    if held_out.labels is None:
        raise InputError(f"the split {split} has no labels to measure with")
    logits = two_columns(held_out.logits)
    return with_metrics(artifact, logits, artifact.probs(logits), held_out.labels, split=split, seed=seed)


def with_metrics(
    artifact: Artifact,
    logits: NDArray[Any],
    probs: NDArray[Any],
    labels: NDArray[Any],
    *,
    split: str,
    seed: int,
) -> Artifact:
    """The artifact with metrics of ``logits`` (before) and ``probs`` (after) of held-out data."""
    from calib_serve.metrics import evaluate, evaluate_logits

    before = evaluate_logits(logits, labels, replicates=200, seed=seed)
    after = evaluate(probs, labels, replicates=200, seed=seed)
    return replace(
        artifact,
        before={name: e.as_dict() for name, e in before.estimates().items()},
        after={name: e.as_dict() for name, e in after.estimates().items()},
        data={**artifact.data, "measured_on": split},
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
    shift = _shift(artifact)
    if shift:
        console.print(f"[yellow]{shift}", highlight=False)
    console.print(f"written to {out}", highlight=False)


def _shift(artifact: Artifact) -> str | None:
    """A warning where held-out data is miscalibrated far beyond what the calibration set was left with."""
    ece, floor, reference = artifact.after.get("ece"), artifact.after.get("noise_floor"), artifact.reference
    if not ece or not floor or reference is None or ece["low"] is None:
        return None
    if ece["low"] <= max(2 * reference.ece(), floor["high"] or floor["value"]):
        return None
    return (
        f"the held-out ECE is {ece['value']:.3f}, where the calibration set was left with "
        f"{reference.ece():.3f}: the two are not alike, and no calibrator fitted here repairs that; "
        "calibrate on samples like those that will be served"
    )
