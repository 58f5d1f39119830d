"""``calib-serve fuse``: a calibration inside the model, as ONNX, torch or a Triton repository."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from calib_serve.cli import options
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.fuse.onnx import FuseReport
    from calib_serve.fuse.torch import TorchReport

__all__ = ["group"]

group = typer.Typer(
    help="Put a calibration inside the model: onnx, torch, or a Triton repository.", no_args_is_help=True
)

Model = Annotated[Path, typer.Argument(help="The deployed model's file.")]
Fitted = Annotated[Path, typer.Argument(help="The folder that calib-serve fit wrote.")]
Out = Annotated[Path, typer.Option("-o", "--out", help="Where the calibrated model is written.")]
Force = Annotated[bool, typer.Option("--force", help="Take an artifact that was fitted for another model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FittedOn = Annotated[
    options.Kind | None,
    typer.Option(help="What the artifact was fitted on, where it does not say so."),
]
Name = str | None
Shown = Literal["same", "probabilities", "all"]
Made = Literal["probabilities", "logits", "all"]
Precision = Literal["FP32", "FP16"] | None
Backend = Literal["onnxruntime", "python"]


def _normalization(text: str) -> Any:
    from calib_serve.fuse.onnx import Normalization

    return Normalization.read(text)


Normal = Annotated[
    Any, typer.Option(parser=_normalization, metavar="MEAN,STD", help="As in .485/.456/.406,.229/.224/.225")
]
OutputName = Annotated[Name, typer.Option(help="Which output holds the scores.")]
InputName = Annotated[Name, typer.Option(help="Which input is shifted.")]
Features = Annotated[Name, typer.Option(help="The tensor a new head reads.")]
Inputs = Annotated[Path | None, typer.Option(help="npz of inputs to measure parity on.")]
Samples = Annotated[int, typer.Option(min=1, help="Inputs to generate.")]


Decisions = Annotated[
    bool, typer.Option("--decisions/--no-decisions", help="Return prediction sets and abstention, if any.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse where an output made of the scores is left raw.")
]


@group.command("onnx")
def onnx(
    model: Model,
    artifact: Fitted,
    *,
    out: Out,
    returns: Annotated[Shown, typer.Option(help="The same outputs calibrated, or others.")] = "same",
    outputs: options.Outputs = None,
    fitted_on: FittedOn = None,
    output_name: OutputName = None,
    input_name: InputName = None,
    features: Features = None,
    with_normalization: Normal = None,
    inputs: Inputs = None,
    samples: Samples = 8,
    keep_raw: Annotated[
        bool, typer.Option("--keep-raw", help="Keep the raw scores, as output raw_NAME.")
    ] = False,
    decisions: Decisions = True,
    strict: Strict = False,
    device: Annotated[str, typer.Option(help="Where parity is measured: cpu, cuda, cuda:N.")] = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Fuse into an ONNX graph; says what was folded, what it cost in nodes, and how exact it is."""
    from calib_serve.fuse.onnx import fuse_onnx

    report = fuse_onnx(
        model,
        _load(artifact, fitted_on),
        out,
        returns=returns,
        outputs=outputs,
        output_name=output_name,
        input_name=input_name,
        features=features,
        normalization=with_normalization,
        inputs=inputs,
        samples=samples,
        keep_raw=keep_raw,
        decisions=decisions,
        strict=strict,
        device=device,
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
    outputs: options.Outputs = None,
    fitted_on: FittedOn = None,
    output: Annotated[Name, typer.Option(help="Where the scores lie in what it returns, as logits.")] = None,
    last_linear: Annotated[Name, typer.Option(help="The layer that makes the logits.")] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Multiply logit maps into that layer.")] = False,
    decisions: Decisions = False,
    inputs: Inputs = None,
    input_shape: options.InputShape = None,
    samples: Samples = 8,
    device: Annotated[str, typer.Option(help="Where parity is measured: cpu, or cuda.")] = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Calibrate a torch.export or TorchScript file; says what its scores are, and how exact it is."""
    from calib_serve.fuse.torch import fuse_torch

    report = fuse_torch(
        model,
        _load(artifact, fitted_on),
        out,
        returns=returns,
        outputs=outputs,
        output=output,
        last_linear=last_linear,
        fold=fold,
        decisions=decisions,
        inputs=inputs,
        input_shape=input_shape,
        samples=samples,
        device=device,
        force=force,
    )
    _show(report, out, as_json=as_json)


@group.command("triton")
def triton(
    model: Model,
    artifact: Fitted,
    *,
    out: Annotated[Path, typer.Option("-o", "--out", help="The model repository.")],
    name: Annotated[str, typer.Option(help="The model's name in Triton.")],
    version: Annotated[int, typer.Option(min=1, help="Its version, a number for Triton.")] = 1,
    outputs: options.Outputs = None,
    fitted_on: FittedOn = None,
    output_name: OutputName = None,
    input_name: InputName = None,
    features: Features = None,
    with_normalization: Normal = None,
    inputs: Inputs = None,
    samples: Samples = 8,
    backend: Annotated[Backend, typer.Option(help="Triton's backend that runs the graph.")] = "onnxruntime",
    max_batch: Annotated[int, typer.Option(min=0, help="Largest batch; 0 for models of a fixed one.")] = 32,
    delay: Annotated[int, typer.Option(min=0, help="Microseconds a request waits for others.")] = 500,
    instances: Annotated[int, typer.Option(min=1, help="Copies of the model on each device.")] = 1,
    versions: Annotated[int, typer.Option(min=1, help="How many of the newest are served at once.")] = 1,
    device: Annotated[Literal["gpu", "cpu"], typer.Option(help="Where it runs.")] = "gpu",
    tensorrt: Annotated[Precision, typer.Option(help="Let TensorRT run it, in this precision.")] = None,
    trt_cache: Annotated[Name, typer.Option(help="Where the server keeps engines and timings.")] = None,
    trt_level: Annotated[int | None, typer.Option(min=0, max=5, help="How much its builder tries.")] = None,
    trt_workspace: Annotated[int, typer.Option(min=1, help="Bytes it may use for a while.")] = 1 << 30,
    receipts: Annotated[bool, typer.Option(help="Return receipts and count predictions.")] = True,
    decisions: Decisions = True,
    strict: Strict = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a Triton model repository: the fused graph, its settings, and a step that is watched."""
    from calib_serve.errors import InputError
    from calib_serve.fuse.sessions import TensorRT
    from calib_serve.fuse.triton import Settings, fuse_triton

    engine = None if tensorrt is None else TensorRT(tensorrt, trt_cache, trt_level, trt_workspace)
    if engine is None and (trt_cache is not None or trt_level is not None):
        raise InputError("--trt-cache and --trt-level need --tensorrt")
    settings = Settings(
        max_batch=max_batch,
        delay=delay,
        instances=instances,
        device=device,
        tensorrt=engine,
        receipts=receipts,
        backend=backend,
        versions=versions,
    )
    report = fuse_triton(
        model,
        _load(artifact, fitted_on),
        out,
        name=name,
        version=version,
        settings=settings,
        outputs=outputs,
        output_name=output_name,
        input_name=input_name,
        features=features,
        normalization=with_normalization,
        inputs=inputs,
        samples=samples,
        decisions=decisions,
        strict=strict,
        force=force,
    )
    _show(report, out / name, as_json=as_json)


def _load(folder: Path, fitted_on: Any) -> Artifact:
    """The artifact, which says what it was fitted on where somebody told."""
    from calib_serve.artifact import Artifact

    artifact = Artifact.load(folder)
    known = artifact.model.outputs
    if fitted_on is None or fitted_on == known:
        return artifact
    if known is not None:
        raise InputError(f"{folder} was fitted on {known}; leave out --fitted-on")
    return replace(artifact, model=replace(artifact.model, outputs=fitted_on))


def _show(report: FuseReport | TorchReport, out: Path, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
        return
    table = Table(show_header=False, box=None)
    for row in report.rows():
        table.add_row(*row)
    console = Console(markup=False)
    console.print(table)
    console.print(str(out), style="green", soft_wrap=True)
