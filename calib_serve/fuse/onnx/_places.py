"""Scores of tokens or pixels, (n, T, K) or (n, K, H, W), in a graph: as rows for the steps, and back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._graph import FLOATS, Editor, attribute, users
from calib_serve.scores import ONE_COLUMN

_ACTIVATIONS = ("Softmax", "LogSoftmax")
_SIZES = "calib_serve.places"
"""The tensor of the places' sizes, (n, T) or (n, H, W)."""


@dataclass(frozen=True)
class ScoresInPlaces:
    """The output ``name`` of scores of ``rank`` axes, with their classes on ``axis``, 1 or -1."""

    name: str
    axis: int
    rank: int


def find_places(graph: ir.Graph, artifact: Artifact, name: str | None) -> ScoresInPlaces | None:
    """The output of scores of three axes or more, None where none has so many; FuseError where none fits."""
    axis, kind = artifact.model.class_axis or -1, artifact.model.outputs
    columns = 1 if kind in ONE_COLUMN else artifact.classes
    wide = {
        value: value.shape[axis]
        for value in graph.outputs
        if name in (None, value.name) and value.dtype in FLOATS
        if value.shape is not None and len(value.shape) > 2
    }
    if not wide:
        return None
    stated = [value for value, size in wide.items() if size == columns]
    found = stated or [value for value, size in wide.items() if not isinstance(size, int)]
    if len(found) != 1:
        outputs = ", ".join(f"{v.name!r} {v.type} {v.shape}" for v in graph.outputs)
        raise FuseError(
            f"the artifact was fitted on scores of {columns} classes on axis {axis} of three or more, which "
            f"{'several outputs' if found else 'no output'} may hold: the graph has {outputs}; name one: "
            "--output-name (output_name=)"
        )
    return ScoresInPlaces(str(found[0].name), axis, len(found[0].shape or ()))


def flatten_places(editor: Editor, scores: ScoresInPlaces) -> None:
    """Make the output rows (N, K); all other readers of the scores read them in their places again."""
    output = next(v for v in editor.graph.outputs if v.name == scores.name)
    node = output.producer()
    activation = node if node is not None and node.op_type in _ACTIVATIONS and node.domain == "" else None
    raw = output if activation is None else activation.inputs[0]
    assert raw is not None
    assert output.shape is not None
    rank = scores.rank
    if activation is not None and attribute(activation, "axis", -1) % rank != scores.axis % rank:
        raise FuseError(
            f"{scores.name!r} is made by a {activation.op_type} over another axis than its classes'"
        )
    readers = [n for n in users(raw) if n is not activation]
    sizes = editor.node("Shape", [raw])
    kept = [axis for axis in range(rank) if axis != scores.axis % rank]
    places = editor.node("Gather", [sizes, editor.number(kept, ir.DataType.INT64, "axes")])
    places.name = _SIZES
    last = _moved(editor, raw, rank, to_last=True) if scores.axis == 1 else raw
    wide = editor.node("Gather", [sizes, editor.number([scores.axis % rank], ir.DataType.INT64, "axis")])
    rest = editor.number([-1], ir.DataType.INT64, "rest")
    rows = editor.node("Reshape", [last, editor.node("Concat", [rest, wide], {"axis": 0})])
    rows.shape = ir.Shape((None, output.shape[scores.axis]))
    if readers:
        editor.move(raw, _in_places(editor, rows, places, scores.axis, rank), readers)
    shown = rows
    if activation is not None:
        shown = editor.node(activation.op_type, [rows], {"axis": -1})
        if others := users(output):
            editor.move(output, _in_places(editor, shown, places, scores.axis, rank), others)
    editor.replace_output(output, [shown], [scores.name])
    if activation is not None:
        editor.remove_unused(output)


def restore_places(editor: Editor, scores: ScoresInPlaces, names: Collection[str]) -> None:
    """Give the outputs ``names``, rows (N, K) and values (N,), the places' shape."""
    graph = editor.graph
    places = next(v for node in graph for v in node.outputs if v.name == _SIZES)
    for output in [v for v in graph.outputs if v.name in names]:
        if output.shape is not None and len(output.shape) == 1:
            new = editor.node("Reshape", [output, places])
        else:
            new = _in_places(editor, output, places, scores.axis, scores.rank)
        editor.replace_output(output, [new], [str(output.name)])


def _in_places(editor: Editor, rows: ir.Value, places: ir.Value, axis: int, rank: int) -> ir.Value:
    """Rows (N, K) in the places' shape, with the classes on ``axis``."""
    rest = editor.number([-1], ir.DataType.INT64, "rest")
    value = editor.node("Reshape", [rows, editor.node("Concat", [places, rest], {"axis": 0})])
    wide = None if rows.shape is None else rows.shape[-1]
    value.shape = ir.Shape([*[None] * (rank - 1), wide])
    return value if axis == -1 else _moved(editor, value, rank, to_last=False)


def _moved(editor: Editor, value: ir.Value, rank: int, *, to_last: bool) -> ir.Value:
    """The classes moved from axis 1 to the last, or back."""
    order = [0, *range(2, rank), 1] if to_last else [0, rank - 1, *range(1, rank - 1)]
    return editor.node("Transpose", [value], {"perm": order})
