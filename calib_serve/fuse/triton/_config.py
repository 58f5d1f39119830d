"""config.pbtxt of a Triton repository's models: the graph, the step that signs, the ensemble."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from calib_serve.core.errors import FuseError
from calib_serve.core.options.fuse import TritonOptions
from calib_serve.fuse.triton._pbtxt import Block, Word
from calib_serve.fuse.triton.step import VERSION

LABELS = "labels.txt"

_TYPES = {
    ir.DataType.FLOAT: "TYPE_FP32",
    ir.DataType.FLOAT16: "TYPE_FP16",
    ir.DataType.BFLOAT16: "TYPE_BF16",
    ir.DataType.DOUBLE: "TYPE_FP64",
    ir.DataType.BOOL: "TYPE_BOOL",
    ir.DataType.STRING: "TYPE_STRING",
    **{ir.DataType[f"UINT{bits}"]: f"TYPE_UINT{bits}" for bits in (8, 16, 32, 64)},
    **{ir.DataType[f"INT{bits}"]: f"TYPE_INT{bits}" for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class GraphTensor:
    """An input or output of a graph."""

    name: str
    kind: str
    dims: tuple[int, ...]  # -1 where free; the batch first

    def declared(self, batch: int, *, labels: str | None = None) -> Block:
        """Declare the tensor for Triton, which adds the batch; one number per sample is [1]."""
        block = self.shown(batch, labels=labels)
        return block if self.rest(batch) else {**block, "reshape": {"shape": []}}

    def shown(self, batch: int, *, labels: str | None = None) -> Block:
        """Declare the tensor as clients see it: one number per sample is (n, 1).

        ``labels``: the file that names the classes, one a line.
        """
        dims = list(self.rest(batch)) or [1]
        named: Block = {} if labels is None else {"label_filename": labels}
        return {"name": self.name, "data_type": Word(self.kind), "dims": dims, **named}

    def rest(self, batch: int) -> tuple[int, ...]:
        """The dimensions behind the batch."""
        return self.dims[1:] if batch else self.dims


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a fused graph, and the largest batch for Triton; 0 for no batches.

    Steps in Python show one of ``actions`` by its name, where the graph has its id.
    """

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    batch: int
    actions: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path, settings: TritonOptions, actions: tuple[str, ...] = ()) -> Signature:
        """Read the signature of a graph's file; FuseError for types that Triton has not."""
        graph = ir.load(path).graph
        inputs = tuple(_tensor(v) for v in graph.inputs if not v.is_initializer())
        outputs = tuple(_tensor(v) for v in graph.outputs)
        python = settings.receipts or settings.backend == "python"
        if python and any(t.kind == "TYPE_BF16" for t in (*inputs, *outputs)):
            raise FuseError(
                "Triton's Python backend has no bfloat16; use --no-receipts with --backend "
                "onnxruntime, or export float16"
            )
        if settings.receipts and any(t.name == "receipt" for t in outputs):
            raise FuseError("the model has an output 'receipt' of its own; rename it or use --no-receipts")
        # Triton batches all tensors of a model or none.
        fixed = any(t.dims[0] != -1 for t in (*inputs, *outputs))
        return cls(inputs, outputs, 0 if fixed else settings.max_batch, actions)

    @property
    def predicted(self) -> GraphTensor:
        """The output of the predicted class."""
        return next(t for t in self.outputs if t.name == "predicted")

    @property
    def receipt(self) -> GraphTensor:
        """The output of one receipt per prediction."""
        return GraphTensor("receipt", "TYPE_STRING", self.predicted.dims)

    @property
    def named(self) -> tuple[GraphTensor, ...]:
        """The outputs behind a step in Python."""
        texts = {"decision"} if self.actions else set[str]()
        return tuple(replace(t, kind="TYPE_STRING") if t.name in texts else t for t in self.outputs)


def _tensor(value: ir.Value) -> GraphTensor:
    if value.dtype not in _TYPES or value.shape is None or not len(value.shape):
        raise FuseError(f"Triton has no type for {value.name!r}: {value.dtype} {value.shape}")
    dims = tuple(d if isinstance(d, int) else -1 for d in value.shape)
    return GraphTensor(str(value.name), _TYPES[value.dtype], dims)


def graph(name: str, found: Signature, settings: TritonOptions, *, more: Sequence[GraphTensor] = ()) -> Block:
    """Configure the fused graph on Triton's onnxruntime backend, with ``more`` outputs for later steps."""
    config: Block = {
        "name": name,
        "backend": "onnxruntime",
        "max_batch_size": found.batch,
        "input": [t.declared(found.batch) for t in found.inputs],
        "output": [*_outputs(found.outputs, found.batch), *(t.declared(found.batch) for t in more)],
        **_running(found.batch, settings),
    }
    if warmup := _warmup(found):
        config["model_warmup"] = warmup
    return config


def python(name: str, found: Signature, settings: TritonOptions, *, bins: int, multilabel: bool) -> Block:
    """Configure the fused graph on onnxruntime in Triton's Python backend, which signs and counts as well."""
    return {
        "name": name,
        "backend": "python",
        "max_batch_size": found.batch,
        "input": [t.declared(found.batch) for t in found.inputs],
        "output": [
            *_outputs(found.named, found.batch),
            *([found.receipt.declared(found.batch)] if settings.receipts else []),
        ],
        "parameters": _parameters(name, found, bins if settings.receipts else None, multilabel=multilabel),
        **_running(found.batch, settings),
    }


def _outputs(shown: Sequence[GraphTensor], batch: int) -> list[Block]:
    return [t.declared(batch, labels=_labels_of(t)) for t in shown]


def _labels_of(output: GraphTensor) -> str | None:
    return LABELS if output.name == "probabilities" else None


def _running(batch: int, settings: TritonOptions) -> Block:
    group = {"count": 1, "kind": Word(f"KIND_{settings.device.upper()}")}
    config: Block = {"instance_group": [group]}
    if batch:
        config["dynamic_batching"] = {"max_queue_delay_microseconds": 500}
    return config


def _warmup(found: Signature) -> list[Block]:
    """Warm up on zeros of the common batch sizes: the first request then waits for no memory or kernels.

    None where a shape is free: a guess might be one that the model cannot take, and stop the server.
    """
    if any(-1 in t.rest(found.batch) or t.kind == "TYPE_STRING" for t in found.inputs):
        return []
    tensors: list[Block] = [
        {
            "key": t.name,
            "value": {"data_type": Word(t.kind), "dims": list(t.rest(found.batch)) or [1], "zero_data": True},
        }
        for t in found.inputs
    ]
    # One alone, and the most at once: engines and memory are made for these.
    sizes = sorted({1, found.batch}) if found.batch else [0]
    return [{"name": f"batch of {n or 'fixed size'}", "batch_size": n, "inputs": tensors} for n in sizes]


def receipts(name: str, served: str, found: Signature, *, bins: int, multilabel: bool) -> Block:
    """Configure the step that signs and counts.

    All outputs go through it, so that it runs whichever of them a client asks for.
    """
    version = GraphTensor(VERSION, "TYPE_INT64", found.predicted.dims)
    config: Block = {
        "name": name,
        "backend": "python",
        "max_batch_size": found.batch,
        "input": [t.shown(found.batch) for t in (*found.outputs, version)],
        "output": [t.shown(found.batch) for t in (*found.named, found.receipt)],
        "parameters": _parameters(served, found, bins, multilabel=multilabel),
        "instance_group": [{"count": 1, "kind": Word("KIND_CPU")}],
    }
    if found.batch:
        config["dynamic_batching"] = {}  # the requests that wait come in one call
    return config


def _parameters(model: str, found: Signature, bins: int | None, *, multilabel: bool) -> list[Block]:
    """Tell a step in Python what it counts, where it does, and the names of actions."""
    told = {"model": model} | ({} if bins is None else {"bins": str(bins)})
    told |= {"multilabel": "true"} if multilabel else {}
    told |= {"actions": json.dumps(found.actions)} if found.actions else {}
    return [{"key": key, "value": {"string_value": value}} for key, value in told.items()]


def ensemble(name: str, inner: str, step: str, found: Signature) -> Block:
    """Configure what clients call: the graph, and the step behind it."""
    inputs, outputs = ([t.name for t in tensors] for tensors in (found.inputs, found.outputs))
    shown = (*found.named, found.receipt)
    # Triton waits for ever for an output of the ensemble that a later step reads too: what goes from step to
    # step has names of its own.
    private = {n: n if n == VERSION else f"calib_serve.{n}" for n in (*outputs, VERSION)}
    return {
        "name": name,
        "platform": "ensemble",
        "max_batch_size": found.batch,
        "input": [t.shown(found.batch) for t in found.inputs],
        "output": [t.shown(found.batch, labels=_labels_of(t)) for t in shown],
        "ensemble_scheduling": {
            "step": [
                _step(inner, {n: n for n in inputs}, private),
                _step(step, private, {t.name: t.name for t in shown}),
            ]
        },
    }


def _step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> Block:
    return {
        "model_name": model,
        "model_version": -1,
        "input_map": _pairs(inputs),
        "output_map": _pairs(outputs),
    }


def _pairs(values: Mapping[str, str]) -> list[Block]:
    return [{"key": key, "value": value} for key, value in values.items()]
