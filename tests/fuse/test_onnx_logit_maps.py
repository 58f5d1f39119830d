"""Where a logit map goes: into the last layer, into a scale, or into one node before the activation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import LAYER, TWO, K, W, X, fused, graph, operators

from calib_serve import LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.logit_map import MapLogits
from calib_serve.fuse.onnx.tail import Tail, find_tail
from calib_serve.metrics import log_softmax, softmax

M = np.array([[1.0, 0.5, 0.0], [-0.25, 2.0, 0.125], [0.0, 1.0, 0.5]])
EACH = np.array([0.5, 2.0, -1.0])
BIAS = np.array([0.25, 0.0, -1.0])
ONES = np.ones(3)
NODES = [
    (LogitMap(np.array(0.5)), "Mul", 0.5 * X),
    (LogitMap(EACH), "Mul", EACH * X),
    (LogitMap(M), "Gemm", X @ M.T),
    (LogitMap(M, BIAS), "Gemm", X @ M.T + BIAS),
    (LogitMap(np.array(1.0), BIAS), "Add", X + BIAS),
    (LogitMap(ONES, BIAS), "Add", X + BIAS),
    (LogitMap(np.array([1.0, 1.0, 2.0]), BIAS), "BatchNormalization", [1.0, 1.0, 2.0] * X + BIAS),
    (LogitMap(np.array(0.5), BIAS), "BatchNormalization", 0.5 * X + BIAS),
    (LogitMap(EACH, BIAS), "BatchNormalization", EACH * X + BIAS),
]
"""A map, the operator that it is where it is a node, and what it makes of ``X``."""


def tail_of(body: str, shape: str = "[n, 3]") -> tuple[Editor, Tail]:
    model = onnx.shape_inference.infer_shapes(graph(body, f"float{shape} x", f"float{shape} y"))
    made = Editor(ir.from_proto(model))
    return made, find_tail(made, output="y", outputs=None, artifact=artifact(TWO, classes=K))


@pytest.mark.parametrize(("step", "op", "want"), NODES)
def test_a_map_is_one_node_where_no_layer_takes_it(
    step: LogitMap, op: str, want: np.ndarray, tmp_path: Path
) -> None:
    report, made = fused(graph("y = Identity(x)"), tmp_path, step)
    assert report.done == (f"logit map put in as one {op} ('x' is an input or a constant of the graph)",)
    assert operators(made) == [op, "Identity"]
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, rtol=1e-6, atol=1e-6)


def test_a_scale_and_a_bias_are_as_exact_as_the_type(tmp_path: Path) -> None:
    large = 1e4 * X
    _, made = fused(graph("y = Identity(x)"), tmp_path, LogitMap(EACH, BIAS))
    np.testing.assert_allclose(run(made, {"x": large})["y"], EACH * large + BIAS, rtol=5e-7, atol=1e-4)


@pytest.mark.parametrize("step", [step for step, _, _ in NODES])
@pytest.mark.parametrize("bias", ["", "b = Constant <value = float[3] {1.0, -2.0, 0.5}> () "])
def test_a_map_is_no_node_where_a_layer_takes_it(step: LogitMap, bias: str, tmp_path: Path) -> None:
    model = graph(f"{LAYER} {bias} z = Gemm(x, w{', b' if bias else ''}) y = Softmax(z)")
    report, made = fused(model, tmp_path, step)
    assert report.done == ("logit map folded into Gemm 'z'",)
    assert operators(made) == ["Gemm", "Softmax"]
    logits = X @ W + (np.array([1.0, -2.0, 0.5]) if bias else 0.0)
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(step(logits)), atol=1e-6)


@pytest.mark.parametrize("step", [LogitMap(np.array(1.0)), LogitMap(ONES, 0 * BIAS), LogitMap(np.eye(3))])
def test_a_map_that_changes_nothing_is_nothing_to_do(step: LogitMap, tmp_path: Path) -> None:
    report, made = fused(graph("z = Neg(x) y = Softmax(z)"), tmp_path, step)
    assert report.done == ("the logit map changes nothing: nothing to do",)
    assert operators(made) == ["Neg", "Softmax"]


def test_others_who_read_the_logits_are_named_and_read_the_old_ones(tmp_path: Path) -> None:
    body = LAYER + "z = Gemm(x, w) n = Neg(z) y = Softmax(z)"
    model = graph(body, outputs="float[n, 3] y, float[n, 3] z, float[n, 3] n")
    report, made = fused(model, tmp_path, TWO, output_name="y")
    assert report.done == (
        "logit map put in as one Mul (Neg 'n', the graph output 'z' also reads the logits)",
    )
    got, raw = run(made, {"x": X}), run(model, {"x": X})
    for name in ("z", "n"):
        np.testing.assert_array_equal(got[name], raw[name])
    np.testing.assert_allclose(got["y"], softmax(raw["z"] / 2), atol=1e-6)


def test_a_scale_of_logits_that_others_read_stays(tmp_path: Path) -> None:
    quantised = (
        "s = Constant <value = float {0.25}> () o = Constant <value = int8 {0}> () n = Neg(x) "
        "q = QuantizeLinear(n, s, o) z = DequantizeLinear(q, s, o) y = Softmax(z) "
    )
    report, _ = fused(graph(quantised), tmp_path, TWO)
    assert report.done == ("logit map folded into the scale of DequantizeLinear 'z'",)
    model = graph(quantised + "other = Neg(z)", outputs="float[n, 3] y, float[n, 3] other")
    report, made = fused(model, tmp_path, TWO, output_name="y")
    assert report.done == ("logit map put in as one Mul (Neg 'other' also reads the logits)",)
    np.testing.assert_array_equal(run(made, {"x": X})["other"], run(model, {"x": X})["other"])
    step = LogitMap(np.array(0.5), BIAS)
    report, _ = fused(graph(quantised), tmp_path, step)
    assert report.done == (
        "logit map put in as one BatchNormalization (the logits come from DequantizeLinear 'z', not from a "
        "Gemm or MatMul)",
    )


def test_a_product_of_features_of_unknown_shape_takes_no_bias() -> None:
    step = LogitMap(np.array(0.5), BIAS)
    made, found = tail_of(LAYER + "f = of.ours.Body(x) y = MatMul(f, w)")
    after, said = MapLogits(step).call(made, found)
    assert said == "logit map put in as one BatchNormalization (its bias has no place in a MatMul)"
    assert after.logits.producer() is list(made.graph)[-1]
    _, said = MapLogits(TWO).call(*tail_of(LAYER + "f = of.ours.Body(x) y = MatMul(f, w)"))
    assert said == "logit map folded into MatMul 'y'"


# --- log-probabilities ------------------------------------------------------------------------------

OF_LOGS = [
    (LogitMap(np.array(0.5), None, "log_probs"), "Mul"),
    (LogitMap(np.array(0.5), BIAS, "log_probs"), "BatchNormalization"),
    (LogitMap(EACH, BIAS, "log_probs"), "BatchNormalization"),
    (LogitMap(M, None, "log_probs"), "Gemm"),
    (LogitMap(ONES, BIAS, "log_probs"), "Add"),
]


@pytest.mark.parametrize(("step", "op"), OF_LOGS)
def test_a_map_of_log_probabilities_is_two_nodes_where_no_softmax_follows(step: LogitMap, op: str) -> None:
    made, found = tail_of(LAYER + "y = Gemm(x, w)")
    _, said = MapLogits(step).call(made, found)
    assert said == f"logit map put in as LogSoftmax and one {op} (it acts on log-probabilities)"
    assert [node.op_type for node in made.graph] == ["Constant", "Gemm", "LogSoftmax", op]
    model = ir.to_proto(made.model)
    np.testing.assert_allclose(
        next(iter(run(model, {"x": X}).values())), step(log_softmax(X @ W)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("step", "op"), OF_LOGS)
@pytest.mark.parametrize("end", ["Softmax", "LogSoftmax"])
def test_a_temperature_of_log_probabilities_is_one_of_logits_where_a_softmax_follows(
    end: str, step: LogitMap, op: str, tmp_path: Path
) -> None:
    model = graph(f"{LAYER} z = Gemm(x, w) y = {end}(z)")
    report, made = fused(model, tmp_path, step)
    if step.weight.ndim == 0:
        assert report.done == ("logit map folded into Gemm 'z'",)
        assert operators(made) == ["Gemm", end]
    else:
        said = f"logit map put in as LogSoftmax and one {op} (it acts on log-probabilities)"
        assert report.done == (said,)
        assert [one for one in operators(made) if one != "Constant"] == ["Gemm", "LogSoftmax", op, end]
    want = (softmax if end == "Softmax" else log_softmax)(step(log_softmax(X @ W)))
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, rtol=1e-5, atol=1e-6)


# --- what is checked --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "end", "shape", "taken"),
    [
        (TWO, "y = Neg(x)", "[n, 3, 1, 1]", True),
        (LogitMap(EACH), "y = Neg(x)", "[n, 3, 1, 1]", False),
        (LogitMap(np.array(0.5), BIAS), "y = Neg(x)", "[n, 3, 1, 1]", False),
        (LogitMap(EACH), "y = Neg(x)", "[n, 3]", True),
        (LogitMap(np.array(0.5), None, "log_probs"), "y = Neg(x)", "[n, 3, 1, 1]", False),
        (LogitMap(np.array(0.5), None, "log_probs"), "y = Neg(x)", "[n, 3]", True),
        (
            LogitMap(np.array(0.5), None, "log_probs"),
            "z = Neg(x) y = Softmax <axis: int = 1> (z)",
            "[n, 3, 1, 1]",
            True,
        ),
    ],
)
def test_a_map_of_logits_of_more_dimensions_is_a_temperature(
    step: LogitMap, end: str, shape: str, taken: bool
) -> None:
    _, found = tail_of(end, shape)
    if taken:
        MapLogits(step).requires(found)
        return
    with pytest.raises(FuseError, match=r"fusing went wrong: a logit map needs logits \(n, K\); please"):
        MapLogits(step).requires(found)


def test_a_map_leaves_the_way_out_as_it_is() -> None:
    _, found = tail_of("z = Neg(x) y = Softmax(z)")
    MapLogits(TWO).ensures(found)
    with pytest.raises(FuseError, match="fusing went wrong: the output is another"):
        MapLogits(TWO).ensures(replace(found, path=()))
