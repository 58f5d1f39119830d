"""Where each step goes in a graph: what it costs in nodes, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import KINDS, artifact, head, output_steps
from fuse_graphs import Builder, run
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from calib_serve import Head, InputShift, LogitMap
from calib_serve.errors import FuseError, InputError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.files import read
from calib_serve.fuse.onnx.graph import Normalization, fuse_onnx
from calib_serve.fuse.onnx.logit_map import MapLogits
from calib_serve.fuse.onnx.outputs import OpenScores
from calib_serve.fuse.onnx.plan import Request, carry_out, make_plan
from calib_serve.metrics import log_softmax, softmax

K = 3
F4 = np.dtype("f4")


def info(name: str, *shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def builder() -> Builder:
    return Builder(F4, np.random.default_rng(0))


def linear(b: Builder, x: str = "x", width: int = 6) -> str:
    return b.node("Gemm", x, b.normal(width, K), b.normal(K))


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "raw.onnx"
    onnx.save(model, path)
    return path


def fused(model: onnx.ModelProto, folder: Path, *steps, classes: int = K, **options):
    """The report and the fused model, checked in full."""
    out = folder / "fused.onnx"
    report = fuse_onnx(saved(model, folder), artifact(*steps, classes=classes), out, **options)
    onnx.checker.check_model(str(out), full_check=True)
    return report, onnx.load(out)


def rows(n: int = 5, width: int = 6) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, width)).astype("f4")


FOLDS = {"temperature", "vector", "matrix", "bias", "scaled bias"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", ["", "Softmax", "LogSoftmax"])
def test_maps_of_logits_take_no_node_whatever_follows(kind, tail, tmp_path):
    b = builder()
    y = linear(b)
    y = b.node(tail, y, axis=-1) if tail else y
    steps = output_steps(kind, K, np.random.default_rng(0))
    report, _ = fused(b.model([info("x", "n", 6)], [info(y, "n", K)]), tmp_path, *steps)
    assert (report.nodes_after == report.nodes_before) == (kind in FOLDS)
    assert bool(report.folded) == (kind in FOLDS | {"mixture", "classwise"})  # these two hold a temperature


def test_one_node_takes_the_map_where_the_weights_are_not_constant(tmp_path):
    for kind in FOLDS:
        b = builder()
        y = b.node("MatMul", "x", "w")
        model = b.model([info("x", "n", 6), info("w", 6, K)], [info(y, "n", K)])
        steps = output_steps(kind, K, np.random.default_rng(0))
        report, calibrated = fused(model, tmp_path, *steps)
        assert report.nodes_after == report.nodes_before + 1, kind
        assert f"logit map put in as one {calibrated.graph.node[-1].op_type} (" in report.done[0]


def test_a_bias_fits_into_a_matmul_alone_by_making_it_a_gemm(tmp_path):
    b = builder()
    y = b.node("MatMul", "x", b.normal(6, K))
    steps = output_steps("matrix", K, np.random.default_rng(0))
    report, model = fused(b.model([info("x", "n", 6)], [info(y, "n", K)]), tmp_path, *steps)
    assert report.nodes_after == report.nodes_before
    assert [n.op_type for n in model.graph.node] == ["Gemm"]


def test_a_second_output_with_raw_logits_stays_raw(tmp_path):
    b = builder()
    z = linear(b)
    p = b.node("Softmax", z, axis=-1)
    model = b.model([info("x", "n", 6)], [info(p, "n", K), info(z, "n", K)])
    report, calibrated = fused(model, tmp_path, LogitMap.temperature(3.0), output_name=p)
    raw, got = run(model, {"x": rows()}), run(calibrated, {"x": rows()})
    np.testing.assert_array_equal(got[z], raw[z])
    np.testing.assert_allclose(got[p], softmax(raw[z] / 3), atol=1e-6)
    assert report.nodes_after == report.nodes_before + 1
    assert "graph output" in report.done[0]


def test_several_outputs_that_may_hold_scores_must_be_named(tmp_path):
    b = builder()
    z = linear(b)
    model = b.model([info("x", "n", 6)], [info(z, "n", K), info(b.node("Neg", z), "n", K)])
    with pytest.raises(FuseError, match=r"several outputs may hold the scores.*name one"):
        fused(model, tmp_path, LogitMap.temperature(2.0))
    with pytest.raises(FuseError, match=r"no output 'nope'; --output-name .* is one of"):
        fused(model, tmp_path, LogitMap.temperature(2.0), output_name="nope")


def test_a_softmax_that_other_outputs_read_is_copied_not_changed(tmp_path):
    b = builder()
    p = b.node("Softmax", linear(b), axis=-1)
    entropy = b.node("ReduceSum", b.node("Mul", p, b.node("Log", p)), b.number([1], "i8"), keepdims=0)
    model = b.model([info("x", "n", 6)], [info(p, "n", K), info(entropy, "n")])
    report, calibrated = fused(model, tmp_path, LogitMap.temperature(2.0), output_name=p)
    raw, got = run(model, {"x": rows()}), run(calibrated, {"x": rows()})
    np.testing.assert_array_equal(got[entropy], raw[entropy])
    assert np.abs(got[p] - raw[p]).max() > 0.01
    assert report.nodes_after == report.nodes_before + 2


def test_a_label_output_follows_what_is_calibrated(tmp_path):
    b = builder()
    z = linear(b)
    label = b.node("ArgMax", z, axis=1, keepdims=0)
    model = b.model([info("x", "n", 6)], [info(z, "n", K), info(label, "n", kind=TensorProto.INT64)])
    step = LogitMap(np.eye(K), np.array([5.0, 0, 0]))
    report, calibrated = fused(model, tmp_path, step, output_name=z)
    got = run(calibrated, {"x": rows(50)})
    np.testing.assert_array_equal(got[label], got[z].argmax(axis=1))
    assert (got[label] != run(model, {"x": rows(50)})[label]).any()
    assert report.nodes_after == report.nodes_before


# --- the shift ---------------------------------------------------------------------------------


def image_model(start, shape=(3, 8, 8), conv: dict | None = None):
    """A classifier of images behind whatever ``start`` puts first."""
    b = builder()
    x = start(b)
    y = b.node("Conv", x, b.normal(4, shape[0], 3, 3, scale=0.3), **(conv or {"pads": [1] * 4}))
    y = b.node("Flatten", b.node("GlobalAveragePool", b.node("Relu", y)))
    z = linear(b, y, 4)
    return b.model([info("x", "n", *shape)], [info(z, "n", K)])


def channel(*values: float) -> np.ndarray:
    return np.array(values).reshape(1, -1, 1, 1)


STARTS = {
    "sub div": lambda b: b.node(
        "Div", b.node("Sub", "x", b.number(channel(0.4, 0.5, 0.6))), b.number(channel(0.2, 0.2, 0.3))
    ),
    "mul add": lambda b: b.node("Add", b.node("Mul", "x", b.number(1 / 255)), b.number(channel(1, 2, 3))),
    "div sub": lambda b: b.node("Sub", b.node("Div", "x", b.number(255.0)), b.number(0.5)),
    "one minus": lambda b: b.node("Sub", b.number(1.0), "x"),
    "transpose": lambda b: b.node(
        "Transpose",
        b.node("Sub", b.node("Transpose", "x", perm=[0, 2, 3, 1]), b.number([0.1, 0.2, 0.3])),
        perm=[0, 3, 1, 2],
    ),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_shift_disappears_into_the_normalisation_a_graph_starts_with(start, tmp_path):
    delta = 0.2 * np.random.default_rng(3).normal(size=(3, 8, 8))
    report, _ = fused(image_model(STARTS[start]), tmp_path, InputShift(delta), LogitMap.temperature(2.0))
    assert report.nodes_after == report.nodes_before
    assert len(report.folded) == 2
    assert report.max_abs_diff < 1e-6


def test_without_a_normalisation_a_shift_is_one_add_and_a_clip_one_more(tmp_path):
    delta = 0.2 * np.random.default_rng(3).normal(size=(3, 8, 8))
    model = image_model(lambda b: "x")
    report, calibrated = fused(model, tmp_path, InputShift(delta))
    assert report.nodes_after == report.nodes_before + 1
    assert calibrated.graph.node[0].op_type == "Add"
    report, calibrated = fused(model, tmp_path, InputShift(delta, 0.0, 1.0))
    assert [n.op_type for n in calibrated.graph.node[:2]] == ["Add", "Clip"]


def batch_norm(b: Builder) -> str:
    numbers = [b.number(n) for n in ([1.0, 2, 3], [0.1, 0.2, 0.3], [0.5, 0.4, 0.3], [1.0, 2, 3])]
    return b.node("BatchNormalization", "x", *numbers)


@pytest.mark.parametrize(
    ("start", "conv", "per_channel", "folds"),
    [
        (batch_norm, {"pads": [1] * 4}, True, True),
        (batch_norm, {"pads": [1] * 4}, False, False),  # its numbers are per channel
        (lambda b: "x", {"pads": [1] * 4}, True, False),  # the padding has no shift in it
        (lambda b: "x", {"pads": [0] * 4}, True, True),
        (lambda b: "x", {"pads": [0] * 4}, False, False),  # it differs from place to place
        (lambda b: "x", {"auto_pad": "SAME_UPPER"}, True, False),
    ],
)
def test_a_shift_goes_into_a_bias_only_where_that_is_exact(start, conv, per_channel, folds, tmp_path):
    rng = np.random.default_rng(3)
    delta = (
        np.broadcast_to(rng.normal(size=(3, 1, 1)), (3, 8, 8)) if per_channel else rng.normal(size=(3, 8, 8))
    )
    report, _ = fused(image_model(start, conv=conv), tmp_path, InputShift(0.3 * delta))
    assert (report.nodes_after == report.nodes_before) == folds


def test_a_shift_goes_into_a_convolution_as_large_as_the_image(tmp_path):
    b = builder()
    y = b.node("Flatten", b.node("Conv", "x", b.normal(6, 2, 4, 4)))
    model = b.model([info("x", "n", 2, 4, 4)], [info(linear(b, y), "n", K)])
    report, _ = fused(model, tmp_path, InputShift(np.random.default_rng(0).normal(size=(2, 4, 4))))
    assert report.nodes_after == report.nodes_before
    assert "Conv" in report.folded[0]


@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
def test_a_shift_goes_into_the_bias_of_a_first_dense_layer(op, tmp_path):
    b = builder()
    flat = b.node("Flatten", "x")
    y = (
        linear(b, flat, 12)
        if op == "Gemm"
        else b.node("Add", b.normal(K), b.node("MatMul", flat, b.normal(12, K)))
    )
    model = b.model([info("x", "n", 3, 4)], [info(b.node("Tanh", y), "n", K)])
    report, _ = fused(model, tmp_path, InputShift(np.random.default_rng(0).normal(size=(3, 4))))
    assert report.nodes_after == report.nodes_before


def test_a_shift_tells_the_size_that_a_graph_leaves_free(tmp_path):
    b = builder()
    z = linear(b, b.node("Flatten", b.node("GlobalAveragePool", b.node("Relu", "x"))), 3)
    model = b.model([info("x", "n", 3, "h", "w")], [info(z, "n", K)])
    report, _ = fused(model, tmp_path, InputShift(0.1 * np.random.default_rng(0).normal(size=(3, 20, 5))))
    assert report.nodes_after == report.nodes_before + 1


def test_masks_and_ids_beside_the_shifted_input_get_numbers_too(tmp_path):
    b = builder()
    masked = b.node("Where", "mask", "x", b.number(0.0))
    y = b.node("Add", masked, b.node("Gather", b.normal(9, 6), "ids"))
    more = [info("mask", "n", 6, kind=TensorProto.BOOL), info("ids", "n", kind=TensorProto.INT64)]
    model = b.model([info("x", "n", 6), *more], [info(linear(b, y), "n", K)])
    report, _ = fused(model, tmp_path, InputShift(np.ones(6)), LogitMap.temperature(2.0))
    assert report.nodes_after == report.nodes_before + 1


def test_an_input_with_two_uses_gets_one_add_for_both(tmp_path):
    b = builder()
    y = b.node("Add", b.node("Sub", "x", b.number(0.5)), b.node("Relu", "x"))
    model = b.model([info("x", "n", 6)], [info(linear(b, y), "n", K)])
    report, _ = fused(model, tmp_path, InputShift(np.full(6, 0.25)))
    assert report.nodes_after == report.nodes_before + 1


def test_a_normalisation_comes_in_front_with_the_shift_in_its_mean(tmp_path):
    delta = 0.2 * np.random.default_rng(3).normal(size=(3, 8, 8))
    normal = Normalization(np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225]))
    model = image_model(lambda b: "x")
    report, calibrated = fused(model, tmp_path, InputShift(delta), normalization=normal)
    assert [n.op_type for n in calibrated.graph.node[:2]] == ["Sub", "Div"]
    assert report.nodes_after == report.nodes_before + 2
    x = np.random.default_rng(0).random((4, 3, 8, 8)).astype("f4")
    mean, std = normal.shaped(4)
    name = model.graph.output[0].name
    expected = run(model, {"x": ((x - mean) / std + delta).astype("f4")})[name]
    np.testing.assert_allclose(run(calibrated, {"x": x})[name], expected, atol=1e-5)
    with pytest.raises(FuseError, match=r"3 channels, --with-normalization .* 2"):
        fused(model, tmp_path, normalization=Normalization(np.zeros(2), np.ones(2)))


# --- heads, features and names -----------------------------------------------------------------


def test_a_head_of_one_layer_takes_the_old_ones_place(tmp_path):
    b = builder()
    y = b.node("Softmax", linear(b, b.node("Relu", "x")), axis=1)
    model = b.model([info("x", "n", 6)], [info(y, "n", K)])
    step = head(6, K, 1, np.random.default_rng(0))
    report, calibrated = fused(model, tmp_path, step, LogitMap.temperature(2.0))
    assert report.nodes_after == report.nodes_before
    expected = softmax(step(np.maximum(rows(), 0)) / 2)
    np.testing.assert_allclose(run(calibrated, {"x": rows()})[y], expected, atol=1e-6)
    assert len(calibrated.graph.initializer) == 2  # the old weights are gone


def test_features_can_be_named_where_the_last_layer_is_no_linear_one(tmp_path):
    b = builder()
    features = b.node("Relu", "x", output="features")
    z = b.node("Tanh", linear(b, features))
    model = b.model([info("x", "n", 6)], [info(z, "n", K)])
    step = head(6, K, 2, np.random.default_rng(0))
    with pytest.raises(FuseError, match=r"Tanh.*name its input"):
        fused(model, tmp_path, step)
    _, calibrated = fused(model, tmp_path, step, features="features")
    np.testing.assert_allclose(run(calibrated, {"x": rows()})[z], step(np.maximum(rows(), 0)), atol=1e-5)
    assert [n.op_type for n in calibrated.graph.node] == ["Relu", "Gemm", "Relu", "Gemm"]
    with pytest.raises(FuseError, match="no tensor 'nope'"):
        fused(model, tmp_path, step, features="nope")


def test_a_head_of_features_before_the_last_layers_own_leaves_that_layer(tmp_path):
    b = builder()
    features = b.node("Relu", "x", output="features")
    z = linear(b, b.node("Tanh", features))
    model = b.model([info("x", "n", 6)], [info(z, "n", K)])
    step = head(6, K, 1, np.random.default_rng(0))
    _, calibrated = fused(model, tmp_path, step, features="features")
    np.testing.assert_allclose(run(calibrated, {"x": rows()})[z], step(np.maximum(rows(), 0)), atol=1e-5)
    assert [n.op_type for n in calibrated.graph.node] == ["Relu", "Gemm"]


def test_a_head_for_other_features_is_refused(tmp_path):
    b = builder()
    model = b.model([info("x", "n", 6)], [info(linear(b), "n", K)])
    with pytest.raises(FuseError, match=r"reads features \(n, 7\), but 'x'"):
        fused(model, tmp_path, Head((np.zeros((K, 7)),), (np.zeros(K),)))


def test_a_tied_weight_keeps_its_other_use(tmp_path):
    b = builder()
    w = b.normal(6, 6)
    z = b.node("MatMul", b.node("Tanh", b.node("MatMul", "x", w)), w)
    model = b.model([info("x", "n", 6)], [info(z, "n", 6)])
    report, calibrated = fused(model, tmp_path, LogitMap.temperature(2.0), classes=6)
    np.testing.assert_allclose(run(calibrated, {"x": rows()})[z], run(model, {"x": rows()})[z] / 2, rtol=1e-5)
    assert report.nodes_after == report.nodes_before


def test_all_outputs_say_everything_and_keep_the_others(tmp_path):
    b = builder()
    z = linear(b)
    norm = b.node("ReduceMax", "x", keepdims=1)
    model = b.model([info("x", "n", 6)], [info(norm, 1, 1), info(z, "n", K)])
    report, calibrated = fused(model, tmp_path, LogitMap.temperature(2.0), returns="all", output_name=z)
    assert report.outputs == (norm, "logits", "probabilities", "confidence", "predicted", "bin")
    got = run(calibrated, {"x": rows()})
    np.testing.assert_allclose(got["logits"], run(model, {"x": rows()})[z] / 2, atol=1e-5)
    np.testing.assert_allclose(got["probabilities"], softmax(got["logits"]), atol=1e-6)


def test_names_of_ours_that_the_graph_has_already_are_moved_or_refused(tmp_path):
    b = builder()
    inner = b.node("Relu", "x", output="probabilities")
    z = linear(b, inner)
    _, calibrated = fused(
        b.model([info("x", "n", 6)], [info(z, "n", K)]), tmp_path, LogitMap.temperature(2.0), returns="all"
    )
    assert run(calibrated, {"x": rows()})["probabilities"].shape == (5, K)
    b = builder()
    z = linear(b, "bin")
    with pytest.raises(FuseError, match="another input or output called 'bin'"):
        fused(b.model([info("bin", "n", 6)], [info(z, "n", K)]), tmp_path, returns="all")


# --- types, opsets, quantisation ---------------------------------------------------------------


def test_bfloat16_is_fused_and_measured_by_the_reference_evaluator(tmp_path):
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.normal(size=(6, K)).astype(ml_dtypes.bfloat16), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    bf16 = TensorProto.BFLOAT16
    graph = helper.make_graph(
        [node], "g", [info("x", "n", 6, kind=bf16)], [info("y", "n", K, kind=bf16)], [w]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    report, calibrated = fused(model, tmp_path, LogitMap.temperature(2.0))
    assert report.engine == "onnx.reference"
    assert report.nodes_after == 1
    assert calibrated.graph.initializer[0].data_type == bf16


def test_half_precision_inside_of_a_float_graph_is_allowed_its_own_rounding(tmp_path):
    b = builder()
    half = {"to": TensorProto.FLOAT16}
    x = b.node("Cast", b.node("Div", b.node("Sub", "x", b.number(0.3)), b.number(0.7)), **half)
    w, bias = (b.number(np.random.default_rng(0).normal(size=s), "f2") for s in ((6, K), (K,)))
    z = b.node("Cast", b.node("Gemm", x, w, bias), to=TensorProto.FLOAT)
    model = b.model([info("x", "n", 6)], [info(b.node("Softmax", z, axis=1), "n", K)])
    delta = np.random.default_rng(1).normal(size=6)
    report, _ = fused(model, tmp_path, InputShift(delta), LogitMap.temperature(2.0), samples=200)
    assert report.max_abs_diff <= report.tolerance
    assert report.tolerance >= 1e-2


def test_outputs_that_do_not_exist_are_refused(tmp_path):
    b = builder()
    model = b.model([info("x", "n", 6)], [info(linear(b), "n", K)])
    with pytest.raises(InputError, match=r"--returns .* must be"):
        fused(model, tmp_path, returns="everything")
    with pytest.raises(InputError, match=r"--outputs .* must be"):
        fused(model, tmp_path, outputs="log_probabilities")


def test_a_pass_that_breaks_its_word_is_caught_by_its_own_check(tmp_path):
    """Each pass says what it needs and what it leaves, and both are checked while it runs."""

    class Forgetful(MapLogits):
        def call(self, editor, tail):
            stray = editor.node("Mul", [tail.logits, editor.number(0.5, ir.DataType.FLOAT, "scale")])
            return replace(tail, logits=stray), "a node that nothing reads"

    b = builder()
    z = linear(b)
    model = b.model([info("x", "n", 6)], [info(b.node("Softmax", z), "n", K)])
    editor = Editor(read(saved(model, tmp_path)))
    step = LogitMap.temperature(2.0)
    plan = make_plan(editor, artifact(step, classes=K), Request())
    with pytest.raises(FuseError, match="went wrong: the way out is broken"):
        carry_out(editor, replace(plan, passes=(Forgetful(step),)))
    with pytest.raises(FuseError, match="went wrong: probabilities were to get an activation"):
        carry_out(editor, replace(plan, passes=(OpenScores(),)))


def quantized(b: Builder, output: bool) -> str:
    """A last layer as static quantisation leaves it: QDQ around int8 weights, perhaps around the logits."""
    scale, zero = b.number(0.05), b.number(0, "i1")
    x = b.node("DequantizeLinear", b.node("QuantizeLinear", "x", scale, zero), scale, zero)
    weight = b.number(np.random.default_rng(0).integers(-100, 100, (6, K)), "i1")
    w = b.node("DequantizeLinear", weight, b.number(0.02), b.number(0, "i1"))
    bias = b.node("DequantizeLinear", b.number([100, -50, 30], "i4"), b.number(0.05 * 0.02))
    z = b.node("Gemm", x, w, bias)
    if not output:
        return z
    q = b.node("QuantizeLinear", z, b.number(0.1), b.number(0, "i1"))
    return b.node("DequantizeLinear", q, b.number(0.1), b.number(0, "i1"))


@pytest.mark.parametrize("output", [False, True])
def test_a_temperature_goes_into_a_quantised_tails_scales(output, tmp_path):
    b = builder()
    z = quantized(b, output)
    model = b.model([info("x", "n", 6)], [info(z, "n", K)])
    report, calibrated = fused(model, tmp_path, LogitMap.temperature(2.0))
    assert report.nodes_after == report.nodes_before
    raw, got = run(model, {"x": rows()})[z], run(calibrated, {"x": rows()})[z]
    np.testing.assert_allclose(got, raw / 2, atol=1e-5)
    weights = [
        i for i in calibrated.graph.initializer if i.data_type == TensorProto.INT8 and i.dims == [6, K]
    ]
    assert len(weights) == 1  # still int8


@pytest.mark.parametrize("shared", [False, True])
def test_a_quantised_matmul_with_a_float_bias_and_perhaps_a_shared_weight(shared, tmp_path):
    b = builder()
    weight = b.number(np.random.default_rng(0).integers(-100, 100, (6, K)), "i1")
    w = b.node("DequantizeLinear", weight, b.number(0.02), b.number(0, "i1"))
    z = b.node("Add", b.node("MatMul", "x", w), b.number([1.0, -2.0, 0.5]))
    outputs = [info(z, "n", K), *([info(b.node("Neg", w), 6, K)] if shared else [])]
    model = b.model([info("x", "n", 6)], outputs)
    report, calibrated = fused(model, tmp_path, LogitMap.temperature(2.0), output_name=z)
    assert report.nodes_after == report.nodes_before + shared  # then the scale is not ours to change
    raw, got = run(model, {"x": rows()}), run(calibrated, {"x": rows()})
    np.testing.assert_allclose(got.pop(z), raw.pop(z) / 2, atol=1e-5)
    assert raw.keys() == got.keys()
    for name, value in raw.items():
        np.testing.assert_array_equal(got[name], value)


def test_a_matrix_stands_behind_a_quantised_tail(tmp_path):
    b = builder()
    z = quantized(b, True)
    model = b.model([info("x", "n", 6)], [info(z, "n", K)])
    report, _ = fused(model, tmp_path, *output_steps("matrix", K, np.random.default_rng(0)))
    assert report.nodes_after == report.nodes_before + 1


@pytest.mark.parametrize("opset", range(13, onnx.defs.onnx_opset_version() + 1))
def test_every_opset_from_13_on_is_written_as_it_was_read(opset, tmp_path):
    b = builder()
    model = b.model([info("x", "n", 6)], [info(linear(b), "n", K)], opset=opset)
    steps = output_steps("classwise", K, np.random.default_rng(0))
    report, calibrated = fused(model, tmp_path, InputShift(np.ones(6)), *steps, returns="all")
    assert [(o.domain, o.version) for o in calibrated.opset_import] == [("", opset)]
    if report.engine == "onnxruntime":
        got = run(calibrated, {"x": rows()})["bin"]
    else:  # newer than this onnxruntime
        got = ReferenceEvaluator(calibrated).run(["bin"], {"x": rows()})[0]
    assert got.shape == (5,)


def test_a_softmax_over_another_axis_names_the_node(tmp_path):
    b = builder()
    y = b.node("Softmax", linear(b), axis=0)
    with pytest.raises(FuseError, match=r"Softmax.*axis 0"):
        fused(b.model([info("x", "n", 6)], [info(y, "n", K)]), tmp_path, LogitMap.temperature(2.0))


def test_probabilities_without_a_softmax_must_be_said_to_be_that(tmp_path):
    b = builder()
    e = b.node("Exp", linear(b))
    total = b.node("ReduceSum", e, b.number([1], "i8"))
    p = b.node("Div", e, total)
    model = b.model([info("x", "n", 6)], [info(p, "n", K)])
    with pytest.raises(FuseError, match=r"numbers are probabilities.*--outputs probabilities"):
        fused(model, tmp_path, LogitMap.temperature(2.0))
    _, calibrated = fused(model, tmp_path, LogitMap.temperature(2.0), outputs="probabilities")
    raw = run(model, {"x": rows()})[p]
    np.testing.assert_allclose(run(calibrated, {"x": rows()})[p], softmax(np.log(raw) / 2), atol=1e-6)


def test_log_probabilities_without_a_log_softmax_stay_normalised(tmp_path):
    b = builder()
    z = linear(b)
    y = b.node("Sub", z, b.node("ReduceLogSumExp", z, axes=[1]))
    model = b.model([info("x", "n", 6)], [info(y, "n", K)])
    _, calibrated = fused(model, tmp_path, LogitMap.temperature(2.0), outputs="log_probs")
    raw = run(model, {"x": rows()})[y]
    np.testing.assert_allclose(run(calibrated, {"x": rows()})[y], log_softmax(raw / 2), atol=1e-6)


def test_what_an_activation_says_cannot_be_said_otherwise(tmp_path):
    b = builder()
    model = b.model([info("x", "n", 6)], [info(b.node("Softmax", linear(b), axis=1), "n", K)])
    with pytest.raises(FuseError, match=r"made by a Softmax: it holds probabilities"):
        fused(model, tmp_path, LogitMap.temperature(2.0), outputs="logits")


@pytest.mark.parametrize("training", [False, True])
def test_a_dropout_is_looked_through_unless_it_trains(training, tmp_path):
    b = builder()
    y = b.node("Dropout", linear(b), b.number(0.0), b.number(training, "?"))
    model = b.model([info("x", "n", 6)], [info(y, "n", K)])
    report, _ = fused(model, tmp_path, LogitMap.temperature(2.0))
    assert report.nodes_after == report.nodes_before + training


def test_an_artifact_fitted_through_a_softmax_acts_on_log_probabilities(tmp_path):
    b = builder()
    z = linear(b)
    p = b.node("Softmax", z, axis=-1)
    model = b.model([info("x", "n", 6)], [info(p, "n", K)])
    (step,) = output_steps("matrix", K, np.random.default_rng(0))
    fitted = artifact(step, classes=K, model={"outputs": "probabilities"})
    fuse_onnx(saved(model, tmp_path), fitted, tmp_path / "fused.onnx")
    raw = run(model, {"x": rows()})[p].astype("f8")
    got = run(str(tmp_path / "fused.onnx"), {"x": rows()})[p]
    np.testing.assert_allclose(got, fitted.probs(np.log(raw)), atol=1e-6)
