"""A batch that is fixed at 1, made free where that is proved, so that Triton can make batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from calib_serve.errors import FuseError, ModelError
from calib_serve.fuse.onnx.parity import generate, run_raw

__all__ = ["free_batch"]

_NEAR = 1e-5


def free_batch(path: Path, wish: int) -> list[str]:
    """Make a fixed batch of 1 free in the file, where rows together give what each gives alone; say so.

    ``wish`` is the largest batch that is asked for. Where the batch stays fixed, the sentence is a warning:
    Triton then makes no batches.
    """
    model = onnx.load(path, load_external_data=False)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in constants]
    fixed = {v.name: size for v in inputs if (size := _first(v))}
    if wish == 0 or not fixed:
        return []
    why = "it is not 1 for every input"
    if len(fixed) == len(inputs) and set(fixed.values()) == {1}:
        why = _freed(model, path)
        if not why:
            return ["the batch, fixed at 1, made free: three rows together give what each gives alone"]
    axes = ", ".join(f"{name!r}: {{0: 'batch'}}" for name in fixed)
    sizes = ", ".join(map(str, sorted(set(fixed.values()))))
    return [
        f"warning: the graph's batch is fixed at {sizes}, and stays so: {why}; Triton gets max_batch_size 0, "
        f"and --max-batch {wish} (max_batch=) has no effect; export the model with a free batch, in torch: "
        f"dynamic_axes={{{axes}}}"
    ]


def _first(value: onnx.ValueInfoProto) -> int:
    """The first size of a tensor, 0 where it is free or not known."""
    dims = value.type.tensor_type.shape.dim
    return int(dims[0].dim_value) if len(dims) else 0


def _freed(model: onnx.ModelProto, path: Path) -> str:
    """Put the graph with a free batch in the place of the file, if it is right; else return why not."""
    trial = path.with_suffix(".free.onnx")
    names = [v.name for v in model.graph.output]
    for value in (*model.graph.input, *model.graph.output):
        if _first(value) == 1:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del model.graph.value_info[:]
    try:
        onnx.save(model, trial)
        rows = generate(ir.from_proto(model).graph, samples=3)
        alone = [run_raw(path, {k: v[i : i + 1] for k, v in rows.items()}, names) for i in range(3)]
        wrong = _apart(run_raw(trial, rows, names), alone, names)
        if not wrong:
            onnx.checker.check_model(str(trial), full_check=True)
            trial.replace(path)
    except (
        FuseError,
        ModelError,
        onnx.checker.ValidationError,
        onnx.shape_inference.InferenceError,
    ) as error:
        return f"the graph does not run on three rows ({' '.join(str(error).split())[:120]})"
    finally:
        trial.unlink(missing_ok=True)
    return wrong


def _apart(together: list[Any], alone: list[list[Any]], names: list[str]) -> str:
    """Which output differs between rows run together and each run alone, "" for none."""
    for name, one, parts in zip(names, together, zip(*alone, strict=True), strict=True):
        whole: NDArray[Any] = np.concatenate([np.asarray(part) for part in parts])
        same = np.asarray(one).shape == whole.shape
        if not same or not np.allclose(np.asarray(one, np.float64), whole.astype(np.float64), _NEAR, _NEAR):
            return f"with three rows {name!r} is not what each row gives alone"
    return ""
