"""Options of fusing a calibration into a model: an ONNX graph, a torch model, a Triton repository."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from calib_serve.core.options.base import CustomOps, LastLayer, check
from calib_serve.core.options.data import ModelScores, ProofOptions

Shown = Literal["same", "probabilities", "all"]
Made = Literal["probabilities", "logits", "all"]
Backend = Literal["onnxruntime", "python"]
Processor = Literal["gpu", "cpu"]
Runtime = Literal["cuda", "openvino", "tract", "onnx.reference"]


@dataclass(frozen=True, kw_only=True)
class FuseOptions(ModelScores, ProofOptions):
    """Options of every fusion into a file."""

    inputs: Any = None
    """An npz of inputs by name, to compare the scores and measure parity on; by default some are made for
    the latter."""


@dataclass(frozen=True, kw_only=True)
class GraphOptions(FuseOptions):
    """Options of a fusion into an ONNX graph."""

    output_name: str | None = None
    """The output that holds the scores, where several may; or a tensor inside."""
    decisions: bool = True
    """Return prediction sets, abstention and acts as outputs of the graph, where the artifact has them."""


@dataclass(frozen=True, kw_only=True)
class OnnxOptions(GraphOptions, CustomOps):
    """Options of ``fuse_onnx``."""

    returns: Shown = "same"
    """The same outputs calibrated, or probabilities in place of the scores, or all results."""
    runtime: tuple[str, ...] = ()
    """Runtimes beside onnxruntime on the CPU to prove the graph in: cuda, openvino, tract, onnx.reference."""

    def _check(self) -> None:
        _one_of("returns", self.returns, Shown)
        for name in self.runtime:
            _one_of("runtime", name, Runtime)


@dataclass(frozen=True, kw_only=True)
class ModuleOptions(ModelScores, LastLayer):
    """Options of ``calibrated``."""

    returns: Made = "probabilities"
    """What the calibrated model returns; all is a mapping by name, with what the artifact decides."""
    output: str | None = None
    """Where the scores lie in what the model returns, as in logits or 0."""

    def _check(self) -> None:
        _one_of("returns", self.returns, Made)


@dataclass(frozen=True, kw_only=True)
class TorchOptions(ModuleOptions, FuseOptions):
    """Options of ``fuse_torch``."""


@dataclass(frozen=True, kw_only=True)
class TritonOptions(GraphOptions):
    """Options of ``fuse_triton``."""

    version: int = 1
    """The model's version, a number for Triton."""
    backend: Backend = "onnxruntime"
    """Triton's backend that runs the graph: its own for onnxruntime, or python."""
    max_batch: int = 32
    """The largest batch; left out where the graph's batch is fixed."""
    device: Processor = "gpu"
    """Where Triton runs the graph: gpu or cpu."""
    receipts: bool = True
    """Return receipts and count predictions."""

    def _check(self) -> None:
        check(self.version >= 1, "version", f"must be 1 or more, got {self.version}")
        _one_of("backend", self.backend, Backend)
        check(self.max_batch >= 0, "max_batch", f"must be 0 or more, got {self.max_batch}")
        _one_of("device", self.device, Processor)

    @property
    def ensemble(self) -> bool:
        """Whether receipts take a step of their own, behind the graph."""
        return self.receipts and self.backend == "onnxruntime"


def _one_of(option: str, value: object, allowed: Any) -> None:
    names = get_args(allowed)
    check(value in names, option, f"must be one of {', '.join(names)}, got {value!r}")
