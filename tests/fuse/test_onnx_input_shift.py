"""Where an input shift and a normalisation go: into constants, exactly, or in front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_graphs import run
from fuse_texts import DELTA, IMPORTS, K, X, editor, fused, graph, operators
from onnx import helper, numpy_helper

from calib_serve.artifact import InputShift
from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._input_shift import shift_input, shifted_input


def eighths(*shape: int) -> np.ndarray:
    """Numbers that are exact in float32, and so are sums and products of a few of them; none is 0."""
    return np.random.default_rng([5, *shape]).choice([-12, -7, -3, 2, 5, 9], shape) / 8


ROW = np.array([2.0, 0.5, -4.0], "f4")
EXACT = eighths(4, 3).astype("f4")
CONSTANTS = {
    "c": ROW, "row": ROW[None], "deep": ROW[None, None], "h": np.array(0.5), "top": np.array(4.0),
    "b": eighths(3), "w": eighths(3, 3), "u": eighths(3, 2), "v": eighths(2, 3), "b5": eighths(5),
    "w5": eighths(5, 3), "w1": eighths(1, 3), "w4": eighths(4, 3), "w6": eighths(6, 3), "w24": eighths(24, 3),
    "c32": eighths(3, 2), "c342": eighths(3, 4, 2), "small": np.array([3e-5, 1.0, 2e-5]),
    "zero": np.array([1.0, 0.0, 2.0]), "twos": np.full((2, 3), 2.0), "s1": np.array([0.5]),
    "s2": np.array([0.5, 2.0]), "k": eighths(3, 2, 2, 2), "split": eighths(4, 1, 2, 2),
    "whole": eighths(3, 2, 3, 4), "wide": eighths(5, 2, 2, 2), "flat": np.array([-1, 3]),
    "first": np.array([0]), "one": np.array([1]),
}  # fmt: skip
SHIFT = InputShift(DELTA)
MEAN = "g = GlobalAveragePool(a) y = Flatten(g)"
"""Of the three channels of ``a``, three scores."""


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
    report, made = fused(raw, folder, InputShift(delta), input_name="x", output_name="y", inputs=feeds)
    assert [one for one in report.done if "written out" not in one] == [done]
    want = run(raw, feeds | {"x": (feeds["x"] + delta).astype("f4")}, optimize=False)
    got = run(made, feeds, optimize=False)
    assert got.keys() == want.keys()
    for name, numbers in want.items():
        np.testing.assert_allclose(got[name], numbers, rtol=1e-5, atol=1e-5)
    return made


@pytest.mark.parametrize(
    ("body", "into"),
    [
        ("y = Add(x, c)", "Add 'y'"),
        ("y = Add(row, x)", "Add 'y'"),
        ("y = Sub(x, h)", "Sub 'y'"),
        ("y = Sub(c, x)", "Sub 'y'"),
        ("i = Identity(x) y = Add(i, c)", "Add 'y'"),
        ("m = Mul(x, c) y = Add(m, c)", "Add 'y'"),
        ("m = Mul(h, x) y = Sub(m, c)", "Sub 'y'"),
        ("m = Div(x, row) y = Add(m, row)", "Add 'y'"),
        ("m = Div(x, h) k = Mul(m, c) y = Sub(c, k)", "Sub 'y'"),
        ("y = BatchNormalization(x, c, b, b, small)", "BatchNormalization 'y'"),
        ("y = BatchNormalization <epsilon: float = 0.0001> (x, c, b, b, small)", "BatchNormalization 'y'"),
        ("p = Gemm(x, u) y = Gemm(p, v)", "Gemm 'p'"),
        ("y = Gemm(x, w, b)", "Gemm 'y'"),
        ("y = Gemm <alpha: float = 0.5, beta: float = 2.0, transB: int = 1> (x, w, b)", "Gemm 'y'"),
        ("y = MatMul(x, w)", "Gemm 'y'"),
        ("p = MatMul(x, w) y = Add(p, b)", "MatMul 'p'"),
        ("p = MatMul(x, w) y = Add(b, p)", "MatMul 'p'"),
        ("p = MatMul(x, w) q = Add(p, b) r = Neg(p) y = Mul(q, r)", "Gemm 'p'"),
        ("p = MatMul(x, w) y = MatMul(p, w)", "Gemm 'p'"),
    ],
)
def test_a_shift_of_rows_becomes_part_of_a_constant(body: str, into: str, tmp_path: Path) -> None:
    raw = model(body)
    made = check(raw, tmp_path, DELTA, f"shift folded into {into}")
    assert len(made.graph.node) == len(raw.graph.node)


@pytest.mark.parametrize(
    ("body", "shape", "into"),
    [
        ("f = Flatten(x) y = MatMul(f, w6)", (2, 3), "Gemm 'y'"),
        ("f = Flatten <axis: int = 1> (x) y = Gemm(f, w6, b)", (3, 2), "Gemm 'y'"),
        ("t = Transpose <perm: ints = [0, 2, 1]> (x) s = Add(t, c32) f = Flatten(s) y = MatMul(f, w6)",
         (2, 3), "Add 's'"),
        ("t = Transpose <perm: ints = [0, 2, 3, 1]> (x) s = Sub(t, c342) f = Flatten(s) y = MatMul(f, w24)",
         (2, 3, 4), "Sub 's'"),
        (f"a = Conv(x, whole) {MEAN}", (2, 3, 4), "Conv 'a'"),
        (f"a = Conv(x, whole, b) {MEAN}", (2, 3, 4), "Conv 'a'"),
    ],
)  # fmt: skip
def test_a_shift_of_every_place_goes_along_with_what_only_moves_numbers(
    body: str, shape: tuple[int, ...], into: str, tmp_path: Path
) -> None:
    sizes = ", ".join(map(str, shape))
    raw = model(body, inputs=f"float[n, {sizes}] x")
    made = check(raw, tmp_path, eighths(*shape), f"shift folded into {into}")
    assert len(made.graph.node) == len(raw.graph.node)


@pytest.mark.parametrize(
    "conv",
    [
        "a = Conv(x, k)", "a = Conv(x, k, nothing)", "a = Conv(x, k, b)",
        "a = Conv <pads: ints = [0, 0, 0, 0], group: int = 1> (x, k)",
        'a = Conv <auto_pad: string = "VALID", strides: ints = [2, 1]> (x, k, b)',
        'a = Conv <auto_pad: string = "NOTSET"> (x, k)',
    ],
)  # fmt: skip
def test_a_shift_of_channels_becomes_the_bias_of_a_convolution_without_padding(
    conv: str, tmp_path: Path
) -> None:
    raw = model(f"{conv} {MEAN}", inputs="float[n, 2, 3, 4] x")
    delta = np.broadcast_to(np.array([0.5, -2.0]).reshape(2, 1, 1), (2, 3, 4))
    made = check(raw, tmp_path, delta, "shift folded into Conv 'a'")
    assert operators(made) == operators(raw)


def test_a_convolution_may_have_any_number_of_outputs(tmp_path: Path) -> None:
    body = "a = Conv(x, wide, b5) g = GlobalAveragePool(a) f = Flatten(g) y = MatMul(f, w5)"
    raw = model(body, inputs="float[n, 2, 3, 4] x")
    check(raw, tmp_path, np.full((2, 3, 4), 0.5), "shift folded into Conv 'a'")


def test_a_constant_that_others_read_stays_as_it_is_for_them(tmp_path: Path) -> None:
    raw = model(
        "y = Add(x, c) other = Mul(v, c)", "float[n, 3] x, float[n, 3] v", "float[n, 3] y, float[n, 3] other"
    )
    made = check(raw, tmp_path, DELTA, "shift folded into Add 'y'", {"v": EXACT})
    np.testing.assert_array_equal(run(made, {"x": EXACT, "v": EXACT})["other"], EXACT * ROW)
    np.testing.assert_array_equal(
        run(made, {"x": EXACT, "v": EXACT})["y"], (EXACT + DELTA + ROW).astype("f4")
    )


@pytest.mark.parametrize(
    "body",
    [
        "m = Mul(x, c) y = Neg(m)",
        "r = Relu(x) y = Add(r, c)",
        "m = Div(c, x) y = Add(m, c)",
        "m = Mul(x, x) y = Add(m, c)",
        "y = Add(x, x)",
        "d = Add(x, deep) y = Squeeze(d, first)",
        "m = Mul(x, deep) d = Add(m, deep) y = Squeeze(d, first)",
        "f = Flatten <axis: int = 0> (x) s = Add(f, h) y = Reshape(s, flat)",
        "t = Transpose(x) s = Add(t, h) y = Transpose(s)",
        "t = Transpose <perm: ints = [1, 0]> (x) s = Add(t, h) y = Transpose(s)",
        "m = Div(x, zero) l = Clip(m, h, top) y = Add(l, c)",
    ],
)
def test_a_shift_is_added_in_front_of_what_does_not_take_it(body: str, tmp_path: Path) -> None:
    raw = model(body)
    made = check(raw, tmp_path, DELTA, "shift added to input 'x'")
    assert operators(made) == ["Add", *operators(raw)]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "MatMul", "Gemm"])
def test_a_shift_is_not_put_into_what_comes_from_outside(op: str, tmp_path: Path) -> None:
    given = CONSTANTS["w"].astype("f4") if op in ("MatMul", "Gemm") else ROW
    sizes = ", ".join(map(str, given.shape))
    raw = model(f"m = {op}(x, given) y = Add(m, c)", f"float[n, 3] x, float[{sizes}] given")
    check(raw, tmp_path, DELTA, "shift added to input 'x'", {"given": given})


def test_a_shift_is_not_put_into_what_differs_between_samples(tmp_path: Path) -> None:
    for body in ("y = Add(x, twos)", "m = Mul(x, twos) y = Add(m, c)"):
        raw = model(body, "float[2, 3] x", "float[2, 3] y")
        check(raw, tmp_path, DELTA, "shift added to input 'x'", {"x": EXACT[:2]})


@pytest.mark.parametrize("outside", ["scale", "bias", "var"])
def test_a_normalisation_whose_numbers_come_from_outside_takes_no_shift(outside: str, tmp_path: Path) -> None:
    named = {"scale": "c", "bias": "b", "mean": "b", "var": "small"} | {outside: outside}
    raw = model(
        f"y = BatchNormalization(x, {', '.join(named.values())})", f"float[n, 3] x, float[3] {outside}"
    )
    given = {outside: np.array([0.5, 1.0, 2.0], "f4")}
    check(raw, tmp_path, DELTA, "shift added to input 'x'", given)


BIAS_AND_WEIGHT = "float[3] bias, float[3, 2, 2, 2] weight"
CHANNELS = np.broadcast_to(np.array([0.5, -2.0]).reshape(2, 1, 1), (2, 3, 4))


@pytest.mark.parametrize(
    ("body", "delta"),
    [
        (f"a = Conv <pads: ints = [1, 0, 0, 0]> (x, k) {MEAN}", CHANNELS),
        (f'a = Conv <auto_pad: string = "SAME_UPPER"> (x, k) {MEAN}', CHANNELS),
        ("a = Conv <group: int = 2> (x, split) g = GlobalAveragePool(a) f = Flatten(g) y = MatMul(f, w4)",
         CHANNELS),
        (f"a = Conv(x, weight) {MEAN}", CHANNELS),
        (f"a = Conv(x, weight, b) {MEAN}", CHANNELS),
        (f"a = Conv(x, k, bias) {MEAN}", CHANNELS),
        (f"a = Conv(x, k) {MEAN}", eighths(2, 3, 4)),
        ("a = BatchNormalization(x, s2, s2, s2, s2) g = GlobalAveragePool(a) f = Flatten(g) y = MatMul(f, v)",
         eighths(2, 3, 4)),
    ],
)  # fmt: skip
def test_a_shift_of_images_is_added_in_front_of_what_cannot_hold_it(
    body: str, delta: np.ndarray, tmp_path: Path
) -> None:
    raw = model(body, f"float[n, 2, 3, 4] x, {BIAS_AND_WEIGHT}")
    more = {"bias": eighths(3).astype("f4"), "weight": eighths(3, 2, 2, 2).astype("f4")}
    check(raw, tmp_path, delta, "shift added to input 'x'", more)


def test_no_shift_is_in_what_is_shown_or_is_an_operator_of_others(tmp_path: Path) -> None:
    raw = model("i = Identity(x) y = Add(i, c)", outputs="float[n, 3] y, float[n, 3] i")
    check(raw, tmp_path, DELTA, "shift added to input 'x'")
    raw = model("s = of.ours.Add(x, c) y = Neg(s)")
    product = [helper.make_node("Mul", ["a", "b"], ["p"])]
    opset = [helper.make_opsetid("", 17)]
    raw.functions.append(helper.make_function("of.ours", "Add", ["a", "b"], ["p"], product, opset))
    check(raw, tmp_path, DELTA, "shift added to input 'x'")


def test_a_shift_that_differs_between_rows_is_not_in_a_product_of_them(tmp_path: Path) -> None:
    raw = model(
        "p = MatMul(x, w) y = ReduceMax <axes: ints = [1], keepdims: int = 0> (p)", "float[n, 2, 3] x"
    )
    check(raw, tmp_path, eighths(2, 3), "shift added to input 'x'")


@pytest.mark.parametrize(
    ("norm", "takes"),
    [
        ("y = BatchNormalization(x, c, b, b, v)", True),
        ("y = BatchNormalization <training_mode: int = 1> (x, c, b, b, v)", False),
        ("y, m, s = BatchNormalization(x, c, b, b, v)", False),
    ],
)
def test_a_mean_of_the_batch_itself_would_take_the_shift_away_again(norm: str, takes: bool) -> None:
    made = editor(norm, constants="float[3] c = {1, 2, 3}, float[3] b = {0, 1, 2}, float[3] v = {1, 1, 4}")
    x = made.graph.inputs[0]
    done = shift_input(made, x, SHIFT)
    assert done == ("shift folded into BatchNormalization 'y'" if takes else "shift added to input 'x'")


def test_what_may_be_missing_is_not_the_input_that_is_shifted() -> None:
    made = editor("y = Neg(x)")
    optional = ir.OptionalType(ir.TensorType(ir.DataType.FLOAT))
    made.graph.inputs.append(ir.Value(name="o", type=optional, shape=ir.Shape([None, 3])))
    assert shifted_input(made, (3,), None) is made.graph.inputs[0]


BRANCHES = """{start} y = If(yes) <
    then_branch = yes_graph () => (float[n, 3] a) {{ {then} }},
    else_branch = no_graph () => (float[n, 3] d) {{ d = Identity(twos) }}>"""


@pytest.mark.parametrize(
    ("start", "then", "done"),
    [
        ("", "a = Add(x, c)", "shift added to input 'x'"),
        ("p = MatMul(x, w)", "i = Constant <value = float[3] {1, 2, 4}> () a = Add(p, i)",
         "shift folded into Gemm 'p'"),
    ],
)  # fmt: skip
def test_no_constant_within_a_branch_takes_a_shift(start: str, then: str, done: str, tmp_path: Path) -> None:
    raw = model(BRANCHES.format(start=start, then=then), "float[n, 3] x, bool yes", "float[n, 3] y")
    check(raw, tmp_path, DELTA, done, {"x": EXACT[:2], "yes": np.array(True)})


POOLED = "a = GlobalAveragePool(x) y = Flatten(a)"
IMAGES = np.random.default_rng(4).normal(size=(4, K, 2, 2)).astype("f4")


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
        "FLOAT [n,3]; the artifact is of another model, or another input takes it: fuse_onnx(input_name=)"
    )


def test_where_several_inputs_fit_one_must_be_named(tmp_path: Path) -> None:
    model = graph("y = Sub(a, b)", "float[n, 3] a, float[n, 3] b")
    with pytest.raises(FuseError) as raised:
        fused(model, tmp_path, SHIFT)
    assert str(raised.value) == (
        "several inputs take the shift: 'a' FLOAT [n,3], 'b' FLOAT [n,3]; name one: fuse_onnx(input_name=)"
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


def test_a_shift_by_zeros_changes_nothing(tmp_path: Path) -> None:
    model = graph("y = Neg(x)")
    report, made = fused(model, tmp_path, InputShift(np.zeros(K)))
    assert report.done == ("the shift is zero: nothing to do",)
    assert operators(made) == ["Neg"]
    report, made = fused(model, tmp_path, InputShift(np.zeros(K), 0.0, 1.0))
    assert report.done == ("shift added to input 'x' and clipped",)
    np.testing.assert_array_equal(run(made, {"x": X})["y"], -np.clip(X, 0, 1))
