"""Where an input shift and a normalisation go: into constants, exactly, or in front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_graphs import run
from fuse_texts import DELTA, IMPORTS, K, X, fused, graph, operators
from onnx import numpy_helper

from calib_serve.artifact import InputShift
from calib_serve.core.errors import FuseError


def eighths(*shape: int) -> np.ndarray:
    """Numbers that are exact in float32, and so are sums and products of a few of them; none is 0."""
    return np.random.default_rng([5, *shape]).choice([-12, -7, -3, 2, 5, 9], shape) / 8


ROW = np.array([2.0, 0.5, -4.0], "f4")
EXACT = eighths(4, 3).astype("f4")
CONSTANTS = {
    "c": ROW, "h": np.array(0.5), "b": eighths(3), "u": eighths(3, 2), "v": eighths(2, 3),
    "small": np.array([3e-5, 1.0, 2e-5]), "twos": np.full((2, 3), 2.0), "k": eighths(3, 2, 2, 2),
}  # fmt: skip
SHIFT = InputShift(DELTA)


def model(
    body: str, inputs: str = "float[n, 3] x", outputs: str = "float[n, 3] y", imports: str = IMPORTS
) -> onnx.ModelProto:
    """A graph, with those of the constants that it reads and does not make itself."""
    made = graph(body, inputs, outputs, imports)
    named = {value.name for value in made.graph.input} | {v for node in made.graph.node for v in node.output}
    parts = [made.graph, *(a.g for node in made.graph.node for a in node.attribute)]
    read = {name for part in parts for node in part.node for name in node.input}
    for name in sorted(read & CONSTANTS.keys() - named):
        numbers = CONSTANTS[name]
        stored = numbers if numbers.dtype.kind == "i" else numbers.astype("f4")
        made.graph.initializer.append(numpy_helper.from_array(stored, name))
    return made


def check(
    raw: onnx.ModelProto, folder: Path, delta: np.ndarray, done: str, feeds: dict[str, Any] | None = None
) -> onnx.ModelProto:
    """Fuse, and compare every output with the raw graph's on shifted inputs; the fused graph."""
    feeds = {"x": eighths(4, *delta.shape).astype("f4")} | (feeds or {})
    report, made = fused(raw, folder, InputShift(delta), output_name="y", inputs=feeds)
    assert [one for one in report.done if "written out" not in one] == [done]
    want = run(raw, feeds | {"x": (feeds["x"] + delta).astype("f4")}, optimize=False)
    got = run(made, feeds, optimize=False)
    assert got.keys() == want.keys()
    for name, numbers in want.items():
        np.testing.assert_allclose(got[name], numbers, rtol=1e-5, atol=1e-5)
    return made


@pytest.mark.parametrize(
    "body",
    [
        "y = Add(x, c)",
        "r = Relu(x) y = Add(r, c)",
        "m = Mul(x, x) y = Add(m, c)",
        "y = BatchNormalization(x, c, b, b, small)",
        "p = Gemm(x, u) y = Gemm(p, v)",
        "t = Transpose(x) s = Add(t, h) y = Transpose(s)",
    ],
)
def test_a_shift_is_added_in_front(body: str, tmp_path: Path) -> None:
    raw = model(body)
    made = check(raw, tmp_path, DELTA, "shift added to input 'x'")
    assert operators(made) == ["Add", *operators(raw)]


def test_an_input_that_is_shown_or_read_by_a_branch_is_shifted_for_all(tmp_path: Path) -> None:
    raw = model("i = Identity(x) y = Add(i, c)", outputs="float[n, 3] y, float[n, 3] i")
    check(raw, tmp_path, DELTA, "shift added to input 'x'")
    raw = model(
        "y = If(yes) <then_branch = one () => (float[n, 3] a) { a = Add(x, c) }, "
        "else_branch = other () => (float[n, 3] d) { d = Identity(twos) }>",
        "float[n, 3] x, bool yes",
    )
    check(raw, tmp_path, DELTA, "shift added to input 'x'", {"x": EXACT[:2], "yes": np.array(True)})


def test_what_else_is_computed_from_the_shifted_input_follows_and_from_another_is_independent(
    tmp_path: Path,
) -> None:
    raw = model("p = Gemm(x, u) y = Gemm(p, v) f = Neg(x) r = Relu(o)", "float[n, 3] x, float[n] o",
                "float[n, 3] y, float[n, 3] f, float[n] r")  # fmt: skip
    report, _ = fused(raw, tmp_path, SHIFT, output_name="y")
    assert [(one.name, one.status, one.reason) for one in report.statuses] == [
        ("y", "calibrated", "by the artifact"),
        ("f", "follows", "computed from the shifted input"),
        ("r", "independent", "independent of the scores"),
    ]


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ("n,a,b", True), ("n,3,b", True), ("n,a,2", True), ("n,3,2", True), ("n,3,4", False),
        ("n,4,2", False), ("n,a,4", False), ("n,a", False), ("n,3", False), ("n,a,b,c", False),
    ],
)  # fmt: skip
def test_an_input_fits_where_it_states_no_other_size(sizes: str, fits: bool, tmp_path: Path) -> None:
    model = graph("s = ReduceSum <keepdims: int = 0> (x) y = Add(s, v)", f"float[{sizes}] x, float[n, 3] v")
    shift = InputShift(np.ones((3, 2)))
    if fits:
        assert fused(model, tmp_path, shift)[0].done == ("shift added to input 'x'",)
        return
    with pytest.raises(FuseError) as raised:
        fused(model, tmp_path, shift)
    assert str(raised.value) == (
        f"no floating-point input takes a shift of shape (3, 2); the graph has 'x' FLOAT [{sizes}], 'v' "
        "FLOAT [n,3]; the artifact is of another model"
    )


def test_where_several_inputs_fit_nothing_is_written(tmp_path: Path) -> None:
    model = graph("y = Sub(a, b)", "float[n, 3] a, float[n, 3] b")
    with pytest.raises(FuseError, match="several inputs may take the shift: 'a' FLOAT"):
        fused(model, tmp_path, SHIFT)


def test_a_shift_by_zeros_changes_nothing(tmp_path: Path) -> None:
    model = graph("y = Neg(x)")
    report, made = fused(model, tmp_path, InputShift(np.zeros(K)))
    assert report.done == ("the shift is zero: nothing to do",)
    assert operators(made) == ["Neg"]
    report, made = fused(model, tmp_path, InputShift(np.zeros(K), 0.0, 1.0))
    assert report.done == ("shift added to input 'x' and clipped",)
    np.testing.assert_array_equal(run(made, {"x": X})["y"], -np.clip(X, 0, 1))
