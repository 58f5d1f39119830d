"""A Triton model repository from a model and its artifact: fused, configured, warmed up and monitored.

Clients call the ensemble ``NAME``: ``NAME_onnx`` is the fused graph on the onnxruntime backend,
``NAME_receipts`` signs a receipt for every prediction and counts it on Triton's metrics port.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError, InputError
from calib_serve.fuse.onnx.files import write_text
from calib_serve.fuse.onnx.graph import FuseReport, fuse_onnx
from calib_serve.fuse.triton.config import Block, Word, text

__all__ = ["Settings", "fuse_triton"]

_TYPES = {
    ir.DataType.FLOAT: "TYPE_FP32",
    ir.DataType.FLOAT16: "TYPE_FP16",
    ir.DataType.BFLOAT16: "TYPE_BF16",
    ir.DataType.DOUBLE: "TYPE_FP64",
    ir.DataType.BOOL: "TYPE_BOOL",
    ir.DataType.UINT8: "TYPE_UINT8",
    ir.DataType.INT8: "TYPE_INT8",
    ir.DataType.INT32: "TYPE_INT32",
    ir.DataType.INT64: "TYPE_INT64",
}
_WATCHED = ("confidence", "predicted", "bin")

BACKEND = '''"""Signs and counts the predictions of the model beside it."""

from calib_serve.serve.triton import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


@dataclass(frozen=True)
class Settings:
    """How Triton runs the model.

    ``max_batch`` 0 where the graph's batch is fixed; ``delay`` in microseconds; ``instances`` per
    device; ``tensorrt`` names the precision TensorRT runs in, None for plain onnxruntime.
    """

    max_batch: int = 32
    delay: int = 500
    instances: int = 1
    device: Literal["gpu", "cpu"] = "gpu"
    tensorrt: Literal["FP32", "FP16"] | None = None
    receipts: bool = True

    def __post_init__(self) -> None:
        if self.max_batch < 0 or self.delay < 0 or self.instances < 1:
            raise InputError(f"max_batch and delay must not be negative, instances at least 1: {self}")
        if self.tensorrt is not None and self.device == "cpu":
            raise InputError("TensorRT needs a GPU; use device='gpu' or leave tensorrt out")


@dataclass(frozen=True)
class _Tensor:
    name: str
    kind: str
    dims: tuple[int, ...]  # -1 where free; the batch first


def fuse_triton(
    model: str | Path,
    artifact: Artifact,
    repository: str | Path,
    *,
    name: str,
    version: int = 1,
    settings: Settings | None = None,
    force: bool = False,
) -> FuseReport:
    """Fuse ``model`` and put it under ``repository`` as version ``version`` of ``name``.

    Other versions that are there stay. Raises what ``fuse_onnx`` raises, InputError for an invalid name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name) or version < 1:
        raise InputError(
            f"a name is letters, digits, _ . and -, a version 1 or more; got {name!r}, {version}"
        )
    settings = settings or Settings()
    root = Path(repository)
    inner = f"{name}_onnx" if settings.receipts else name
    folder = root / inner / str(version)
    if folder.exists():
        raise FuseError(f"{folder} exists; a served version must not change: choose another --version")
    report = fuse_onnx(model, artifact, folder / "model.onnx", returns="all", force=force)
    try:
        _configure(root, name, inner, version=version, artifact=artifact, settings=settings)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return report


def _configure(
    root: Path, name: str, inner: str, *, version: int, artifact: Artifact, settings: Settings
) -> None:
    inputs, outputs = _signature(root / inner / str(version) / "model.onnx")
    if settings.receipts and any(t.kind == "TYPE_BF16" for t in outputs):
        raise FuseError(
            "Triton's Python backend has no bfloat16 to sign; use receipts=False or export float16"
        )
    fixed = any(t.dims[0] != -1 for t in inputs)
    batch = 0 if fixed else settings.max_batch
    labels = artifact.class_names or tuple(map(str, range(artifact.classes)))
    write_text(root / inner / "labels.txt", "".join(f"{_line(label)}\n" for label in labels))
    write_text(root / inner / "config.pbtxt", text(_graph(inner, inputs, outputs, batch, settings)))
    if not settings.receipts:
        return
    bins = 15 if artifact.reference is None else len(artifact.reference)
    step = f"{name}_receipts"
    write_text(root / step / str(version) / "model.py", BACKEND)
    write_text(root / step / "config.pbtxt", text(_receipts(step, name, outputs, batch, bins)))
    (root / name / str(version)).mkdir(parents=True, exist_ok=True)
    write_text(root / name / "config.pbtxt", text(_ensemble(name, inner, step, inputs, outputs, batch=batch)))


def _signature(path: Path) -> tuple[list[_Tensor], list[_Tensor]]:
    graph = ir.load(path).graph
    inputs = [_tensor(v) for v in graph.inputs if not v.is_initializer()]
    return inputs, [_tensor(v) for v in graph.outputs]


def _tensor(value: ir.Value) -> _Tensor:
    if value.dtype not in _TYPES or value.shape is None or not len(value.shape):
        raise FuseError(f"Triton has no type for {value.name!r}: {value.dtype} {value.shape}")
    dims = tuple(d if isinstance(d, int) else -1 for d in value.shape)
    return _Tensor(str(value.name), _TYPES[value.dtype], dims)


def _line(label: str) -> str:
    return " ".join(label.split())


def _declared(tensor: _Tensor, batch: int, **more: object) -> Block:
    """A tensor as Triton wants it: no batch in dims where Triton batches; one number per sample is [1]."""
    dims = tensor.dims[1:] if batch else tensor.dims
    block: Block = {"name": tensor.name, "data_type": Word(tensor.kind), "dims": list(dims) or [1]}
    if not dims:
        block["reshape"] = {"shape": []}
    return {**block, **more}


def _as_shown(tensor: _Tensor, batch: int) -> Block:
    """A tensor as it looks outside of the graph: there one number per sample is (n, 1) already."""
    block = _declared(tensor, batch)
    block.pop("reshape", None)
    return block


def _graph(
    name: str, inputs: Sequence[_Tensor], outputs: Sequence[_Tensor], batch: int, settings: Settings
) -> Block:
    config: Block = {
        "name": name,
        "backend": "onnxruntime",
        "max_batch_size": batch,
        "input": [_declared(t, batch) for t in inputs],
        "output": [
            _declared(t, batch, **({"label_filename": "labels.txt"} if t.name == "probabilities" else {}))
            for t in outputs
        ],
        "instance_group": [{"count": settings.instances, "kind": Word(f"KIND_{settings.device.upper()}")}],
    }
    if batch:
        config["dynamic_batching"] = {"max_queue_delay_microseconds": settings.delay}
    sizes = sorted({1, batch}) if batch else [0]
    config["model_warmup"] = [_warmup(inputs, size) for size in sizes]
    if settings.tensorrt:
        parameters = [
            {"key": "precision_mode", "value": settings.tensorrt},
            {"key": "max_workspace_size_bytes", "value": str(1 << 30)},
        ]
        accelerator = {"name": "tensorrt", "parameters": parameters}
        config["optimization"] = {"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}}
    return config


def _warmup(inputs: Sequence[_Tensor], size: int) -> Block:
    """Zeros of the common batch sizes, so that the first request does not wait for memory and kernels."""
    tensors: list[Block] = []
    for t in inputs:
        dims = [8 if d == -1 else d for d in (t.dims[1:] if size else t.dims)]
        tensors.append({"key": t.name, "value": {"data_type": Word(t.kind), "dims": dims, "zero_data": True}})
    return {"name": f"batch of {size or 'fixed size'}", "batch_size": size, "inputs": tensors}


def _receipts(name: str, served: str, outputs: Sequence[_Tensor], batch: int, bins: int) -> Block:
    by_name = {t.name: t for t in outputs}
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": batch,
        "input": [_as_shown(by_name[n], batch) for n in _WATCHED],
        "output": [_receipt(by_name["predicted"], batch)],
        "parameters": [
            {"key": "model", "value": {"string_value": served}},
            {"key": "bins", "value": {"string_value": str(bins)}},
        ],
        "instance_group": [{"count": 1, "kind": Word("KIND_CPU")}],
    }


def _receipt(predicted: _Tensor, batch: int) -> Block:
    return _as_shown(_Tensor("receipt", "TYPE_STRING", predicted.dims), batch)


def _ensemble(
    name: str, inner: str, step: str, inputs: Sequence[_Tensor], outputs: Sequence[_Tensor], *, batch: int
) -> Block:
    by_name = {t.name: t for t in outputs}
    return {
        "name": name,
        "platform": "ensemble",
        "max_batch_size": batch,
        "input": [_declared(t, batch) for t in inputs],
        "output": [*(_as_shown(t, batch) for t in outputs), _receipt(by_name["predicted"], batch)],
        "ensemble_scheduling": {
            "step": [
                _step(inner, [t.name for t in inputs], [t.name for t in outputs]),
                _step(step, list(_WATCHED), ["receipt"]),
            ]
        },
    }


def _step(model: str, inputs: Sequence[str], outputs: Sequence[str]) -> Block:
    return {
        "model_name": model,
        "model_version": -1,
        "input_map": [{"key": n, "value": n} for n in inputs],
        "output_map": [{"key": n, "value": n} for n in outputs],
    }
