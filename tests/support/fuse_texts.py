"""Small graphs written as text, their editors, and what is fused of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from fuse_artifacts import artifact

from calib_serve.artifact import LogitMap
from calib_serve.fuse import FuseReport, fuse_onnx
from calib_serve.fuse.onnx._graph import Editor

K = 3
TWO = LogitMap.temperature(2.0)
DELTA = np.array([0.5, -1.0, 0.25])
X = np.random.default_rng(1).normal(size=(20, K)).astype("f4")
W = np.array([[1, 2, 0], [0, 1, -1], [2, 0, 1]], "f4")
LAYER = "w = Constant <value = float[3, 3] {1, 2, 0, 0, 1, -1, 2, 0, 1}> () "
IMPORTS = '"" : 17, "ai.onnx.ml" : 3, "com.microsoft" : 1, "of.ours" : 1'


def graph(
    body: str,
    inputs: str = "float[n, 3] x",
    outputs: str = "float[n, 3] y",
    imports: str = IMPORTS,
    *,
    constants: str = "",
) -> onnx.ModelProto:
    head = f"<ir_version: 8, opset_import: [{imports}]>"
    model = onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) <{constants}> {{ {body} }}")
    # The parser drops a last input without a name; files have such inputs.
    for node in model.graph.node:
        node.input[:] = ["" if name == "nothing" else name for name in node.input]
    return model


def editor(body: str, inputs: str = "float[n, 3] x", outputs: str = "float[n, 3] y", **more: str) -> Editor:
    """Of a graph whose shapes are inferred."""
    model = graph(body, inputs, outputs, **more)
    return Editor(ir.from_proto(onnx.shape_inference.infer_shapes(model)))


def value(made: Editor, name: str) -> ir.Value:
    """The input, constant or result of this name."""
    found = [*made.graph.inputs, *made.graph.initializers.values()]
    found += [v for node in made.graph for v in node.outputs]
    return next(v for v in found if v.name == name)


def operators(made: onnx.ModelProto | Iterable[ir.Node]) -> list[str]:
    nodes = made.graph.node if isinstance(made, onnx.ModelProto) else made
    return [node.op_type for node in nodes]


def fused(
    model: onnx.ModelProto, folder: Path, *steps: object, classes: int = 3, **options: Any
) -> tuple[FuseReport, onnx.ModelProto]:
    """The report and the fused model."""
    onnx.save(model, folder / "raw.onnx")
    fitted = artifact(*steps, classes=classes)
    report = fuse_onnx(folder / "raw.onnx", fitted, folder / "fused.onnx", **options, unproven=True)
    return report, onnx.load(folder / "fused.onnx")
