"""The operators that make and map probabilities, against numpy: ends, ties, edges, types, runtimes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact
from fuse_graphs import OPSETS, run
from fuse_texts import graph
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx_runtimes import LEVELS, RUNTIMES, by_onnxruntime

from calib_serve.artifact import LogitMap, ProbTable
from calib_serve.fuse import fuse_onnx
from calib_serve.fuse._decisions import rounded_down
from calib_serve.fuse.onnx import _probabilities as probabilities
from calib_serve.fuse.onnx._graph import Editor
from calib_serve.fuse.onnx._probabilities import count_below, look_up
from calib_serve.scores import softmax

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


@pytest.mark.parametrize(("dtype", "near"), [("f4", 1e-6), ("f8", 1e-14), ("f2", 1e-3)])
def test_logarithms_and_log_odds_of_probabilities_are_finite_at_0_and_1(dtype: str, near: float) -> None:
    p = P.astype(dtype)
    log = np.log(np.maximum(p.astype("f8"), LEAST))
    rest = np.log(np.maximum(1 - p.astype("f8"), LEAST))
    np.testing.assert_allclose(computed(probabilities.clamped_log, p), log, rtol=near)
    np.testing.assert_allclose(computed(probabilities.log_odds, p), log - rest, rtol=near, atol=near)


def test_a_probability_of_half_precision_that_is_0_has_a_logarithm(tmp_path: Path) -> None:
    body = "z = Neg(x) p = Softmax(z) n = Neg(p) y = Neg(n)"
    onnx.save(graph(body, "float16[n, 3] x", "float16[n, 3] y"), tmp_path / "raw.onnx")
    step = LogitMap(np.array([[1.0, 0.0, 0.1], [0.0, 1.0, 0.0], [0.2, 0.0, 1.0]]))
    fitted = artifact(step, classes=3, outputs="probabilities")
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", outputs="probabilities", unproven=True)
    x = np.array([[-100.0, 100.0, 50.0], [0.0, 0.0, 200.0], [0.0, 1.0, 2.0]], "f2")
    raw = run(str(tmp_path / "raw.onnx"), {"x": x})["y"].astype("f8")
    assert raw[:2].tolist() == [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]
    want = softmax(np.log(np.maximum(raw, LEAST)) @ step.weight.T)
    by_onnx: Any = ReferenceEvaluator(onnx.load(tmp_path / "out.onnx")).run(["y"], {"x": x})
    for got in (run(str(tmp_path / "out.onnx"), {"x": x})["y"], by_onnx[0]):
        np.testing.assert_allclose(got, want, atol=2e-3)


PROGRAMS = {
    **{f"onnxruntime {level}": lambda p, f, level=level: by_onnxruntime(p, f, level) for level in LEVELS},
    **{name: program for name, program in RUNTIMES.items() if "onnxruntime" not in name},
}
NODES = {"top": 17, "each": 9}


def table(kind: str, classes: int, rng: np.random.Generator) -> ProbTable:
    """Edges at 0, 1, and twice the same; values of 0, and small ones beside large ones."""
    edges = np.sort(rng.uniform(0, 1, (classes, 6)), axis=1)
    edges[:, 0], edges[:, -1], edges[:, 2] = 0, 1, edges[:, 3]
    values = rng.choice([0, 1e-7, 0.2, 0.7, 1], (classes, 7))
    return ProbTable(edges[:1], values[:1]) if kind == "top" else ProbTable(edges, values)


def hostile_probs(step: ProbTable, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Float32 probabilities (n, K): any, certain ones, ties, and some that lie on an edge, or beside it."""
    some = rng.dirichlet(np.full(classes, 0.3), 40)
    alike = np.full((1, classes), 1 / classes)
    pairs = np.zeros((4, classes))
    pairs[:, [0, -1]] = [[0.5, 0.5], [0.2, 0.2], [1e-30, 1], [1e-41, 1]]
    on_edges = rounded_down(step.edges)[rng.integers(len(step.edges), size=(30, classes)), rng.integers(6)]
    near = [np.nextafter(on_edges, np.float32(to)) for to in (0, 1)]
    rows = [some, np.eye(classes), alike, pairs, on_edges, *near]
    return np.concatenate([r.astype("f4") for r in rows])


def edited(editing, classes: int, opset: int, path) -> None:
    """A model of the one edit, from input p (n, K) to output q."""
    p = ir.Value(name="p", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(("n", classes)))
    empty = ir.Graph([p], [], nodes=[], opset_imports={"": opset}, name="g")
    model = ir.Model(empty, ir_version=10)
    q = editing(Editor(model), p)
    q.name, q.shape = "q", q.shape or ir.Shape(("n",))
    empty.outputs.append(q)
    empty.sort()
    ir.save(model, path)
    onnx.checker.check_model(str(path), full_check=True)


@pytest.mark.parametrize("opset", [OPSETS[0], OPSETS[-1]])
@pytest.mark.parametrize("kind", ["top", "each"])
@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_every_runtime_looks_up_what_numpy_does(kind, classes, opset, tmp_path):
    rng = np.random.default_rng(classes)
    step = table(kind, classes, rng)
    path = tmp_path / "table.onnx"
    edited(lambda editor, p: look_up(editor, p, step, classes), classes, opset, path)
    assert len(onnx.load(path).graph.node) == NODES[kind]
    probs = hostile_probs(step, classes, rng)
    for name, program in PROGRAMS.items():
        np.testing.assert_allclose(program(path, {"p": probs})["q"], step(probs), atol=1e-5, err_msg=name)


def test_every_runtime_counts_bins_as_numpy_does(tmp_path):
    edges = np.linspace(0, 1, 16)[1:-1]
    edited(lambda editor, p: count_below(editor, p, edges[None], keepdims=0), 1, 17, tmp_path / "bins.onnx")
    near = np.concatenate(
        [edges.astype("f4"), *(np.nextafter(edges.astype("f4"), np.float32(t)) for t in (0, 1))]
    )
    probs = np.concatenate([near, np.linspace(0, 1, 200, dtype="f4")])[:, None]
    for name, program in PROGRAMS.items():
        got = program(tmp_path / "bins.onnx", {"p": probs})["q"]
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, np.searchsorted(edges, probs[:, 0].astype("f8")), err_msg=name)
