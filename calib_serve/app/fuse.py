"""``calib-serve fuse``: a calibration inside the model, as ONNX, torch or a Triton repository."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from calib_serve.app._command import Flat, OfOutput, command, shown_example
from calib_serve.app._show import console
from calib_serve.core.options.base import fields_of
from calib_serve.core.options.fuse import OnnxOptions, TorchOptions, TritonOptions

if TYPE_CHECKING:
    from calib_serve.fuse import FuseReport, TorchReport

app = command(
    "fuse",
    "calib-serve fuse onnx model.onnx artifact -o calibrated.onnx\n"
    "calib-serve fuse torch model.pt2 artifact -o calibrated.pt2\n"
    "calib-serve fuse triton model.onnx artifact --name digits -o models",
)

Model = Annotated[Path, Parameter(help="The deployed model's file.")]
Fitted = Annotated[Path, Parameter(help="The folder that calib-serve fit wrote.")]


@dataclass(frozen=True, kw_only=True)
class _Written:
    """Options of the output: the calibrated model's place."""

    out: Annotated[Path, Parameter(name=("-o", "--out"))]
    """Where the calibrated model is written, a file; for Triton the model repository."""


@dataclass(frozen=True, kw_only=True)
class _Triton(TritonOptions):
    """Options of ``calib-serve fuse triton``."""

    name: str
    """The model's name in Triton."""


@app.command(help_prologue=shown_example("calib-serve fuse onnx model.onnx artifact -o calibrated.onnx"))
def _onnx(
    model: Model,
    artifact: Fitted,
    *,
    options: Annotated[OnnxOptions, Flat] = OnnxOptions(),
    output: Annotated[_Written, OfOutput],
) -> None:
    """Fuse into an ONNX graph; says what was folded, what it cost in nodes, and how exact it is."""
    from calib_serve.artifact import Artifact
    from calib_serve.fuse import fuse_onnx

    report = fuse_onnx(model, Artifact.load(artifact), output.out, options)
    _show(report, output.out)


@app.command(help_prologue=shown_example("calib-serve fuse torch model.pt2 artifact -o calibrated.pt2"))
def _torch(
    model: Model,
    artifact: Fitted,
    *,
    options: Annotated[TorchOptions, Flat] = TorchOptions(),
    output: Annotated[_Written, OfOutput],
) -> None:
    """Calibrate a torch.export or TorchScript file; says what its scores are, and how exact it is."""
    from calib_serve.artifact import Artifact
    from calib_serve.fuse import fuse_torch

    report = fuse_torch(model, Artifact.load(artifact), output.out, options)
    _show(report, output.out)


@app.command(
    help_prologue=shown_example("calib-serve fuse triton model.onnx artifact --name digits -o models")
)
def _triton(
    model: Model,
    artifact: Fitted,
    *,
    options: Annotated[_Triton, Flat],
    output: Annotated[_Written, OfOutput],
) -> None:
    """Write a Triton model repository: the fused graph, its settings, and a step that is watched."""
    from calib_serve.artifact import Artifact
    from calib_serve.fuse import fuse_triton

    own = TritonOptions(**fields_of(TritonOptions, options))
    report = fuse_triton(model, Artifact.load(artifact), output.out, own, name=options.name)
    _show(report, output.out / options.name)


def _show(report: "FuseReport | TorchReport", out: Path) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for row in report.rows():
        table.add_row(*row)
    shown = console()
    shown.print(table)
    shown.print(str(out), style="green")
