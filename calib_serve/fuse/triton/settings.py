"""How Triton runs a model: batches, instances, device, TensorRT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from calib_serve.errors import InputError
from calib_serve.fuse.sessions import TensorRT

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """How Triton runs the model.

    ``max_batch`` is left out where the graph's batch is fixed; ``delay`` in microseconds; ``instances`` per
    device; ``tensorrt`` lets TensorRT run the graph. ``backend`` is Triton's own for onnxruntime, or its
    Python backend, in whose Python onnxruntime and this package are installed. ``versions``: how many of the
    newest are served at once.
    """

    max_batch: int = 32
    delay: int = 500
    instances: int = 1
    device: Literal["gpu", "cpu"] = "gpu"
    tensorrt: TensorRT | None = None
    receipts: bool = True
    backend: Literal["onnxruntime", "python"] = "onnxruntime"
    versions: int = 1

    def __post_init__(self) -> None:
        if self.max_batch < 0 or self.delay < 0 or self.instances < 1 or self.versions < 1:
            raise InputError(
                f"max_batch and delay must not be negative, instances and versions at least 1: {self}"
            )
        if self.backend not in ("onnxruntime", "python") or self.device not in ("gpu", "cpu"):
            raise InputError(f"backend is onnxruntime or python, device is gpu or cpu: {self}")
        if self.tensorrt is not None and self.device == "cpu":
            raise InputError("TensorRT needs a GPU; use --device gpu (device=) or leave --tensorrt out")
        if self.versions > 1 and self.ensemble:
            raise InputError(
                "the versions of an ensemble share its steps, so that one alone is served at a time; use "
                "--backend python (backend=), or --no-receipts (receipts=), for more --versions (versions=)"
            )

    @property
    def ensemble(self) -> bool:
        """Whether receipts take a step of their own, behind the graph."""
        return self.receipts and self.backend == "onnxruntime"
