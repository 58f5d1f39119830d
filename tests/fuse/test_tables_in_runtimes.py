"""Tables of probabilities give in every runtime what they give in numpy, at the edges of their bins too."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_graphs import OPSETS
from onnx_runtimes import LEVELS, RUNTIMES, by_onnxruntime

from calib_serve import ProbTable
from calib_serve.fuse.checks import rounded_down
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.probabilities import count_below, look_up

PROGRAMS = {
    **{f"onnxruntime {level}": lambda p, f, level=level: by_onnxruntime(p, f, level) for level in LEVELS},
    **{name: run for name, run in RUNTIMES.items() if "onnxruntime" not in name},
}
NODES = {"top": 14, "each": 7}


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


def graph(editing, classes: int, opset: int, path) -> None:
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
    graph(lambda editor, p: look_up(editor, p, step, classes), classes, opset, path)
    assert len(onnx.load(path).graph.node) == NODES[kind]
    probs = hostile_probs(step, classes, rng)
    for name, run in PROGRAMS.items():
        np.testing.assert_allclose(run(path, {"p": probs})["q"], step(probs), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("kind", ["top", "each"])
def test_tables_are_looked_up_alike_at_every_opset(kind, opset, tmp_path):
    rng = np.random.default_rng(opset)
    step = table(kind, 4, rng)
    graph(lambda editor, p: look_up(editor, p, step, 4), 4, opset, tmp_path / "table.onnx")
    probs = hostile_probs(step, 4, rng)
    for name, run in PROGRAMS.items():
        got = run(tmp_path / "table.onnx", {"p": probs})["q"]
        np.testing.assert_allclose(got, step(probs), atol=1e-5, err_msg=name)


def test_every_runtime_counts_bins_as_numpy_does(tmp_path):
    edges = np.linspace(0, 1, 16)[1:-1]
    graph(lambda editor, p: count_below(editor, p, edges[None], keepdims=0), 1, 17, tmp_path / "bins.onnx")
    near = np.concatenate(
        [edges.astype("f4"), *(np.nextafter(edges.astype("f4"), np.float32(t)) for t in (0, 1))]
    )
    probs = np.concatenate([near, np.linspace(0, 1, 200, dtype="f4")])[:, None]
    for name, run in PROGRAMS.items():
        got = run(tmp_path / "bins.onnx", {"p": probs})["q"]
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, np.searchsorted(edges, probs[:, 0].astype("f8")), err_msg=name)
