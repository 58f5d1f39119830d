"""Read and write ONNX files: untrusted input is checked, external data stay on disk, writes are atomic."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx.shape_inference
import onnx_ir as ir

from calib_serve.errors import FuseError, ModelError
from calib_serve.files import sha256, written_whole

__all__ = ["MARK", "OPSET", "pending", "read", "write", "write_text"]

MARK = "calib_serve.fingerprint"
"""The metadata key of the artifact's fingerprint; it marks a calibrated model."""

OPSET = 13
"""The oldest opset whose Softmax works along one axis."""


def read(path: Path) -> ir.Model:
    """A checked model; its external tensors stay on disk until read.

    Raises ModelError for a file that is not a valid ONNX model or refers to files outside of its folder,
    FuseError for one that cannot be edited: too old an opset, or calibrated already.
    """
    try:
        model = _load(path)
    except Exception as error:  # protobuf and onnx-ir raise unrelated types
        raise ModelError(f"{path} is not an ONNX model: {error or type(error).__name__}") from error
    for tensor in _external(model):
        _check_contained(tensor, path)
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:
        raise ModelError(f"{path} fails onnx's checker: {_first_line(error)}") from error
    if MARK in model.metadata_props:
        raise FuseError(
            f"{path} is calibrated already ({model.metadata_props[MARK][:12]}); fuse into the original"
        )
    opset = model.graph.opset_imports.get("")
    if opset is None or opset < OPSET:
        raise FuseError(
            f"{path} has opset {opset}, fusing needs {OPSET} or newer; export again, or use "
            "onnx.version_converter.convert_version"
        )
    return model


def _load(path: Path) -> ir.Model:
    """A model with shapes inferred; map types of outputs are kept in ``meta``, as onnx-ir has none."""
    raw = onnx.load(path, load_external_data=False)
    stated = {v.name for graph in _graphs(raw.graph) for v in graph.value_info}
    proto = onnx.shape_inference.infer_shapes(raw)
    maps: dict[str, onnx.TypeProto] = {}
    for output in proto.graph.output:
        if output.type.WhichOneof("value") in ("map_type", "sequence_type"):
            maps[output.name] = onnx.TypeProto()
            maps[output.name].CopyFrom(output.type)
            output.ClearField("type")
    known = [v for v in proto.graph.value_info if v.type.WhichOneof("value") == "tensor_type"]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(known)
    model = ir.from_proto(proto)
    ir.external_data.set_base_dir(model.graph, path.parent)
    model.meta["maps"], model.meta["stated"] = maps, stated
    return model


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all graphs inside of it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(inner)


def _save(model: ir.Model, path: Path) -> None:
    proto = ir.to_proto(model)
    for output in proto.graph.output:
        if output.name in model.meta.get("maps", {}):
            output.type.CopyFrom(model.meta["maps"][output.name])
    # Inferred shapes are not written: with them a runtime optimises differently, and a fused graph would not
    # run like the raw one.
    for graph in _graphs(proto.graph):
        stated = [v for v in graph.value_info if v.name in model.meta.get("stated", ())]
        del graph.value_info[:]
        graph.value_info.extend(stated)
    onnx.save_model(proto, path)


def _external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    graphs = [model.graph, *model.graph.subgraphs()]
    for graph in graphs:
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
        for node in graph:
            for attr in node.attributes.values():
                if isinstance(attr.value, ir.ExternalTensor):
                    yield attr.value


def _check_contained(tensor: ir.ExternalTensor, path: Path) -> None:
    folder = path.parent.resolve()
    try:
        target = (folder / tensor.location).resolve()
        size = target.stat().st_size
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} keeps {tensor.name!r} in {tensor.location!r}: {error}") from error
    if not target.is_relative_to(folder):
        raise ModelError(
            f"{path} keeps {tensor.name!r} outside of its folder, in {tensor.location!r}; "
            "put the data file beside the model"
        )
    end = (tensor.offset or 0) + tensor.nbytes
    if end > size or (tensor.length is not None and tensor.length < tensor.nbytes):
        raise ModelError(
            f"{path} keeps {tensor.name!r} in {tensor.location!r}, which ends before it: {size} < {end}"
        )


@contextmanager
def pending(out: Path) -> Iterator[Path]:
    """A temporary path beside ``out``, renamed to ``out`` when the block succeeds, else removed."""
    try:
        with written_whole(out) as partial:
            yield partial
    except OSError as error:
        raise FuseError(f"cannot write {out}: {error}") from error


def write(model: ir.Model, partial: Path, *, source: Path, out: Path, strict: bool = True) -> None:
    """Write a model; external data stay in place, or are copied to another folder."""
    if partial.parent.resolve() != source.parent.resolve():
        _bring(model, source, out)
    _save(model, partial)
    if not strict:
        return
    try:
        onnx.checker.check_model(str(partial), full_check=True)
    except Exception as error:
        raise FuseError(f"the fused model fails onnx's full check: {_first_line(error)}") from error


def write_text(path: Path, content: str) -> None:
    """Write a small text file atomically."""
    with pending(path) as partial:
        partial.write_text(content, encoding="utf-8")


def _bring(model: ir.Model, source: Path, out: Path) -> None:
    """Copy data files beside ``out``, under names derived from the model's."""
    mark = sha256(source)[:8]
    names: dict[str, str] = {}
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                location = str(tensor.location)
                if location not in names:
                    names[location] = f"{out.stem}.{mark}.{len(names)}.data"
                    _copy(source.parent / location, out.parent / names[location])
                value.const_value = ir.ExternalTensor(
                    names[location],
                    tensor.offset,
                    tensor.length,
                    tensor.dtype,
                    shape=tensor.shape,
                    name=tensor.name,
                    base_dir=out.parent,
                )


def _copy(old: Path, new: Path) -> None:
    if new.exists() and new.stat().st_size == old.stat().st_size:
        return
    with written_whole(new) as partial:
        shutil.copyfile(old, partial)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
