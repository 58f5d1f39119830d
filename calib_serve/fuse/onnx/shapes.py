"""Shapes that inference does not find, read off a run of the raw graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = ["learn", "unknown"]

_HOPS = 6
"""How many nodes back from an output the scores, and the features before them, are looked for."""


def unknown(graph: ir.Graph, features: str | None) -> list[ir.Value]:
    """The tensors near the outputs, and the named one, whose type or shape inference does not know."""
    edge = dict.fromkeys(graph.outputs)
    near = dict(edge)
    for _ in range(_HOPS):
        nodes = [node for v in edge if (node := v.producer()) is not None]
        edge = dict.fromkeys(v for node in nodes for v in node.inputs if v is not None)
        near.update(edge)
    named = [v for node in graph for v in node.outputs if v.name == features]
    return [v for v in dict.fromkeys((*near, *named)) if _is_unknown(v)]


def _is_unknown(value: ir.Value) -> bool:
    node = value.producer()
    if node is None or node.op_type == "ZipMap":
        return False
    return value.dtype is None or value.shape is None


def learn(values: Sequence[ir.Value], found: Sequence[Any]) -> None:
    """Give each value the type and shape that it had in a run, where it is a matrix: rows are free.

    Of other shapes one run does not tell which sizes are fixed.
    """
    for value, result in zip(values, found, strict=True):
        matrix = isinstance(result, np.ndarray) and result.ndim == 2
        if not matrix or not np.issubdtype(result.dtype, np.number):
            continue
        value.dtype = ir.DataType.from_numpy(result.dtype)
        value.shape = ir.Shape((None, result.shape[1]))
