"""Batches for Triton: a batch that is fixed at 1 becomes free, where that is proved to be right.

The proof has two parts. By the sizes that onnx infers, every node that reads the batch gives it once: a sum
over rows, or a fixed shape, loses it. And rows that are run together must give what each gives alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import numpy_helper

from calib_serve.core.errors import FuseError, ModelError
from calib_serve.fuse.onnx._parity import generate, run_raw
from calib_serve.fuse.onnx._repairs import inferred_shapes, without_output_shapes
from calib_serve.fuse.onnx._runtimes import one_line

Inputs = Mapping[str, NDArray[Any]]

_BATCH = "batch"

_AXES = {
    "Concat": 0, "GatherElements": 0, "Hardmax": -1, "LayerNormalization": -1, "LogSoftmax": -1,
    "LpNormalization": -1, "ScatterElements": 0, "Softmax": -1, "Split": 0, "TopK": -1,
}  # fmt: skip
"""Operators that keep the size of the axis along which they work, and its default."""

_ONNX_ERRORS = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError)
_UNSEEN = {"MeanVarianceNormalization", "ReverseSequence", "ScatterND"}


def free_batch(path: Path, wish: int, given: Inputs | None = None) -> list[str]:
    """Make a fixed batch of 1 free where rows in a batch give what each gives alone; describe the edit.

    ``wish`` is the largest batch that is asked for, ``given`` a row of real inputs by name. Where the batch
    stays fixed, the sentence is a warning: Triton then makes no batches.
    """
    model = onnx.load(path, load_external_data=False)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in constants]
    fixed = {v.name: size for v in inputs if (size := _first(v))}
    if wish == 0 or not fixed:
        return []
    why = "it is not 1 for every input"
    if len(fixed) == len(inputs) and set(fixed.values()) == {1}:
        # An npz may hold arrays of other things.
        why = _freed(model, path, {name: row for name, row in (given or {}).items() if name in fixed})
        if not why:
            return ["the batch, fixed at 1, made free: rows together give what each gives alone"]
    axes = ", ".join(f"{name!r}: {{0: 'batch'}}" for name in fixed)
    sizes = ", ".join(map(str, sorted(set(fixed.values()))))
    return [
        f"warning: the graph's batch is fixed at {sizes}, and stays so: {why}; Triton gets max_batch_size 0, "
        f"and max_batch={wish} has no effect; export the model with a free batch, in torch: "
        f"dynamic_axes={{{axes}}}"
    ]


def _first(value: onnx.ValueInfoProto) -> int:
    """The first size of a tensor, 0 where it is free or not known."""
    dims = value.type.tensor_type.shape.dim
    return int(dims[0].dim_value) if len(dims) else 0


def _freed(model: onnx.ModelProto, path: Path, given: Inputs) -> str:
    """Replace the file by the graph with a free batch, if it is right; else return the reason."""
    # Beside the file, as external data are found by the file's folder.
    trial = path.with_suffix(".free.onnx")
    try:
        _follow_in_reshapes(model)
        for value in (*model.graph.input, *model.graph.output):
            if _first(value) == 1:
                value.type.tensor_type.shape.dim[0].dim_param = _BATCH
        # Stated shapes have 1 for the batch, too, and would contradict the free one.
        del model.graph.value_info[:]
        wrong = _mixed(model)
        if not wrong:
            onnx.save(model, trial)
            wrong = _apart(model, path, trial, given)
        if not wrong:
            onnx.checker.check_model(str(trial), full_check=True)
            trial.replace(path)
    except (FuseError, ModelError, *_ONNX_ERRORS) as error:
        return f"the graph does not run on several rows ({one_line(error)})"
    finally:
        trial.unlink(missing_ok=True)
    return wrong


def _follow_in_reshapes(model: onnx.ModelProto) -> None:
    """Let each Reshape of (1, ...) to a constant (1, ...) take the first size of its input."""
    shapes, constants = inferred_shapes(without_output_shapes(model)), _constants(model)
    for node in model.graph.node:
        if node.op_type != "Reshape" or node.domain != "" or node.input[1] not in constants:
            continue
        wanted = numpy_helper.to_array(constants[node.input[1]]).copy()
        ends = [shapes.get(name, [0])[:1] for name in (node.input[0], node.output[0])]
        if ends == [[1], [1]] and 0 not in wanted:
            wanted[0] = 0
            name = f"calib_serve.shape.{node.output[0]}"
            model.graph.initializer.append(numpy_helper.from_array(wanted, name))
            node.input[1] = name
            del node.attribute[:]  # allowzero, by which 0 would be a size


def _constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """The constants that the file itself holds, by name."""
    made = [n for n in model.graph.node if n.op_type == "Constant" and n.attribute[0].HasField("t")]
    found = {n.output[0]: n.attribute[0].t for n in made}
    return found | {t.name: t for t in model.graph.initializer if not t.external_data}


def _mixed(model: onnx.ModelProto) -> str:
    """Describe the first node that may mix rows; "" where inference finds none.

    It does not see behind scikit-learn's operators, which take each row by itself.
    """
    shapes, constants = inferred_shapes(without_output_shapes(model)), _constants(model)
    for node in model.graph.node:
        read = [shapes[name] for name in node.input if _BATCH in shapes.get(name, ())]
        opaque = any(a.HasField("g") or a.graphs for a in node.attribute)
        if not (read or opaque) or node.op_type in ("Shape", "Size") or node.domain == "ai.onnx.ml":
            continue
        made = [shapes.get(name, ["?"]) for name in node.output if name]
        opaque |= node.domain != "" or any(shape.count(_BATCH) != 1 for shape in made)
        if opaque or _works_along(node, read[0], constants):
            what = f"{node.op_type} {(node.name or node.output[0])!r}"
            return f"{what} makes {made} of {read}, where rows may mix, or their number is fixed"
    return ""


def _works_along(
    node: onnx.NodeProto, shape: Sequence[int | str], constants: Mapping[str, onnx.TensorProto]
) -> bool:
    """Whether a node that keeps the batch in ``shape`` works along it, or may."""
    batch = shape.index(_BATCH)
    told = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type in ("LSTM", "GRU", "RNN"):
        return batch != (0 if told.get("layout") else 1)
    if node.op_type == "BatchNormalization":
        return batch != 0 or bool(told.get("training_mode"))
    if node.op_type == "CumSum":
        axis = constants.get(node.input[1])
        return axis is None or int(numpy_helper.to_array(axis).item()) % len(shape) == batch
    if node.op_type in _AXES:
        first = int(told.get("axis", _AXES[node.op_type])) % len(shape)
        return first <= batch if node.op_type == "LayerNormalization" else first == batch
    return node.op_type in _UNSEEN


def _apart(model: onnx.ModelProto, path: Path, trial: Path, given: Inputs) -> str:
    """Name the output that differs between rows run together and each run alone; "" for none."""
    names = [v.name for v in model.graph.output]
    rows = _rows(model, given)
    size = len(next(iter(rows.values())))
    alone = [run_raw(path, {k: v[i : i + 1] for k, v in rows.items()}, names) for i in range(size)]
    # Several orders and sizes: a node that works along the batch, such as a norm, shows in one of them.
    for order in ([*range(size)], [*reversed(range(size))], [1, 0, 1], [size - 1, 0]):
        together = run_raw(trial, {k: v[order] for k, v in rows.items()}, names)
        for j, name in enumerate(names):
            parts = [np.asarray(alone[i][j]) for i in order]
            if not _alike(np.asarray(together[j]), np.concatenate(parts)):
                return f"with {len(order)} rows {name!r} is not what each row gives alone"
    return ""


def _rows(model: onnx.ModelProto, given: Inputs) -> dict[str, NDArray[Any]]:
    """Stack the row of ``given``, a row of zeros, typical rows, and rows far from these, by input."""
    shapes = {name: value.shape[1:] for name, value in given.items()}
    made = generate(ir.from_proto(model).graph, samples=3, shapes=shapes)
    found = {}
    for name, rows in made.items():
        floats = rows.dtype.kind == "f"
        real = [given[name][:1].astype(rows.dtype)] if name in given else []
        # 30 standard deviations off: a rare maximum over the rows is one of these.
        parts = [np.zeros_like(rows[:1]), *([rows, 30.0 * rows, -30.0 * rows] if floats else [rows] * 3)]
        found[name] = np.concatenate([*real, *parts]).astype(rows.dtype)
    return found


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.shape != other.shape or one.dtype.kind not in "fiub":
        return bool(np.array_equal(one, other))
    near = 1e-2 if one.dtype.itemsize == 2 and one.dtype.kind == "f" else 1e-5
    a, b = one.astype(np.float64), other.astype(np.float64)
    size = np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=1.0)
    return bool(np.allclose(a, b, rtol=near, atol=near * size, equal_nan=True))
