"""The tail of a graph: where its logits are, what leads from them to the output, and who else reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact

from calib_serve import LogitMap
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor, constant, describe
from calib_serve.fuse.onnx.kinds import as_fitted
from calib_serve.fuse.onnx.quantized import KeepPrecision, scale_quantized
from calib_serve.fuse.onnx.reference import of_logits
from calib_serve.fuse.onnx.tail import Tail, find_tail
from calib_serve.scores import Outputs

THREE = artifact(LogitMap.temperature(2.0), classes=3, outputs=None)
HEAD = '<ir_version: 10, opset_import: ["" : 17, "ai.onnx.ml" : 3]>'


def editor(body: str, inputs: str = "float[n, 3] x", outputs: str = "float[n, 3] y") -> Editor:
    text = f"{HEAD} g ({inputs}) => ({outputs}) {{ {body} }}"
    return Editor(ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))))


def tail_of(
    body: str, *, outputs: str = "float[n, 3] y", inputs: str = "float[n, 3] x", **more: object
) -> Tail:
    options = {"output": "y", "outputs": None, "artifact": THREE} | more
    return find_tail(editor(body, inputs, outputs), **options)  # type: ignore[arg-type]


def operators(tail: Tail) -> list[str]:
    return [node.op_type for node in tail.path]


@pytest.mark.parametrize(
    ("body", "logits", "path"),
    [
        ("y = Identity(x)", "x", ["Identity"]),
        ("z = Neg(x) y = Identity(z)", "z", ["Identity"]),
        ("y = Neg(x)", "y", []),
        ("z = Neg(x) y = Softmax(z)", "z", ["Softmax"]),
        ("z = Neg(x) p = Softmax(z) y = Identity(p)", "z", ["Softmax", "Identity"]),
        ("z = Neg(x) p = Softmax(z) c = Cast <to: int = 11> (p) y = Cast <to: int = 1> (c)", "z",
         ["Softmax", "Cast", "Cast"]),
        ("z = Neg(x) one = Constant <value = float {1.0}> () p = Softmax(z) y = Mul(p, one)", "z",
         ["Softmax", "Mul"]),
        ("z = Neg(x) two = Constant <value = float {2.0}> () p = Softmax(z) y = Mul(p, two)", "y", []),
        ("z = Neg(x) ones = Constant <value = float[3] {1.0, 1.0, 1.0}> () p = Softmax(z) y = Mul(p, ones)",
         "y", []),
        ("z = Softmax(x) y = Mul(z, z)", "y", []),
        ("y = Constant <value = float[2, 3] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> ()", "y", []),
        ("z = Neg(x) y = LogSoftmax <axis: int = 1> (z)", "z", ["LogSoftmax"]),
    ],
)  # fmt: skip
def test_the_logits_are_behind_what_passes_scores_on(body: str, logits: str, path: list[str]) -> None:
    found = tail_of(body)
    assert (found.logits.name, found.output.name, operators(found)) == (logits, "y", path)
    assert found.normalised == any("Softmax" in op for op in path)
    assert (found.activation in found.path) == found.normalised
    found.check()


@pytest.mark.parametrize(
    ("op", "axis", "shape", "right"),
    [
        ("Softmax", -1, "[n, 3]", True), ("Softmax", 1, "[n, 3]", True), ("Softmax", 0, "[n, 3]", False),
        ("LogSoftmax", -1, "[n, 3]", True), ("Softmax", -1, "[n, 3, 1, 1]", False),
        ("Softmax", 1, "[n, 3, 1, 1]", True), ("Softmax", -2, "[n, 3]", False),
    ],
)  # fmt: skip
def test_an_activation_is_over_the_classes(op: str, axis: int, shape: str, right: bool) -> None:
    def find() -> Tail:
        body = f"z = Neg(x) y = {op} <axis: int = {axis}> (z)"
        made = editor(body, f"float{shape} x", f"float{shape} y")
        return find_tail(made, output="y", outputs=None, artifact=THREE)

    if right:
        assert operators(find()) == [op]
        return
    with pytest.raises(FuseError, match=rf"{op} .*works on axis {axis} of \d, not over the classes"):
        find()


@pytest.mark.parametrize(
    ("body", "inputs", "outputs", "said"),
    [
        ("y = Neg(x)", "float[n, 4] x", "float[n, 4] y", "for 3 classes, but 'y' has 4"),
        ("y = Cast <to: int = 7> (x)", "float[n, 3] x", "int64[n, 3] y", "are INT64, not floating point"),
        ("y = Neg(x)", "float[n, 3, 2] x", "float[n, 3, 2] y", r"not \(n, K\); name another output"),
        ("y = Neg(x)", "float[3] x", "float[3] y", r"not \(n, K\); name another output"),
        ("y = Neg(x)", "float[n, 3] x", "float y", r"shape .*not \(n, K\)"),
    ],
)
def test_scores_of_another_kind_are_refused(body: str, inputs: str, outputs: str, said: str) -> None:
    with pytest.raises(FuseError, match=said):
        tail_of(body, inputs=inputs, outputs=outputs)


@pytest.mark.parametrize(
    ("outputs", "chosen"),
    [
        ("float[n, 3] y, float[n, 4] z", "y"), ("int64[n, 3] y, float[n, 3] z", "z"),
        ("float[n, 3] y, float[n] z", "y"), ("float[n, 3, 1] y, float[n, 5] z", "y"),
        ("float[n, 3] y, float[n, 3] z", "several outputs may hold the scores"),
        ("float[n, k] y, float[n, 3] z", "several outputs may hold the scores"),
        ("float[n, 4] y, float[n, 1] z", r"no output of the graph can hold scores of 3 classes, \(n, 3\)"),
    ],
)  # fmt: skip
def test_the_one_output_that_may_hold_scores_is_chosen(outputs: str, chosen: str) -> None:
    made = editor("y = Neg(x) z = Neg(x)", outputs=outputs)
    if len(chosen) == 1:
        assert find_tail(made, output=None, outputs=None, artifact=THREE).output.name == chosen
    else:
        with pytest.raises(FuseError, match=chosen):
            find_tail(made, output=None, outputs=None, artifact=THREE)
    with pytest.raises(FuseError, match=r"no output 'w'; .* is one of \['y', 'z'\]"):
        find_tail(made, output="w", outputs=None, artifact=THREE)


def test_what_others_read_of_the_way_out_stays_theirs() -> None:
    made = editor(
        "z = Neg(x) p = Softmax(z) y = Identity(p) d = ArgMax <axis: int = 1> (p) other = Neg(p)",
        outputs="float[n, 3] y, int64[n, 1] d, float[n, 3] other, float[n, 3] p",
    )
    found = find_tail(made, output="y", outputs=None, artifact=THREE)
    found.check()
    assert operators(found) == ["Softmax", "Identity"]
    assert found.activation is found.path[0]
    assert [value.name for value in made.graph.outputs] == ["y", "d", "other", "p"]
    readers = {node.op_type: node.inputs[0] for node in made.graph if node.op_type in ("ArgMax", "Neg")}
    ours = found.path[0].outputs[0]
    assert readers["ArgMax"] is ours, "a decision follows the calibrated scores"
    assert readers["Neg"] is not ours
    assert made.graph.outputs[3] is not ours
    assert found.strangers(ours) == []
    assert found.strangers(found.logits) == ["Softmax 'p'"], "the other's own"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tail: replace(tail, path=tail.path[1:]),
        lambda tail: replace(tail, path=tail.path[:-1]),
        lambda tail: replace(tail, logits=tail.output),
        lambda tail: replace(tail, output=tail.logits),
        lambda tail: replace(tail, activation=tail.logits.producer()),
    ],
)
def test_a_tail_that_is_none_is_refused(spoil: Callable[[Tail], Tail]) -> None:
    found = tail_of("z = Neg(x) p = Softmax(z) y = Identity(p)")
    found.check()
    with pytest.raises(FuseError, match=r"fusing went wrong: .*; please report this graph"):
        spoil(found).check()


QUANTIZED = (
    "s = Constant <value = float {0.00390625}> () zero = Constant <value = uint8 {0}> () "
    "z = Neg(x) p = Softmax(z) q = QuantizeLinear(p, s, zero) y = DequantizeLinear(q, s, zero)"
)


def test_quantised_scores_are_kept_precise() -> None:
    made = editor(QUANTIZED)
    found = find_tail(made, output="y", outputs=None, artifact=THREE)
    assert operators(found) == ["Softmax", "QuantizeLinear", "DequantizeLinear"]
    one = KeepPrecision()
    one.requires(found)
    with pytest.raises(FuseError, match="the scores are still quantised"):
        one.ensures(found)
    after, said = one.call(made, found)
    one.ensures(after)
    assert operators(after) == ["Softmax"]
    assert "behind Softmax" in said
    assert "not rounded to its old steps of 0.0039" in said
    assert [node.op_type for node in made.graph] == ["Neg", "Softmax"]
    for bare in (after, tail_of("z = Neg(x) y = Identity(z)")):
        with pytest.raises(FuseError, match="no scores are quantised"):
            one.requires(bare)


LAYER = (
    "ws = Constant <value = float {0.5}> () "
    "w8 = Constant <value = int8[3, 3] {1, 2, 3, 4, 5, 6, 7, 8, 9}> () "
    "bs = Constant <value = float {0.25}> () b8 = Constant <value = int32[3] {1, 2, 3}> () "
    "w = DequantizeLinear(w8, ws) b = DequantizeLinear(b8, bs) "
)


def scales(made: Editor) -> list[float]:
    found = [constant(node.inputs[1]) for node in made.graph if node.op_type == "DequantizeLinear"]
    return [float(one) for one in found if one is not None]


@pytest.mark.parametrize(
    ("body", "name", "after"),
    [
        (LAYER + "y = Gemm(x, w, b)", "DequantizeLinear 'w'", [0.25, 0.125]),
        (LAYER + "y = MatMul(x, w)", "DequantizeLinear 'w'", [0.25, 0.25]),
        (LAYER + "m = MatMul(x, w) y = Add(m, b)", "DequantizeLinear 'w'", [0.25, 0.125]),
        (LAYER + "m = MatMul(x, w) y = Add(b, m)", "DequantizeLinear 'w'", [0.25, 0.125]),
        (LAYER + "y = DequantizeLinear(w8, ws)", "DequantizeLinear 'y'", [0.5, 0.25, 0.25]),
        (LAYER + "y = Neg(x)", None, [0.5, 0.25]),
        (LAYER + "y = Gemm(x, w, x)", None, [0.5, 0.25]),
        (LAYER + "y = Gemm(w, x, b)", None, [0.5, 0.25]),
        (LAYER + "m = MatMul(x, w) n = Neg(m) y = Add(m, b)", None, [0.5, 0.25]),
        (LAYER + "n = Neg(w) y = MatMul(x, w)", None, [0.5, 0.25]),
        (LAYER + "n = Neg(b) y = Gemm(x, w, b)", None, [0.5, 0.25]),
    ],
)
def test_a_quantised_layer_is_scaled_by_its_scales_alone(
    body: str, name: str | None, after: list[float]
) -> None:
    made = editor(body)
    assert scale_quantized(made, made.graph.outputs[0], 0.5) == name
    assert scales(made) == after


def test_a_bias_in_floating_point_is_scaled_as_well() -> None:
    made = editor(LAYER + "c = Constant <value = float[3] {1.0, 2.0, 3.0}> () y = Gemm(x, w, c)")
    assert scale_quantized(made, made.graph.outputs[0], 0.5) == "DequantizeLinear 'w'"
    bias = constant(made.graph.outputs[0].producer().inputs[2])  # type: ignore[union-attr]
    assert bias is not None
    assert bias.tolist() == [0.5, 1.0, 1.5]
    assert describe(made.graph.outputs[0].producer()) == "Gemm 'y'"  # type: ignore[arg-type]


def test_parity_is_measured_by_the_largest_logit() -> None:
    plan = SimpleNamespace(artifact=THREE, outputs="logits", returns="same")
    for largest, scale in ((0.5, 1.0), (2.0, 1.0), (20.0, 10.0), (-20.0, 10.0)):
        logits = np.array([[0.1, largest, 0.2]])
        assert of_logits(logits, THREE.probs(logits), plan, 1e-6).scale == scale  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fitted_on", "kind", "one_column", "said"),
    [
        ("logit", "logits", False, "fitted on logit, and the graph has logits"),
        ("logits", "probability", True, "fitted on logits, and the graph has probability"),
        ("logits", "logit", True, "fitted on logits, and the graph has one logit a sample"),
    ],
)
def test_what_an_artifact_was_not_fitted_on_is_named(
    fitted_on: Outputs, kind: Outputs, one_column: bool, said: str
) -> None:
    scaled = LogitMap(np.array([2.0, 0.5]), np.array([0.1, 0.0]))
    fitted = artifact(scaled, classes=2, outputs=fitted_on)
    with pytest.raises(FuseError, match=said):
        as_fitted(fitted, kind, activated=False, one_column=one_column)
