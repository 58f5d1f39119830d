"""Read and write ONNX files.

Untrusted input is checked, external data stay on disk, writes are atomic.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx.shape_inference
import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from calib_serve.core.errors import FuseError, ModelError
from calib_serve.core.files import MOST_PROTOBUF, read_whole, sha256, write_atomically
from calib_serve.fuse.onnx._graph import constant, is_layer
from calib_serve.fuse.onnx._repairs import first_line, graphs, in_order, infers, refuse_sparse, repaired


def read(path: Path) -> ir.Model:
    """Read and check a model, fit to be edited; its external tensors stay on disk until read.

    ``meta["repairs"]`` are the repairs that it needed, a sentence each. Raises ModelError for a file that is
    not a valid ONNX model or refers to files outside of its folder, FuseError for one of too old an opset.
    """
    raw, model = _load(path)
    external = [tensor for _, _, tensor in _external(model)]
    for tensor in external:
        _check_contained(tensor, path)
    ordered = [] if external else in_order(raw)  # the checker finds external data by the file's path alone
    try:
        # By its path, where it can be: of a path, the checker takes more than 2 GB.
        onnx.checker.check_model(raw if ordered else str(path))
    except Exception as error:
        shapeless = [v.name for v in raw.graph.input if not v.type.tensor_type.HasField("shape")]
        inputs = f"; inputs without a shape: {shapeless}" if shapeless else ""
        raise ModelError(f"{path} fails onnx's checker: {first_line(error)}{inputs}") from error
    # After the check: the repairs are compared with a file that is valid.
    raw, repairs = repaired(raw)
    repairs = [*ordered, *repairs]
    if repairs:
        model = _model(raw, path)
    if len(model.graph.outputs) > 1 and (layers := _compute_once(once := _model(raw, path))):
        model = once
        repairs.append(f"layers that the graph computes twice are computed once: {layers}")
    model.meta["repairs"] = tuple(repairs)
    # A file that fails the full check as it came is held to the plain one: the edits are not to blame.
    model.meta["strict"] = infers(raw) is not None
    return model


def _load(path: Path) -> tuple[onnx.ModelProto, ir.Model]:
    try:
        raw = onnx.load_model_from_string(read_whole(path, limit=MOST_PROTOBUF))
        refuse_sparse(raw)
        return raw, _model(raw, path)
    except ModelError:
        raise
    except Exception as error:  # protobuf and onnx-ir raise unrelated types
        is_zip = path.is_file() and zipfile.is_zipfile(path)
        other = "; a torch file takes fuse torch (fuse_torch)" if is_zip else ""
        raise ModelError(f"{path} is not an ONNX model: {error or type(error).__name__}{other}") from error


def _model(raw: onnx.ModelProto, path: Path) -> ir.Model:
    """Make an onnx-ir model with shapes inferred.

    ``meta`` keeps the ``source``, whose data it shares; the types of inputs and outputs as the file says
    them, as inference renames sizes, and onnx-ir has no maps; and the names of values whose shapes it states.
    """
    stated = {v.name for graph in graphs(raw.graph) for v in graph.value_info}
    proto = onnx.shape_inference.infer_shapes(raw)
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.WhichOneof("value") in ("map_type", "sequence_type"):
            value.ClearField("type")
    known = [v for v in proto.graph.value_info if v.type.WhichOneof("value") == "tensor_type"]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(known)
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    model.meta["source"] = path
    model.meta["types"] = {v.name: v.type for v in (*raw.graph.input, *raw.graph.output)}
    model.meta["stated"] = stated
    return model


def _compute_once(model: ir.Model) -> int:
    """Merge equal weights, and nodes that compute the same of the same; return how many layers are gone."""
    # JAX traces a network anew for each output: a label then hangs on a copy of the scores.
    before = sum(map(is_layer, model.graph.all_nodes()))
    for graph in (model.graph, *model.graph.subgraphs()):
        seen: dict[tuple[object, ...], ir.Value] = {}
        for value in list(graph.initializers.values()):
            numbers = None if value.is_graph_output() else constant(value)
            if numbers is None:
                continue
            key = (value.dtype, numbers.shape, hashlib.sha256(numbers.tobytes()).digest())
            first = seen.setdefault(key, value)
            if first is not value:
                value.replace_all_uses_with(first)
                del graph.initializers[str(value.name)]
        # It takes a model, of which it looks at the graph alone.
        CommonSubexpressionEliminationPass(size_limit=MOST_PROTOBUF)(ir.Model(graph, ir_version=10))
    return before - sum(map(is_layer, model.graph.all_nodes()))


def _save(model: ir.Model, path: Path) -> None:
    proto = ir.to_proto(model)
    types: dict[str, onnx.TypeProto] = model.meta["types"]
    sizes = {d.dim_param for kind in types.values() for d in kind.tensor_type.shape.dim}
    for value in (*proto.graph.input, *proto.graph.output):
        # What the file said stays word for word, names of free sizes included: callers read them.
        if value.name in types and _is_still(value.type, types[value.name]):
            value.type.CopyFrom(types[value.name])
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param not in sizes:  # a name that inference made up
                size.ClearField("dim_param")
    # Inferred shapes are not written: with them a runtime optimises differently, and a fused graph would not
    # run like the raw one.
    for graph in graphs(proto.graph):
        known = [v for v in graph.value_info if v.name in model.meta["stated"]]
        del graph.value_info[:]
        graph.value_info.extend(known)
    onnx.save_model(proto, path)


def _is_still(kind: onnx.TypeProto, stated: onnx.TypeProto) -> bool:
    """Whether inference left a value's type as stated: a map (untyped here), or a tensor of the same rank."""
    if not stated.HasField("tensor_type"):
        return kind.WhichOneof("value") is None
    same = kind.tensor_type.elem_type == stated.tensor_type.elem_type
    return same and len(kind.tensor_type.shape.dim) == len(stated.tensor_type.shape.dim)


def _external(model: ir.Model) -> Iterator[tuple[ir.Value | ir.Node, str, ir.ExternalTensor]]:
    """Yield tensors in other files, with the initializer, or the node and attribute, that holds each."""
    whole = (model.graph, *(function.graph for function in model.functions.values()))
    for graph in (one for outer in whole for one in (outer, *outer.subgraphs())):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value, "", value.const_value
        for node in graph:
            for name, attr in node.attributes.items():
                if isinstance(attr.value, ir.ExternalTensor):
                    yield node, name, attr.value


def data_files(model: ir.Model) -> set[str]:
    """The names of the files that hold tensors of the model, beside its own."""
    return {str(tensor.location) for _, _, tensor in _external(model)}


def _check_contained(tensor: ir.ExternalTensor, path: Path) -> None:
    folder = path.parent.resolve()
    try:
        # Resolved before it is compared: a link beside the model may lead out of its folder.
        target = (folder / tensor.location).resolve()
        size = target.stat().st_size
    except (OSError, ValueError, RuntimeError) as error:  # links in a circle, before Python 3.13
        raise ModelError(
            f"{path} keeps {tensor.name!r} in {tensor.location!r}, which cannot be read: {error}"
        ) from error
    if not target.is_relative_to(folder):
        raise ModelError(
            f"{path} keeps {tensor.name!r} outside of its folder, in {tensor.location!r}; "
            "put the data file beside the model"
        )
    end = (tensor.offset or 0) + tensor.nbytes
    if end > size or (tensor.length is not None and tensor.length < tensor.nbytes):
        raise ModelError(
            f"{path} keeps {tensor.name!r} in {tensor.location!r}, which ends before it: {size} < {end}; "
            "copy the whole file"
        )


@contextmanager
def pending(out: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``out``, renamed to ``out`` when the block succeeds, else removed."""
    try:
        with write_atomically(out) as partial:
            yield partial
    except OSError as error:
        raise FuseError(f"cannot write {out}: {error}") from error


def write(model: ir.Model, partial: Path, *, out: Path, strict: bool = True) -> None:
    """Write a model for ``out``; external data stay in place, or are copied to another folder."""
    source: Path = model.meta["source"]
    # Beside the source, the fused model reads the same data files, and none is copied.
    if partial.parent.resolve() != source.parent.resolve():
        _bring(model, source, out)
    _save(model, partial)
    if not strict:
        return
    try:
        onnx.checker.check_model(str(partial), full_check=model.meta["strict"])
    except Exception as error:
        raise FuseError(
            f"the fused model fails onnx's full check: {first_line(error)}; please report this graph"
        ) from error


def _bring(model: ir.Model, source: Path, out: Path) -> None:
    """Copy data files beside ``out``, named by their content, so that models already there keep theirs."""
    # Two models of one folder may both call their data weights.data: a name of the content keeps both.
    names: dict[str, str] = {}
    for holder, attribute, tensor in list(_external(model)):
        if Path(tensor.base_dir) == out.parent:
            continue  # brought by an earlier write
        location = str(tensor.location)
        if location not in names:
            old = source.parent / location
            hashed = sha256(old)
            new = out.with_name(f"{out.stem}.{hashed[:16]}.data")
            if not new.exists() or sha256(new) != hashed:
                with write_atomically(new) as partial:
                    shutil.copyfile(old, partial)
            names[location] = new.name
        moved = ir.ExternalTensor(
            names[location],
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            base_dir=out.parent,
        )
        if isinstance(holder, ir.Node):
            holder.attributes[attribute] = ir.AttrTensor(attribute, moved)
        else:
            holder.const_value = moved
