"""``calib-serve fuse``: a calibration inside the model, as ONNX, torch or a Triton repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer

from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.fuse.onnx import FuseReport, Normalization

__all__ = ["group"]

group = typer.Typer(
    help="Put a calibration inside the model: onnx, torch, or a Triton repository.", no_args_is_help=True
)

Model = Annotated[Path, typer.Argument(help="The deployed model's file.")]
Fitted = Annotated[Path, typer.Argument(help="The folder that calib-serve fit wrote.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Where the calibrated model is written.")]
Force = Annotated[bool, typer.Option("--force", help="Take an artifact that was fitted for another model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Optional[str]  # noqa: UP045 - typer reads the annotation at run time, also on 3.10


@group.command("onnx")
def onnx(
    model: Model,
    artifact: Fitted,
    *,
    out: Out,
    outputs: Annotated[
        Literal["same", "probabilities", "all"],
        typer.Option(help="Outputs: the same ones calibrated, probabilities, or all that can be said."),
    ] = "same",
    output: Annotated[Name, typer.Option("--output-name", help="Which output holds the scores.")] = None,
    meaning: Annotated[
        Optional[Literal["logits", "log_probs", "probabilities"]],  # noqa: UP045
        typer.Option(help="What the scores are, where no Softmax tells."),
    ] = None,
    input_name: Annotated[Name, typer.Option("--input-name", help="Which input is shifted.")] = None,
    features: Annotated[Name, typer.Option("--features", help="The tensor a new head reads.")] = None,
    normalization: Annotated[
        Name,
        typer.Option("--with-normalization", metavar="MEAN,STD", help="As in .485/.456/.406,.229/.224/.225"),
    ] = None,
    inputs: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--inputs", help="npz of inputs by name to measure parity on, instead of generated."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Inputs to generate.")] = 8,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fuse into an ONNX graph; says what was folded, what it cost in nodes, and how exact it is."""
    from calib_serve.artifact import Artifact
    from calib_serve.fuse.onnx import fuse_onnx

    report = fuse_onnx(
        model,
        Artifact.load(artifact),
        out,
        outputs=outputs,
        output=output,
        meaning=meaning,
        input=input_name,
        features=features,
        normalization=_normalization(normalization),
        inputs=None if inputs is None else _arrays(inputs),
        samples=samples,
        force=force,
    )
    typer.echo(json.dumps(report.as_dict(), indent=2)) if as_json else _print(report, out)


@group.command("torch")
def torch(
    model: Model,
    artifact: Fitted,
    *,
    out: Out,
    output: Annotated[
        Literal["probabilities", "logits", "all"], typer.Option(help="What the calibrated model returns.")
    ] = "probabilities",
    returns: Annotated[
        Optional[Literal["logits", "probabilities", "log_probabilities"]],  # noqa: UP045
        typer.Option(help="What the model returns now, where the artifact does not say."),
    ] = None,
    last_linear: Annotated[
        Name, typer.Option("--last-linear", help="The layer that makes the logits.")
    ] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Multiply logit maps into that layer.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate a TorchScript or torch.export file."""
    from calib_serve.artifact import Artifact
    from calib_serve.fuse.torch import fuse_torch

    loaded = Artifact.load(artifact)
    kind = fuse_torch(
        model, loaded, out, output=output, returns=returns, last_linear=last_linear, fold=fold, force=force
    )
    facts = {"kind": kind, "output": output, "out": str(out), "artifact": loaded.fingerprint}
    typer.echo(json.dumps(facts, indent=2) if as_json else f"{out}: {kind}, returns {output}")


@group.command("triton")
def triton(
    model: Model,
    artifact: Fitted,
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The model repository.")],
    name: Annotated[str, typer.Option("--name", help="The model's name in Triton.")],
    version: Annotated[int, typer.Option("--version", min=1, help="Its version, a number for Triton.")] = 1,
    max_batch: Annotated[int, typer.Option(min=0, help="Largest batch; 0 for models of a fixed one.")] = 32,
    delay: Annotated[int, typer.Option(min=0, help="Microseconds a request waits for others.")] = 500,
    instances: Annotated[int, typer.Option(min=1, help="Copies of the model on each device.")] = 1,
    device: Annotated[Literal["gpu", "cpu"], typer.Option(help="Where it runs.")] = "gpu",
    tensorrt: Annotated[
        Optional[Literal["FP32", "FP16"]],  # noqa: UP045
        typer.Option(help="Let TensorRT run it, in this precision."),
    ] = None,
    receipts: Annotated[bool, typer.Option(help="Add the step that returns receipts and counts.")] = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a Triton model repository: the fused graph, its settings, and a step that is watched."""
    from calib_serve.artifact import Artifact
    from calib_serve.fuse.triton import Settings, write_repository

    settings = Settings(
        max_batch=max_batch,
        delay=delay,
        instances=instances,
        device=device,
        tensorrt=tensorrt,
        receipts=receipts,
    )
    report = write_repository(
        model, Artifact.load(artifact), out, name=name, version=version, settings=settings, force=force
    )
    typer.echo(json.dumps(report.as_dict(), indent=2)) if as_json else _print(report, out / name)


def _normalization(text: str | None) -> Normalization | None:
    from calib_serve.fuse.onnx import Normalization

    if text is None:
        return None
    try:
        mean, std = ([float(n) for n in part.split("/")] for part in text.split(","))
    except ValueError:
        raise InputError(f"a normalisation is MEAN,STD, channels parted by /: got {text!r}") from None
    return Normalization(_narrow(mean), _narrow(std))


def _narrow(numbers: list[float]) -> Any:
    import numpy as np

    return np.array(numbers[0] if len(numbers) == 1 else numbers)


def _arrays(path: Path) -> dict[str, Any]:
    from calib_serve.npz import read_npz

    try:
        return read_npz(path)[0]
    except ValueError as error:
        raise InputError(f"{path} is not an npz of inputs by name: {error}") from error


def _print(report: FuseReport, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for what in report.done:
        table.add_row("", what)
    table.add_row("nodes", f"{report.nodes_before} -> {report.nodes_after}")
    table.add_row("outputs", ", ".join(report.outputs))
    table.add_row(
        "parity",
        f"{report.max_abs_diff:.2g} at most on {report.samples} inputs, {report.tolerance:.2g} allowed "
        f"({report.engine})",
    )
    if report.near_edge:
        table.add_row("", f"{report.near_edge} inputs near a table's edge left out")
    Console().print(table, f"[green]{out}[/green]")
