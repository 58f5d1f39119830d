"""``calib-serve fuse``: a calibration inside the model, as ONNX, torch or a Triton repository."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from calib_serve.app._command import Flat, Json, OfOutput, Rare, command, pairs, shown_example
from calib_serve.app._show import console, print_json
from calib_serve.errors import InputError
from calib_serve.options.base import fields_of
from calib_serve.options.fuse import OnnxFuse, TorchOptions, TritonFuse

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.fuse.onnx import FuseReport
    from calib_serve.fuse.torch import TorchReport

__all__ = ["app"]

app = command(
    "fuse",
    "calib-serve fuse onnx model.onnx artifact -o calibrated.onnx\n"
    "calib-serve fuse torch model.pt2 artifact -o calibrated.pt2\n"
    "calib-serve fuse triton model.onnx artifact --name digits -o models",
)

Model = Annotated[Path, Parameter(help="The deployed model's file.")]
Fitted = Annotated[Path, Parameter(help="The folder that calib-serve fit wrote.")]


@dataclass(frozen=True, kw_only=True)
class Written(Json):
    """Where the calibrated model goes."""

    out: Annotated[Path, Parameter(name=("-o", "--out"))]
    """Where the calibrated model is written, a file; for Triton the model repository."""


@dataclass(frozen=True, kw_only=True)
class Onnx(OnnxFuse):
    """Options of ``calib-serve fuse onnx``."""

    option: list[str] = field(default_factory=list)
    """KEY=VALUE: input_name, features, normalization=MEAN,STD, decisions=false, fitted_on=KIND."""


@dataclass(frozen=True, kw_only=True)
class Triton(TritonFuse, Rare):
    """Options of ``calib-serve fuse triton``."""

    name: str
    """The model's name in Triton."""


@app.command(help_prologue=shown_example("calib-serve fuse onnx model.onnx artifact -o calibrated.onnx"))
def onnx(
    model: Model,
    artifact: Fitted,
    *,
    options: Annotated[Onnx, Flat] = Onnx(),
    output: Annotated[Written, OfOutput],
) -> None:
    """Fuse into an ONNX graph; says what was folded, what it cost in nodes, and how exact it is."""
    from calib_serve.fuse.onnx import fuse_onnx

    own, rare = fields_of(OnnxFuse, options), _rare(options.option)
    report = fuse_onnx(model, _load(artifact, rare), output.out, **own, **rare)
    _show(report, output.out, output)


@app.command(help_prologue=shown_example("calib-serve fuse torch model.pt2 artifact -o calibrated.pt2"))
def torch(
    model: Model,
    artifact: Fitted,
    *,
    options: Annotated[TorchOptions, Flat] = TorchOptions(),
    output: Annotated[Written, OfOutput],
) -> None:
    """Calibrate a torch.export or TorchScript file; says what its scores are, and how exact it is."""
    from calib_serve.fuse.torch import fuse_torch

    report = fuse_torch(model, _load(artifact, {}), output.out, options)
    _show(report, output.out, output)


@app.command(
    help_prologue=shown_example("calib-serve fuse triton model.onnx artifact --name digits -o models")
)
def triton(
    model: Model,
    artifact: Fitted,
    *,
    options: Annotated[Triton, Flat],
    output: Annotated[Written, OfOutput],
) -> None:
    """Write a Triton model repository: the fused graph, its settings, and a step that is watched.

    --option takes those of fuse onnx, and max_batch, delay (microseconds),
    instances, versions, device=cpu, receipts=false, trt_cache, trt_level and
    trt_workspace.
    """
    from calib_serve.fuse.triton import fuse_triton

    own, rare = fields_of(TritonFuse, options), _rare(options.option)
    fitted = _load(artifact, rare)
    report = fuse_triton(model, fitted, output.out, name=options.name, **own, **rare)
    _show(report, output.out / options.name, output)


def _rare(given: list[str]) -> dict[str, Any]:
    """The values of --option; a mean and std as their own class reads them."""
    found = pairs(given, "--option")
    if isinstance(known := found.get("normalization"), list):
        found["normalization"] = ",".join(map(str, known))
    return found


def _load(folder: Path, rare: dict[str, Any]) -> "Artifact":
    """The artifact; takes ``fitted_on`` out of the options, which says what it was fitted on."""
    from dataclasses import replace

    from calib_serve.artifact import Artifact

    artifact, fitted_on = Artifact.load(folder), rare.pop("fitted_on", None)
    known = artifact.model.outputs
    if fitted_on is None or fitted_on == known:
        return artifact
    if known is not None:
        raise InputError(f"{folder} was fitted on {known}; leave out --option fitted_on={fitted_on}")
    return replace(artifact, model=replace(artifact.model, outputs=fitted_on))


def _show(report: "FuseReport | TorchReport", out: Path, output: Written) -> None:
    from rich.table import Table

    if output.json:
        print_json(report.as_dict(), indent=2)
        return
    table = Table(show_header=False, box=None)
    for row in report.rows():
        table.add_row(*row)
    shown = console()
    shown.print(table)
    shown.print(str(out), style="green")
