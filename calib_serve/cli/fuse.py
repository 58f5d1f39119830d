"""``calib-serve fuse``: a calibration inside the model, as ONNX, torch or a Triton repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from calib_serve.fuse.onnx import FuseReport

__all__ = ["group"]

group = typer.Typer(
    help="Put a calibration inside the model: onnx, torch, or a Triton repository.", no_args_is_help=True
)

Model = Annotated[Path, typer.Argument(help="The deployed model's file.")]
Fitted = Annotated[Path, typer.Argument(help="The folder that calib-serve fit wrote.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Where the calibrated model is written.")]
Force = Annotated[bool, typer.Option("--force", help="Take an artifact that was fitted for another model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Outputs = Annotated[
    Literal["logits", "log_probs", "probabilities"] | None,
    typer.Option(help="What the model puts out now, where neither its graph nor the artifact says."),
]
Name = str | None
Shown = Literal["same", "probabilities", "all"]
Made = Literal["probabilities", "logits", "all"]
Precision = Literal["FP32", "FP16"] | None


def _normalization(text: str) -> Any:
    from calib_serve.fuse.onnx import Normalization

    return Normalization.read(text)


Normal = Annotated[
    Any, typer.Option(parser=_normalization, metavar="MEAN,STD", help="As in .485/.456/.406,.229/.224/.225")
]


@group.command("onnx")
def onnx(
    model: Model,
    artifact: Fitted,
    *,
    out: Out,
    returns: Annotated[Shown, typer.Option(help="The same outputs calibrated, or others.")] = "same",
    outputs: Outputs = None,
    output_name: Annotated[Name, typer.Option(help="Which output holds the scores.")] = None,
    input_name: Annotated[Name, typer.Option(help="Which input is shifted.")] = None,
    features: Annotated[Name, typer.Option(help="The tensor a new head reads.")] = None,
    with_normalization: Normal = None,
    inputs: Annotated[Path | None, typer.Option(help="npz of inputs to measure parity on.")] = None,
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
        returns=returns,
        outputs=outputs,
        output_name=output_name,
        input_name=input_name,
        features=features,
        normalization=with_normalization,
        inputs=inputs,
        samples=samples,
        force=force,
    )
    _show(report, out, as_json=as_json)


@group.command("torch")
def torch(
    model: Model,
    artifact: Fitted,
    *,
    out: Out,
    returns: Annotated[Made, typer.Option(help="What the calibrated model returns.")] = "probabilities",
    outputs: Outputs = None,
    last_linear: Annotated[Name, typer.Option(help="The layer that makes the logits.")] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Multiply logit maps into that layer.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate a TorchScript or torch.export file."""
    from calib_serve.artifact import Artifact
    from calib_serve.fuse.torch import fuse_torch

    fitted = Artifact.load(artifact)
    kind = fuse_torch(
        model, fitted, out, returns=returns, outputs=outputs, last_linear=last_linear, fold=fold, force=force
    )
    facts = {"kind": kind, "returns": returns, "out": str(out), "artifact": fitted.fingerprint}
    typer.echo(json.dumps(facts, indent=2) if as_json else f"{out}: {kind}, returns {returns}")


@group.command("triton")
def triton(
    model: Model,
    artifact: Fitted,
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The model repository.")],
    name: Annotated[str, typer.Option(help="The model's name in Triton.")],
    version: Annotated[int, typer.Option(min=1, help="Its version, a number for Triton.")] = 1,
    max_batch: Annotated[int, typer.Option(min=0, help="Largest batch; 0 for models of a fixed one.")] = 32,
    delay: Annotated[int, typer.Option(min=0, help="Microseconds a request waits for others.")] = 500,
    instances: Annotated[int, typer.Option(min=1, help="Copies of the model on each device.")] = 1,
    device: Annotated[Literal["gpu", "cpu"], typer.Option(help="Where it runs.")] = "gpu",
    tensorrt: Annotated[Precision, typer.Option(help="Let TensorRT run it, in this precision.")] = None,
    receipts: Annotated[bool, typer.Option(help="Add the step that returns receipts and counts.")] = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a Triton model repository: the fused graph, its settings, and a step that is watched."""
    from calib_serve.artifact import Artifact
    from calib_serve.fuse.triton import Settings, fuse_triton

    settings = Settings(max_batch, delay, instances, device, tensorrt, receipts)
    report = fuse_triton(
        model, Artifact.load(artifact), out, name=name, version=version, settings=settings, force=force
    )
    _show(report, out / name, as_json=as_json)


def _show(report: FuseReport, out: Path, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
        return
    table = Table(show_header=False, box=None)
    for row in report.rows():
        table.add_row(*row)
    Console().print(table, f"[green]{out}[/green]")
