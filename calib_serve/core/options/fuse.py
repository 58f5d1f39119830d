"""Options of fusing a calibration into a model: an ONNX graph, a torch model, a Triton repository."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from calib_serve.core.options.base import (
    PYTHON,
    Checked,
    CustomOps,
    LastLayer,
    check,
    check_default,
)
from calib_serve.core.options.data import ModelScores, ProofOptions

Shown = Literal["same", "probabilities", "all"]
Made = Literal["probabilities", "logits", "all"]
Backend = Literal["onnxruntime", "python"]
Processor = Literal["gpu", "cpu"]
Runtime = Literal["openvino", "tract", "onnx.reference"]


@dataclass(frozen=True, kw_only=True)
class FuseOptions(ModelScores, ProofOptions):
    """Options of every fusion into a file."""

    inputs: Any = None
    """An npz of inputs by name, to compare the scores and measure parity on; by default some are made for
    the latter."""
    samples: Annotated[int, PYTHON] = 8
    """How many inputs to make, where neither inputs nor fitted scores nor a .pt2 gives any."""

    def _check(self) -> None:
        check(self.samples >= 1, "samples", f"must be 1 or more, got {self.samples}")


@dataclass(frozen=True, kw_only=True)
class OnDevice(Checked):
    """Options of the comparison of a fused model with its calibration."""

    device: str = "cpu"
    """Where parity is measured: cpu, cuda, or cuda:1."""


@dataclass(frozen=True, kw_only=True)
class GraphOptions(FuseOptions):
    """Options of a fusion into an ONNX graph."""

    output_name: str | None = None
    """The output that holds the scores, where several may; or a tensor inside."""
    strict: bool = False
    """Refuse a graph where an output computed from the scores would be left raw."""
    input_name: Annotated[str | None, PYTHON] = None
    """The input that is shifted, where several may be."""
    features: Annotated[str | None, PYTHON] = None
    """The tensor that a new head reads."""
    decisions: bool = True
    """Return prediction sets, abstention and acts as outputs of the graph, where the artifact has them."""


@dataclass(frozen=True, kw_only=True)
class OnnxOptions(GraphOptions, OnDevice, CustomOps):
    """Options of ``fuse_onnx``."""

    returns: Shown = "same"
    """The same outputs calibrated, or probabilities in place of the scores, or all results."""
    keep_raw: bool = False
    """Keep the raw scores, as the output raw_NAME."""
    runtime: tuple[str, ...] = ()
    """Runtimes beside onnxruntime to prove the graph in: openvino, tract, onnx.reference."""

    def _check(self) -> None:
        _one_of("returns", self.returns, Shown)
        for name in self.runtime:
            _one_of("runtime", name, Runtime)


@dataclass(frozen=True, kw_only=True)
class ModuleOptions(ModelScores, LastLayer):
    """Options of ``calibrated``."""

    returns: Made = "probabilities"
    """What the calibrated model returns."""
    output: str | None = None
    """Where the scores lie in what the model returns, as in logits or 0."""
    fold: Annotated[bool, PYTHON] = False
    """Multiply logit maps into the last linear layer."""
    decisions: bool = False
    """Return prediction sets, abstention and acts, where the artifact has them."""

    def _check(self) -> None:
        _one_of("returns", self.returns, Made)


@dataclass(frozen=True, kw_only=True)
class TorchOptions(ModuleOptions, FuseOptions, OnDevice):
    """Options of ``fuse_torch``."""

    input_shape: tuple[int, ...] | None = None
    """One input's shape, such as 3,224,224, where neither the file nor the artifact says it."""

    def _check(self) -> None:
        made = self.inputs is None or self.input_shape is None
        check(made, "input_shape", "is of inputs that are made, and inputs are given")


@dataclass(frozen=True, kw_only=True)
class TritonOptions(GraphOptions):
    """Options of ``fuse_triton``."""

    version: int = 1
    """The model's version, a number for Triton."""
    backend: Backend = "onnxruntime"
    """Triton's backend that runs the graph: its own for onnxruntime, or python."""
    tensorrt: Literal["FP32", "FP16"] | None = None
    """Let TensorRT run the graph, in this precision."""
    max_batch: int = 32
    """The largest batch; left out where the graph's batch is fixed."""
    versions: int = 1
    """How many of the newest versions are served at once."""
    device: Processor = "gpu"
    """Where Triton runs the graph: gpu or cpu."""
    receipts: bool = True
    """Return receipts and count predictions."""
    trt_cache: str | None = None
    """A folder on the server that may be written, where TensorRT keeps engines and timings."""

    def _check(self) -> None:
        check(self.version >= 1, "version", f"must be 1 or more, got {self.version}")
        _one_of("backend", self.backend, Backend)
        check(self.tensorrt in (None, "FP32", "FP16"), "tensorrt", f"is FP32 or FP16, got {self.tensorrt!r}")
        for name, least in (("max_batch", 0), ("versions", 1)):
            value = getattr(self, name)
            check(value >= least, name, f"must be {least} or more, got {value}")
        _one_of("device", self.device, Processor)
        check(
            self.tensorrt is None or self.device == "gpu",
            "tensorrt",
            "needs a GPU, and the device is the cpu",
        )
        if self.tensorrt is None:
            check_default(self, ("trt_cache",), "is an option of tensorrt")
        check(
            self.versions == 1 or not self.ensemble,
            "versions",
            "of an ensemble share its steps, so that one alone is served at a time; take the backend python, "
            "or receipts=false, for more",
        )

    @property
    def ensemble(self) -> bool:
        """Whether receipts take a step of their own, behind the graph."""
        return self.receipts and self.backend == "onnxruntime"


def _one_of(option: str, value: object, allowed: Any) -> None:
    names = get_args(allowed)
    check(value in names, option, f"must be one of {', '.join(names)}, got {value!r}")
