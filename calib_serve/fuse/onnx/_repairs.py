"""Repair an ONNX file before its graph is edited.

What exporters leave behind is put right in the file's own terms: each repair is said, and the repaired graph
is compared with the file (``check_repairs``).
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx.defs
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter

from calib_serve.core.errors import FuseError, ModelError
from calib_serve.fuse.onnx._in_parts import inferred_types, write_activations_whole

OPSET, _IR = 13, 7
"""The oldest opset whose Softmax works along one axis, and its IR version."""

_ALIAS = "ai.onnx"  # of the standard domain, whose name is empty

_AXIS = {"Softmax", "LogSoftmax", "Hardmax"}
"""Operators that flattened their input at ``axis`` before opset 13."""

_KEPT = "calib_serve.kept"


def repaired(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Repair a model, perhaps in place; return it with the repairs, a sentence each.

    Raises FuseError where the standard operators are too old and cannot be converted.
    """
    done: list[str] = []
    _name_standard(model)
    model = _inlined(model, done)
    _without_forced_inputs(model, done)
    model = _raised(model, done)
    done += write_activations_whole(model)
    in_order(model)
    _without_false_shapes(model, done)
    return model, done


def in_order(model: onnx.ModelProto) -> list[str]:
    """Sort the nodes into an order in which they can run, and say so; [] where sorted, or impossible."""
    nodes = list(model.graph.node)
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = {i: [makers[name] for name in _read(node) if name in makers] for i, node in enumerate(nodes)}
    # Some converters write nodes before what they read: onnxruntime runs that, and the checker refuses it.
    if all(j < i for i, before in needs.items() for j in before):
        return []
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError:
        return []
    del model.graph.node[:]
    model.graph.node.extend(nodes[i] for i in order)
    return ["nodes were before what they read: put in order"]


def _read(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        yield from (name for inner in attribute.g.node for name in _read(inner))
        yield from (output.name for output in attribute.g.output)


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs inside of it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def refuse_sparse(model: onnx.ModelProto) -> None:
    """Raise ModelError where a graph holds sparse tensors, which no edit knows."""
    for graph in graphs(model.graph):
        constants = (a for node in graph.node for a in node.attribute if a.HasField("sparse_tensor"))
        for one in (*graph.sparse_initializer, *(a.sparse_tensor for a in constants)):
            raise ModelError(f"the tensor {one.values.name!r} is stored as a sparse one; write it in full")


def _inlined(model: onnx.ModelProto, done: list[str]) -> onnx.ModelProto:
    """Write out local functions: scores, or what is made of them, may be inside of any."""
    versions = {i.domain: i.version for i in model.opset_import}
    for one in (i for f in model.functions for i in f.opset_import):
        # The checker lets a function have another opset only where its operators are the same in both.
        one.version = versions.setdefault(one.domain, one.version)
    missing = versions.keys() - {i.domain for i in model.opset_import}
    model.opset_import.extend(onnx.helper.make_opsetid(name, versions[name]) for name in sorted(missing))
    try:
        new = onnx.inliner.inline_local_functions(model)
    except Exception:  # it raises unrelated types
        new = model
    stay = {f.name for f in new.functions}
    gone = sorted({f.name for f in model.functions} - stay)
    if gone:
        done.append(f"local functions written out: {', '.join(gone)}")
    if stay:
        done.append(f"warning: onnx cannot write out local functions, they stay: {', '.join(sorted(stay))}")
    return new


def _name_standard(model: onnx.ModelProto) -> None:
    """Call the standard operators' domain by its own name everywhere, and import it once."""
    functions = model.functions
    nodes = [n for graph in graphs(model.graph) for n in graph.node] + [n for f in functions for n in f.node]
    imports = [*model.opset_import, *(i for f in functions for i in f.opset_import)]
    for one in (*nodes, *imports):
        one.domain = "" if one.domain == _ALIAS else one.domain
    standard = [i for i in model.opset_import if i.domain == ""]
    newest = max((i.version for i in standard), default=0)
    for one in standard[1:]:
        model.opset_import.remove(one)
    for one in standard[:1]:
        one.version = newest


def _without_forced_inputs(model: onnx.ModelProto, done: list[str]) -> None:
    """Take initializers off the inputs: IR 3 has every one there, newer versions mean a default by it."""
    if model.ir_version >= 4:
        return
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    done.append(f"IR version {model.ir_version} -> {_IR}: initializers are constants, no inputs")
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = _IR


def _raised(model: onnx.ModelProto, done: list[str]) -> onnx.ModelProto:
    """Raise the standard operators to opset ``OPSET``, where they are older; other domains keep theirs."""
    imports = [i for i in model.opset_import if i.domain == ""]
    old = max((i.version for i in imports), default=None)
    if old is not None and old >= OPSET:
        return model
    ir_version = max(model.ir_version, _IR)
    # The converter rewrites more than it must: where no operator changed, the number alone is raised.
    if old is None or not _changed(model, old):
        for one in imports:
            one.version = OPSET
        if old is None:
            model.opset_import.append(onnx.helper.make_opsetid("", OPSET))
        done.append(f"opset {old or 'of standard operators missing'} -> {OPSET}: no operator changes")
    else:
        model = _converted(model, old)
        done.append(f"opset {old} -> {OPSET}: by onnx.version_converter")
    model.ir_version = ir_version
    return model


def _changed(model: onnx.ModelProto, old: int) -> set[str]:
    """List standard operators of the graph that are declared anew between the opsets."""
    nodes = [n for graph in graphs(model.graph) for n in graph.node]
    used = {n.op_type for n in (*nodes, *(n for f in model.functions for n in f.node)) if n.domain == ""}
    return {op for op in used if _since(op, old) != _since(op, OPSET)}


def _since(op: str, opset: int) -> int | None:
    try:
        return onnx.defs.get_schema(op, opset, "").since_version
    except onnx.defs.SchemaError:
        return None


def _converted(model: onnx.ModelProto, old: int) -> onnx.ModelProto:
    _keep_softmax(model)
    try:
        new = onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:  # it raises unrelated types
        raise FuseError(
            f"the model has opset {old}, fusing needs {OPSET} or newer, and onnx.version_converter cannot "
            f"convert {', '.join(sorted(_changed(model, old)))}: {first_line(error)[:200]}; export it again "
            "with a newer opset (opset_version=, target_opset=)"
        ) from error
    for node in new.graph.node:
        if node.domain == _KEPT:
            node.domain = ""
    imports = [i for i in new.opset_import if i.domain != _KEPT]
    del new.opset_import[:]
    new.opset_import.extend(imports)
    return new


def _keep_softmax(model: onnx.ModelProto) -> None:
    """Write out the axis of each softmax over the last dimension that is not 1; both opsets mean the same.

    They are hidden from the converter, which would put a Flatten and a Reshape around them.
    """
    types = inferred_types(model)
    model.opset_import.append(onnx.helper.make_opsetid(_KEPT, 1))
    for node in model.graph.node:
        known = node.op_type in _AXIS and not node.domain and node.input[0] in types
        if known and types[node.input[0]].HasField("shape"):
            sizes = types[node.input[0]].shape.dim
            axis = next((a.i for a in node.attribute), 1)  # they have no other
            axis += len(sizes) if axis < 0 else 0
            if all(size.dim_value == 1 for size in sizes[axis + 1 :]):
                del node.attribute[:]
                node.attribute.append(onnx.helper.make_attribute("axis", axis))
                node.domain = _KEPT


def _without_false_shapes(model: onnx.ModelProto, done: list[str]) -> None:
    """Correct shapes the exporter stated and inference contradicts."""
    if infers(model) is not None:
        return
    # What is stated of the outputs and on the way to them would hide what is inferred.
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    inferred = infers(bare)
    if inferred is None:
        done.append("warning: onnx's full check fails on this model as it is; the plain check was made")
        return
    true = {v.name: v for v in (*inferred.graph.value_info, *inferred.graph.output)}
    false = [
        v
        for v in (*model.graph.output, *model.graph.value_info)
        if v.name in true and _contradict(v.type.tensor_type, true[v.name].type.tensor_type)
    ]
    for value in false:
        stated = _text(value.type.tensor_type)
        value.CopyFrom(true[value.name])
        done.append(
            f"{value.name!r} was stated to be {stated}, but is {_text(value.type.tensor_type)}: corrected"
        )


def infers(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Infer shapes strictly, as onnx's full check does; None where that fails."""
    try:
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except Exception:  # onnx raises unrelated types
        return None


def _contradict(one: onnx.TypeProto.Tensor, other: onnx.TypeProto.Tensor) -> bool:
    if not (one.HasField("shape") and other.HasField("shape")):
        return False
    pairs = list(zip(one.shape.dim, other.shape.dim, strict=False))
    fixed = [
        (a.dim_value, b.dim_value) for a, b in pairs if a.HasField("dim_value") and b.HasField("dim_value")
    ]
    return len(one.shape.dim) != len(other.shape.dim) or any(a != b for a, b in fixed)


def _text(kind: onnx.TypeProto.Tensor) -> str:
    sizes = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in kind.shape.dim]
    return f"({', '.join(sizes)})"


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
