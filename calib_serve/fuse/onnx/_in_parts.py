"""Activations in parts: what computes a softmax or a sigmoid of one tensor is written as that operator.

Exporters write them as exponentials and sums, and scikit-learn's as a classifier operator, whose
probabilities runtimes round to 0 in the tails. The parts are run on numbers: only what they compute counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
import onnx.shape_inference
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from calib_serve.models import open_session
from calib_serve.scores import log_softmax, sigmoid, softmax

_VIEWS = {"Identity", "Cast", "ZipMap", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Dropout"}
_CORE = {"Exp", "Softplus", "ReduceLogSumExp", "Sigmoid", "Softmax", "LogSoftmax"}
_SUMS = {"ReduceSum", "Normalizer", "LpNormalization"}
_PARTS = _CORE | _SUMS | {"Log", "Sub", "Add", "Mul", "Div", "Neg", "Reciprocal", "Max", "Min", "Clip", "Abs"}
_PARTS |= {"Pow", "Sum", "ReduceMax", "ReduceMean", "Concat", "Expand", "Slice", "Shape", "Constant", "Tanh"}
_PARTS |= {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}
_NEAR: dict[int, float] = {
    onnx.TensorProto.FLOAT: 1e-5,
    onnx.TensorProto.DOUBLE: 1e-9,
    onnx.TensorProto.FLOAT16: 4e-3,
}

Operators = Sequence[tuple[str, dict[str, int]]]
"""A chain of operators of one input, with their attributes; "Pad" puts a column of 0 before one logit."""

_OURS = "calib_serve.whole."
_LAST = {"axis": -1}
_LOG_SIGMOID: Operators = (("Neg", {}), ("Softplus", {}), ("Neg", {}))


def _padded(z: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.pad(z, ((0, 0), (1, 0)))


_FORMS: dict[str, tuple[Callable[[NDArray[np.float64]], NDArray[np.float64]], Operators]] = {
    "Softmax": (softmax, (("Softmax", _LAST),)),
    "LogSoftmax": (log_softmax, (("LogSoftmax", _LAST),)),
    "Sigmoid": (sigmoid, (("Sigmoid", {}),)),
    "Softmax of two columns": (lambda z: softmax(_padded(z)), (("Pad", {}), ("Softmax", _LAST))),
    "LogSoftmax of two columns": (lambda z: log_softmax(_padded(z)), (("Pad", {}), ("LogSoftmax", _LAST))),
    # One sigmoid a class, divided by their sum: by logarithms, as a sigmoid is 0 below -18 in runtimes.
    "Softmax of log-sigmoids": (
        lambda z: softmax(-np.logaddexp(0, -z)),
        (*_LOG_SIGMOID, ("Softmax", _LAST)),
    ),
}


def write_activations_whole(model: onnx.ModelProto) -> list[str]:
    """Write activations in parts, and linear classifiers, on the way to the outputs as one operator each."""
    done = []
    for node in [one for one in model.graph.node if one.op_type == "LinearClassifier"]:
        if _write_linear(model, node):
            done.append(f"LinearClassifier {node.name!r} written as its layer and its activation")
    for name in _ways_out(model):
        node = _makers(model).get(name)
        if node is None or node.op_type in ("Softmax", "LogSoftmax", "Sigmoid"):
            continue
        for source, parts in reversed(list(_entries(model, name))):
            if form := _form(model, parts, source, name):
                chain = _chain(source, name, _FORMS[form][1])
                _replace(model, parts, chain)
                _follow(model, source, chain)
                done.append(f"{name!r} is computed as {form} of {source!r}: written as that")
                break
    return done


def _makers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {value: node for node in model.graph.node for value in node.output if value}


def _ways_out(model: onnx.ModelProto) -> list[str]:
    """List the values behind what only moves the outputs."""
    makers, found = _makers(model), []
    for output in model.graph.output:
        name = output.name
        while (node := makers.get(name)) is not None and node.op_type in _VIEWS and node.input:
            name = node.input[0]
        found.append(name)
    return list(dict.fromkeys(found))


def _entries(model: onnx.ModelProto, name: str) -> Iterator[tuple[str, list[onnx.NodeProto]]]:
    """Yield the values that alone lead to ``name``, nearest first, with the nodes between."""
    makers, order = _makers(model), {id(node): i for i, node in enumerate(model.graph.node)}
    constants = {one.name for one in model.graph.initializer}
    ahead, parts = {name}, list[onnx.NodeProto]()
    while True:
        node = max((n for v in ahead if (n := makers.get(v))), key=lambda n: order[id(n)], default=None)
        known = node is not None and node.op_type in _PARTS and node.domain in ("", "ai.onnx.ml")
        if node is None or not known or len(parts) > 24:
            return
        parts.insert(0, node)
        ahead = (ahead - set(node.output)) | {v for v in node.input if v and v not in constants}
        if len(ahead) == 1 and any(one.op_type in _CORE for one in parts):
            yield next(iter(ahead)), list(parts)


def _form(model: onnx.ModelProto, parts: list[onnx.NodeProto], source: str, name: str) -> str | None:
    """The form that the nodes compute of ``source``, by running them; None for any other."""
    types = inferred_types(model)
    kind, shape = types.get(source, onnx.TypeProto.Tensor()), types.get(name, onnx.TypeProto.Tensor()).shape
    near, sizes = _NEAR.get(int(kind.elem_type)), [d.dim_value or None for d in kind.shape.dim]
    if near is None or len(sizes) not in (0, 2) or len(shape.dim) not in (0, 2):
        return None
    wide = shape.dim[1].dim_value if shape.dim else 0
    held = [one for one in model.graph.initializer if any(one.name in node.input for node in parts)]
    ends = [helper.make_tensor_value_info(v, kind.elem_type, None) for v in (source, name)]
    part = helper.make_model(
        helper.make_graph(parts, "parts", ends[:1], ends[1:], held),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    rng, operators = np.random.default_rng(0), {node.op_type for node in parts}
    for columns in (sizes[1],) if sizes and sizes[1] else dict.fromkeys((wide or 3, 1)):
        z = (4 * rng.normal(size=(sizes[0] if sizes and sizes[0] else 5, columns))).round(2)
        z = z.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        try:
            session = open_session(part.SerializeToString(), threads=1, optimize=False)
            made = np.asarray(session.run([name], {source: z})[0], np.float64)
        except Exception:  # noqa: S112 - onnxruntime's are of many types: parts that do not run are none
            continue
        for form, (wanted, _) in _FORMS.items():
            want = wanted(z.astype(np.float64))
            alone = form.startswith(("Softmax", "LogSoftmax")) and want.shape[1] == 1
            # An activation that is whole already is found as it is, unless it is summed up again.
            whole = form in operators and not operators & _SUMS
            if not alone and made.shape == want.shape and np.allclose(made, want, rtol=near, atol=near):
                return None if whole else form
    return None


def inferred_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto.Tensor]:
    """Infer the types of the main graph's tensors."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {v.name: v.type.tensor_type for v in (*graph.input, *graph.value_info, *graph.output)}


def _chain(source: str, name: str, operators: Operators) -> list[onnx.NodeProto]:
    """Make the nodes of a chain from ``source`` to ``name``."""
    made = []
    for i, (op, attributes) in enumerate(operators):
        inputs, last = [source], i == len(operators) - 1
        source = name if last else f"{_OURS}{name}.{i}"
        if op == "Pad":
            inputs.append(f"{source}.pads")
            pads = numpy_helper.from_array(np.array([0, 1, 0, 0], np.int64))
            made.append(helper.make_node("Constant", [], inputs[1:], value=pads))
        made.append(helper.make_node(op, inputs, [source], source, **attributes))  # type: ignore[arg-type]
    return made


def _replace(model: onnx.ModelProto, parts: list[onnx.NodeProto], new: list[onnx.NodeProto]) -> None:
    """Put nodes in the place of the last of ``parts``, and leave out what nobody reads any more."""
    graph, nodes = model.graph, list(model.graph.node)
    at = next(i for i, node in enumerate(nodes) if node.output == parts[-1].output)
    nodes[at : at + 1] = new
    inner = any(a.HasField("g") for node in nodes for a in node.attribute)  # which may read anything
    for old in reversed(parts[:-1]):
        if not inner and _read(model, nodes).isdisjoint(old.output):
            nodes = [node for node in nodes if node.output != old.output]
    left = {v for node in parts for v in node.input} - _read(model, nodes)
    held = [one for one in graph.initializer if inner or one.name not in left]
    for field, kept in ((graph.node, nodes), (graph.initializer, held)):
        copies = [type(one).FromString(one.SerializeToString()) for one in kept]
        del field[:]
        field.extend(copies)


def _follow(model: onnx.ModelProto, source: str, chain: list[onnx.NodeProto]) -> None:
    """Let a classifier's label be decided behind its sigmoids, where it is seen to follow them."""
    for node in model.graph.node:
        written = source.startswith(_OURS) and node.op_type == "ArgMax" and node.input[0] == source
        if written and len(chain) > 1:
            node.input[0] = chain[-1].input[0]


def _read(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]) -> set[str]:
    return {v for node in nodes for v in node.input} | {v.name for v in model.graph.output}


def _write_linear(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Write a LinearClassifier of a row a class as its Gemm, activation and ArgMax; False for another."""
    held = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    names = held.get("classlabels_strings") or held.get("classlabels_ints") or ()
    post, rows = held.get("post_transform", b"NONE"), len(held.get("intercepts", ()))
    if rows != len(names) or rows < 2 or post not in (b"SOFTMAX", b"LOGISTIC"):
        return False
    weight = np.array(held["coefficients"], np.float32).reshape(rows, -1)
    bias = np.array(held["intercepts"], np.float32)
    label, scores = node.output
    z = f"{_OURS}{scores}"
    # A Sigmoid is 0 below -18 in runtimes, this is not.
    activation = _FORMS["Softmax"][1] if post == b"SOFTMAX" else (*_LOG_SIGMOID, ("Exp", {}))
    if post == b"LOGISTIC" and rows == 2 and (weight[0] == -weight[1]).all() and bias[0] == -bias[1]:
        # Two sigmoids of z and -z are the softmax of (0, z).
        weight[0], bias[0], activation = 0, 0, _FORMS["Softmax"][1]
    parts = {"weight": weight, "bias": bias, "names": np.array(names)}
    made = [
        helper.make_node("Constant", [], [f"{z}.{part}"], value=_tensor(value))
        for part, value in parts.items()
    ]
    made += [
        helper.make_node("Cast", [node.input[0]], [f"{z}.x"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Gemm", [f"{z}.x", f"{z}.weight", f"{z}.bias"], [z], z, transB=1),
        *_chain(z, scores, activation),
    ]
    if label:
        made.append(helper.make_node("ArgMax", [z], [f"{z}.top"], f"{z}.top", axis=1, keepdims=0))
        made.append(helper.make_node("Gather", [f"{z}.names", f"{z}.top"], [label], axis=0))
    _replace(model, [node], made)
    return True


def _tensor(array: NDArray[np.generic]) -> onnx.TensorProto:
    return numpy_helper.from_array(array.astype(object) if array.dtype.kind in "SU" else array)
