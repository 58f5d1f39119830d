"""Which input is shifted and clipped, and a normalisation that goes in front of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import DELTA, TWO, K, X, fused, graph, operators
from onnx import numpy_helper

from calib_serve import InputShift
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.input_shift import Normalization, ShiftInput
from calib_serve.fuse.onnx.tail import Tail, find_tail

SHIFT = InputShift(DELTA)
FORM = "--with-normalization (normalization=)"
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


def test_an_input_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    model = graph("y = Add(x, v)", "float[n, 3] x, float[3] v")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, "f4"), "v"))
    with pytest.raises(FuseError) as raised:
        fused(model, tmp_path, SHIFT, input_name="v")
    assert str(raised.value) == "the graph has no input 'v'; --input-name (input_name=) is one of ['x']"


def test_an_initializer_that_may_be_given_is_not_the_input_and_no_constant(tmp_path: Path) -> None:
    model = graph("y = Add(x, v)", "float[2, 3] x, float[2, 3] v", "float[2, 3] y")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 3), "f4"), "v"))
    report, made = fused(model, tmp_path, SHIFT)
    assert report.done == ("shift added to input 'x'",)
    np.testing.assert_allclose(run(made, {"x": X[:2], "v": X[2:4]})["y"], X[:2] + DELTA + X[2:4], atol=1e-6)


@pytest.mark.parametrize("kind", ["optional(float[n, 3])", "sparse_tensor(float[n, 3])"])
def test_an_input_that_is_no_tensor_takes_no_shift(kind: str, tmp_path: Path) -> None:
    node = "OptionalGetElement" if kind.startswith("optional") else "Abs"
    with pytest.raises(FuseError, match="no floating-point input takes a shift of shape"):
        fused(graph(f"y = {node}(x)", f"{kind} x", imports='"" : 18'), tmp_path, SHIFT)


def inside(body: str, inputs: str) -> tuple[Editor, Tail]:
    editor = Editor(ir.from_proto(graph(body, inputs)))
    return editor, find_tail(editor, output="y", outputs=None, artifact=artifact(TWO, classes=K))


def test_only_a_floating_input_of_the_graph_is_shifted() -> None:
    editor, tail = inside(
        "i = Identity(x) c = Cast <to: int = 1> (ids) y = Add(i, c)", "float[n, 3] x, int64[n, 3] ids"
    )
    x, ids = editor.graph.inputs
    ShiftInput(x, SHIFT, None).requires(tail)
    ShiftInput(x, SHIFT, None).ensures(tail)
    inner = editor.graph[0].outputs[0]
    inner.dtype = ir.DataType.FLOAT
    for value in (ids, inner):
        with pytest.raises(FuseError, match="there is no input to shift"):
            ShiftInput(value, SHIFT, None).requires(tail)
    with pytest.raises(FuseError, match="the shifted input is gone"):
        ShiftInput(inner, SHIFT, None).ensures(tail)


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


def test_a_normalisation_alone_needs_the_name_of_one_of_several_inputs(tmp_path: Path) -> None:
    model = graph("s = ReduceMean <keepdims: int = 0> (v) y = Sub(x, s)", "float[n, 3] x, float[n, 2, 2] v")
    normal = Normalization(np.array(0.5), np.array(0.25))
    with pytest.raises(FuseError, match="several inputs take the shift"):
        fused(model, tmp_path, TWO, normalization=normal)
    report, _ = fused(model, tmp_path, TWO, normalization=normal, input_name="v")
    assert report.done[-1] == "normalisation put before input 'v'"


@pytest.mark.parametrize(("mean", "std"), [([0.5, 1.0], 0.5), (0.5, [0.5, 1.0]), ([0.5, 1.0], [0.5, 1.0])])
def test_a_normalisation_of_other_channels_is_refused(mean: object, std: object, tmp_path: Path) -> None:
    normal = Normalization(np.array(mean), np.array(std))
    with pytest.raises(FuseError) as raised:
        fused(graph(POOLED, "float[n, 3, 2, 2] x"), tmp_path, TWO, normalization=normal)
    assert str(raised.value) == f"the input 'x' has 3 channels, {FORM} 2"


def test_a_normalisation_needs_channels(tmp_path: Path) -> None:
    model = graph(
        "s = Unsqueeze(x, one) w = Constant <value = float[1, 3] {1, 2, 3}> () y = MatMul(s, w)", "float[n] x"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    with pytest.raises(FuseError) as raised:
        fused(model, tmp_path, TWO, normalization=Normalization(np.array(0.5), np.array(0.5)))
    assert str(raised.value) == f"{FORM} needs an input (n, C, ...), 'x' is [n]"


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ([[0.5]], 1.0), (0.5, [[1.0]]), ([0.5, 0.5], [1.0, 1.0, 1.0]), ([], 1.0), (0.5, []),
        ([0.5, np.nan], 1.0), (np.inf, 1.0), (0.5, [1.0, np.inf]), (0.5, np.nan),
    ],
)  # fmt: skip
def test_mean_and_std_are_one_number_or_one_a_channel(mean: object, std: object) -> None:
    with pytest.raises(FuseError) as raised:
        Normalization(np.array(mean), np.array(std))
    assert str(raised.value) == (
        f"the mean and std of {FORM} must be one number or one per channel, got {np.array(mean, float)} and "
        f"{np.array(std, float)}"
    )


@pytest.mark.parametrize("std", [0.0, -0.5, [1.0, 0.0]])
def test_a_std_is_positive(std: object) -> None:
    with pytest.raises(FuseError) as raised:
        Normalization(np.array(0.5), np.array(std))
    assert str(raised.value) == f"the std of {FORM} must be positive, got {np.array(std)}"


def test_a_mean_and_a_std_may_be_whole_numbers() -> None:
    whole = Normalization(np.array([127, 128]), np.array(64))
    assert (whole.mean.dtype, whole.std.dtype) == (np.float64, np.float64)
    assert (whole.mean.tolist(), whole.std.tolist()) == ([127.0, 128.0], 64.0)


def test_a_normalisation_is_read_from_a_text() -> None:
    read = Normalization.read("-.5/1,.25/.5")
    assert (read.mean.tolist(), read.std.tolist()) == ([-0.5, 1.0], [0.25, 0.5])
    small = Normalization.read("2,1e-3")
    assert (small.mean.tolist(), small.std.tolist()) == ([2.0], [0.001])
    for text in ("", "1", "1,2,3", "a,b", "1/,2", "1;2"):
        with pytest.raises(FuseError) as raised:
            Normalization.read(text)
        assert str(raised.value) == f"{FORM} is MEAN,STD, channels separated by /: got {text!r}"
