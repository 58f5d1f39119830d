"""Which input is shifted and clipped, and a normalisation that goes in front of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuse_graphs import run
from fuse_texts import DELTA, TWO, K, X, fused, graph, operators
from onnx import numpy_helper

from calib_serve import InputShift
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.input_shift import Normalization

SHIFT = InputShift(DELTA)
POOLED = "a = GlobalAveragePool(x) y = Flatten(a)"
IMAGES = np.random.default_rng(4).normal(size=(4, K, 2, 2)).astype("f4")


# --- which input ------------------------------------------------------------------------------------


def test_the_floating_input_that_fits_is_shifted(tmp_path: Path) -> None:
    model = graph(
        "a = Add(x, one) b = Add(a, other) c = Cast <to: int = 1> (ids) y = Add(b, c)",
        "float[n, 3] x, float[n, 1] one, float[3] other, int64[n, 3] ids",
    )
    report, _ = fused(model, tmp_path, SHIFT)
    assert report.done == ("shift added to input 'x'",)


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
        "FLOAT [n,3]; the artifact is of another model, or another input takes it: --input-name (input_name=)"
    )


def test_where_several_inputs_fit_one_must_be_named(tmp_path: Path) -> None:
    model = graph("y = Sub(a, b)", "float[n, 3] a, float[n, 3] b")
    with pytest.raises(FuseError) as raised:
        fused(model, tmp_path, SHIFT)
    assert str(raised.value) == (
        "several inputs take the shift: 'a' FLOAT [n,3], 'b' FLOAT [n,3]; name one: --input-name "
        "(input_name=)"
    )
    for name, sign in (("a", 1), ("b", -1)):
        _, made = fused(model, tmp_path, SHIFT, input_name=name)
        got = run(made, {"a": X, "b": X[::-1]})["y"]
        np.testing.assert_allclose(got, X - X[::-1] + sign * DELTA, atol=1e-6)


def test_an_initializer_that_may_be_given_is_not_the_input_and_no_constant(tmp_path: Path) -> None:
    model = graph("y = Add(x, v)", "float[2, 3] x, float[2, 3] v", "float[2, 3] y")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 3), "f4"), "v"))
    report, made = fused(model, tmp_path, SHIFT)
    assert report.done == ("shift added to input 'x'",)
    np.testing.assert_allclose(run(made, {"x": X[:2], "v": X[2:4]})["y"], X[:2] + DELTA + X[2:4], atol=1e-6)


# --- clipping, and a shift of nothing ---------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dtype"), [("float", "f4"), ("double", "f8"), ("float16", "f2")])
def test_a_shift_that_clips_is_put_in_front(kind: str, dtype: str, tmp_path: Path) -> None:
    model = graph("y = Neg(x)", f"{kind}[n, 3] x", f"{kind}[n, 3] y")
    report, made = fused(model, tmp_path, InputShift(DELTA, -0.5, 0.75))
    assert report.done == ("shift added to input 'x' and clipped",)
    assert operators(made) == ["Add", "Clip", "Neg"]
    x = (np.round(8 * X) / 8).astype(dtype)  # sums are exact
    np.testing.assert_array_equal(run(made, {"x": x})["y"], -np.clip(x + DELTA, -0.5, 0.75))


def test_a_shift_by_zeros_changes_nothing(tmp_path: Path) -> None:
    model = graph("y = Neg(x)")
    report, made = fused(model, tmp_path, InputShift(np.zeros(K)))
    assert report.done == ("the shift is zero: nothing to do",)
    assert operators(made) == ["Neg"]
    report, made = fused(model, tmp_path, InputShift(np.zeros(K), 0.0, 1.0))
    assert report.done == ("shift added to input 'x' and clipped",)
    np.testing.assert_array_equal(run(made, {"x": X})["y"], -np.clip(X, 0, 1))


# --- normalisations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", ["n, 3, 2, 2", "n, c, h, w"])
@pytest.mark.parametrize(
    ("mean", "std"),
    [(0.5, 0.25), ([0.5, 1.0, -2.0], 0.5), (0.5, [0.25, 0.5, 4.0]), ([0.5, 1.0, -2.0], [0.25, 0.5, 4.0])],
)
def test_a_normalisation_is_put_in_front(mean: object, std: object, sizes: str, tmp_path: Path) -> None:
    model = graph(POOLED, f"float[{sizes}] x")
    normal = Normalization(np.array(mean), np.array(std))
    report, made = fused(model, tmp_path, TWO, normalization=normal, inputs={"x": IMAGES})
    assert report.done[-1] == "normalisation put before input 'x'"
    assert operators(made)[:2] == ["Sub", "Div"]
    m, s = (np.broadcast_to(np.array(v), K).reshape(K, 1, 1) for v in (mean, std))
    want = ((IMAGES - m) / s).mean(axis=(2, 3)) / 2
    np.testing.assert_allclose(run(made, {"x": IMAGES})["y"], want, atol=1e-5)


def test_a_shift_and_a_clip_come_behind_the_normalisation(tmp_path: Path) -> None:
    normal = Normalization(np.array([0.5, 1.0, -2.0]), np.array([0.25, 0.5, 4.0]))
    report, made = fused(graph("y = Neg(x)"), tmp_path, InputShift(DELTA, -0.5, 1.0), normalization=normal)
    assert report.done == ("normalisation put before input 'x', the shift in its mean",)
    assert operators(made) == ["Sub", "Div", "Clip", "Neg"]
    want = -np.clip((X - [0.5, 1.0, -2.0]) / [0.25, 0.5, 4.0] + DELTA, -0.5, 1.0)
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)
