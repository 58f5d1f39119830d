"""The operators that make and map probabilities, against numpy: ends, ties, edges, every type and opset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import graph
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from calib_serve import LogitMap
from calib_serve.fuse.onnx import probabilities
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.graph import fuse_onnx
from calib_serve.metrics import softmax

Floats = NDArray[np.floating]
Build = Callable[[Editor, ir.Value], ir.Value]

TYPES = {"f4": "float", "f8": "double", "f2": "float16"}
LEAST = np.finfo("f4").tiny
P = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.0, 1.0, 0.0], [0.4, 0.4, 0.2]])


def computed(build: Build, x: Floats, *, opset: int = 17) -> NDArray:
    """What the operators make of ``x``; they say its type and shape."""
    kind = f"{TYPES[x.dtype.str[1:]]}[{', '.join(['n', *map(str, x.shape[1:])])}]"
    editor = Editor(ir.from_proto(graph("y = Identity(x)", f"{kind} x", f"{kind} y", f'"" : {opset}')))
    value = build(editor, editor.graph.inputs[0])
    assert value.dtype is not None
    assert value.shape is not None
    kind_said, sizes_said = value.dtype.numpy(), [*value.shape]
    editor.add_output(value, "out")
    model = ir.to_proto(editor.model)
    onnx.checker.check_model(model, full_check=True)
    got = run(model, {"x": x})["out"]
    assert got.dtype == kind_said
    assert [n if isinstance(n, int) else len(x) for n in sizes_said] == [*got.shape]
    return got


# --- one operator, or a few -------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "near"), [("f4", 1e-6), ("f8", 1e-14), ("f2", 1e-3)])
def test_logarithms_and_log_odds_of_probabilities_are_finite_at_0_and_1(dtype: str, near: float) -> None:
    p = P.astype(dtype)
    log = np.log(np.maximum(p.astype("f8"), LEAST))
    rest = np.log(np.maximum(1 - p.astype("f8"), LEAST))
    np.testing.assert_allclose(computed(probabilities.clamped_log, p), log, rtol=near)
    np.testing.assert_allclose(computed(probabilities.log_odds, p), log - rest, rtol=near, atol=near)


# --- bins -------------------------------------------------------------------------------------------

ABOVE = np.float32(0.1)
"""The float32 nearest to 0.1 is above it: it lies behind the edge."""
BELOW = np.float32(0.7)
"""And that of 0.7 below it."""


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_bin_is_open_on_its_left_in_every_type(dtype: str) -> None:
    edges = np.array([0.1, 0.5, 0.7])
    values = [0.0, 0.1, ABOVE, np.nextafter(ABOVE, np.float32(0)), 0.5, BELOW, 0.7, np.nextafter(0.7, 1), 1.0]
    x = np.array(values, dtype)[:, None]
    got = computed(lambda e, v: probabilities.count_below(e, v, edges[None], keepdims=0), x)
    np.testing.assert_array_equal(got, (x.astype("f8") > edges).sum(axis=1), strict=True)


# --- steps ------------------------------------------------------------------------------------------


# --- in whole graphs --------------------------------------------------------------------------------


def test_a_probability_of_half_precision_that_is_0_has_a_logarithm(tmp_path: Path) -> None:
    body = "z = Neg(x) p = Softmax(z) n = Neg(p) y = Neg(n)"
    onnx.save(graph(body, "float16[n, 3] x", "float16[n, 3] y"), tmp_path / "raw.onnx")
    step = LogitMap(np.array([[1.0, 0.0, 0.1], [0.0, 1.0, 0.0], [0.2, 0.0, 1.0]]))
    fitted = artifact(step, classes=3, outputs="probabilities")
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", outputs="probabilities")
    x = np.array([[-100.0, 100.0, 50.0], [0.0, 0.0, 200.0], [0.0, 1.0, 2.0]], "f2")
    raw = run(str(tmp_path / "raw.onnx"), {"x": x})["y"].astype("f8")
    assert raw[:2].tolist() == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    want = softmax(np.log(np.maximum(raw, LEAST)) @ step.weight.T)
    by_onnx: Any = ReferenceEvaluator(onnx.load(tmp_path / "out.onnx")).run(["y"], {"x": x})
    for got in (run(str(tmp_path / "out.onnx"), {"x": x})["y"], by_onnx[0]):
        np.testing.assert_allclose(got, want, atol=2e-3)
