"""Which scores a graph returns: where its logits are, what leads from them to the output, what they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import X, editor, fused, graph, operators

from calib_serve.artifact import LogitMap
from calib_serve.core.errors import CalibServeError, FuseError, ModelError
from calib_serve.fuse.onnx._graph import Editor
from calib_serve.fuse.onnx._tail import Tail, adapt_artifact, find_tail, of_one_column
from calib_serve.scores import Outputs, softmax

OF_THREE = artifact(LogitMap.temperature(2.0), classes=3, outputs=None)


SCALE = "s = Constant <value = float {0.00390625}> () zero = Constant <value = uint8 {0}> () "
STEPS = SCALE + "z = Neg(x) "
ROWS = "rows = Constant <value = int64[2] {-1, 3}> () axis = Constant <value = int64[1] {1}> () "
ONES = "one = Constant <value = float[1, 1] {1.0}> () z = Neg(x) p = Softmax(z) "


def found(made: Editor, **options: object) -> Tail:
    return find_tail(made, **({"output": "y", "outputs": None, "artifact": OF_THREE} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "logits", "path"),
    [
        ("y = Identity(x)", "x", ["Identity"]),
        ("z = Neg(x) y = Identity(z)", "z", ["Identity"]),
        ("y = Neg(x)", "y", []),
        ("z = Neg(x) y = Flatten(z)", "y", []), (ROWS + "z = Neg(x) y = Reshape(z, rows)", "y", []),
        (ROWS + "z = Neg(x) u = Unsqueeze(z, axis) y = Squeeze(u, axis)", "y", []),
        ("z = Neg(x) p = Softmax(z) y = Flatten(p)", "z", ["Softmax", "Flatten"]),
        (ROWS + "z = Neg(x) p = Softmax(z) y = Reshape(p, rows)", "z", ["Softmax", "Reshape"]),
        (ROWS + "z = Neg(x) p = Softmax(z) u = Unsqueeze(p, axis) y = Squeeze(u, axis)", "z",
         ["Softmax", "Unsqueeze", "Squeeze"]),
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
        ("z = Neg(x) y = of.ours.Softmax(z)", "y", []), ("z = Neg(x) y = of.ours.Identity(z)", "y", []),
        ("z = Neg(x) p = Softmax(z) y = of.ours.Cast <to: int = 1> (p)", "y", []),
        ("z = Neg(x) y = ai.onnx.ml.Scaler <scale: floats = [1.0]> (z)", "y", []),
        ("i = Cast <to: int = 7> (x) y = Cast <to: int = 1> (i)", "y", []),
        (ONES + "y = Mul(p, one)", "z", ["Softmax", "Mul"]), (ONES + "y = Div(p, one)", "y", []),
        (STEPS + "q = QuantizeLinear(z, s, zero) y = DequantizeLinear(q, s, zero)", "y", []),
        (STEPS + "q = QuantizeLinear(z, s, zero) d = DequantizeLinear(q, s, zero) y = Identity(d)",
         "d", ["Identity"]),
        (STEPS + "q = QuantizeLinear(z, s, zero) d = DequantizeLinear(q, s, zero) e = Identity(d) "
         "f = QuantizeLinear(e, s, zero) g = DequantizeLinear(f, s, zero) y = Identity(g)",
         "g", ["Identity"]),
        (STEPS + "p = Softmax(z) q = com.microsoft.QuantizeLinear(p, s, zero) "
         "y = com.microsoft.DequantizeLinear(q, s, zero)",
         "z", ["Softmax", "QuantizeLinear", "DequantizeLinear"]),
        (STEPS + "p = Softmax(z) q = QuantizeLinear(p, s, zero) "
         "y = com.microsoft.DequantizeLinear(q, s, zero)", "y", []),
        (STEPS + "p = Softmax(z) q = of.ours.QuantizeLinear(p, s, zero) "
         "y = of.ours.DequantizeLinear(q, s, zero)", "y", []),
        (STEPS + "p = Softmax(z) q = Cast <to: int = 2> (p) y = DequantizeLinear(q, s, zero)", "y", []),
        (STEPS + "p = Softmax(z) q = QuantizeLinear(p, s, zero) y = Cast <to: int = 1> (q)", "y", []),
        (STEPS + "p = Softmax(z) q = QuantizeLinear(p, s, zero) i = Identity(q) "
         "y = DequantizeLinear(i, s, zero)", "y", []),
    ],
)  # fmt: skip
def test_the_logits_are_behind_what_leaves_scores_as_they_are(
    body: str, logits: str, path: list[str]
) -> None:
    one = found(editor(body))
    assert (one.logits.name, one.output.name, operators(one.path)) == (logits, "y", path)
    assert one.normalised == any("Softmax" in op for op in path)
    assert (one.activation in one.path) == one.normalised
    one.check()


@pytest.mark.parametrize(
    ("body", "columns"),
    [
        ("k = Constant <value = int64[1] {2}> () y, i = TopK(p, k)", [0, 1]),
        # All of them, but by their size and not by class.
        ("k = Constant <value = int64[1] {3}> () y, i = TopK(p, k)", [0, 1, 2]),
        ("y = ReduceMax <axes: ints = [1]> (p)", [0]),
        ("k = Constant <value = int64[1] {1}> () m, i = TopK(p, k) y = Identity(m)", [0]),
    ],
)
def test_an_output_of_the_largest_scores_alone_follows_those_that_it_is_chosen_from(
    body: str, columns: list[int], tmp_path: Path
) -> None:
    model = graph(f"z = Neg(x) p = Softmax(z) {body}", outputs=f"float[n, {len(columns)}] y")
    step = LogitMap(np.ones(3), np.array([1.0, 0.0, -1.0]))
    with pytest.raises(CalibServeError, match=r"holds the largest scores, sorted|not \(n, K\)|but '.' has 1"):
        fused(model, tmp_path, step, output_name="y")
    report, made = fused(model, tmp_path, step, output_name="p")
    assert [(one.name, one.status) for one in report.statuses if one.name != "p"] == [("y", "follows")]
    want = -np.sort(-softmax(step.bias - X), axis=1)[:, columns]
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-6)


WIDE = "k = Constant <value = int64[1] {1}> () z = Neg(x) "
BOTH = WIDE + "u = Unsqueeze(z, k) p = Softmax(u) q = Neg(u)"
LEAST = WIDE + "p = Softmax(z) q = ReduceMin <axes: ints = [1], keepdims: int = 0> (p)"


@pytest.mark.parametrize(
    ("body", "outputs", "fitted_on", "chosen"),
    [
        # The only one whose declared sizes leave room for the classes.
        (WIDE + "q = Unsqueeze(z, k) o = Concat <axis: int = 1> (z, z)", "float[n, 6] o, float[n, 1, 3] q",
         None, "q"),
        # A vector is one column, where that was fitted.
        (LEAST, "float[n] q", "probability", "q"), (LEAST, "float[n] q", "logits", None),
        # Nothing tells which of two.
        (BOTH, "float[n, 1, 3] p, float[n, 1, 3] q", None, None),
        (WIDE + "p = Softmax(z) i = Identity(p) o = Concat <axis: int = 1> (i, i)", "float[n, 6] o", None,
         None),
    ],
)  # fmt: skip
def test_an_output_is_chosen_by_its_declared_sizes_alone_and_no_tensor_inside(
    body: str, outputs: str, fitted_on: Outputs, chosen: str | None
) -> None:
    two = body == LEAST
    fitted = artifact(LogitMap.temperature(2.0), classes=2 if two else 3, outputs=fitted_on)
    made = editor(body, "float[n, 2] x" if two else "float[n, 3] x", outputs)
    if chosen is None:
        with pytest.raises(ModelError, match=r"--output-name \(output_name=\)"):
            found(made, output=None, artifact=fitted)
    else:
        assert found(made, output=None, artifact=fitted).output.name == chosen


PER_CLASS = LogitMap(np.array([0.5, 2.0]), np.array([0.1, 0.0]))


@pytest.mark.parametrize(
    ("fitted_on", "kind", "activated", "one_column", "on"),
    [
        ("logits", "logits", False, False, "logits"), ("logits", "probabilities", True, False, "logits"),
        ("logits", "log_probs", True, False, "logits"), ("logit", "logit", False, True, "logits"),
        ("logit", "probability", True, True, "logits"), ("log_probs", "log_probs", False, False, "logits"),
        ("probabilities", "log_probs", False, False, "logits"),
        ("probability", "probability", False, True, "logits"),
        ("log_probs", "probabilities", True, False, "log_probs"),
        ("probabilities", "logits", False, False, "log_probs"),
        ("probability", "probability", True, True, "log_probs"),
        ("probability", "logit", False, True, "log_probs"),
        ("logits", "probabilities", False, False, None), ("logits", "log_probs", False, False, None),
        ("logit", "probability", False, True, None), ("logits", "logit", False, True, None),
        ("logits", "probability", True, True, None), ("logit", "logits", False, False, None),
        ("logit", "probabilities", True, False, None),
    ],
)  # fmt: skip
def test_a_scale_for_each_class_acts_on_what_it_was_fitted_on(fitted_on, kind, activated, one_column, on):
    fitted = artifact(PER_CLASS, LogitMap.temperature(2.0), classes=2, outputs=fitted_on)
    if on is not None:
        acting = adapt_artifact(fitted, kind, activated=activated, one_column=one_column)
        assert [step.on for step in acting.logit_maps] == [on, "logits"]
        assert [step.weight.tolist() for step in acting.logit_maps] == [[0.5, 2.0], 0.5]
        return
    held = "one logit a sample" if one_column and (activated or kind == "logit") else kind
    with pytest.raises(FuseError) as error:
        adapt_artifact(fitted, kind, activated=activated, one_column=one_column)
    assert str(error.value) == (
        f"the artifact was fitted on {fitted_on}, and the graph has {held}: what its scale for each class "
        f"makes of them differs; fit it on these (calib-serve fit --outputs {kind}), or give it {fitted_on}"
    )


@pytest.mark.parametrize(
    ("maps", "weight", "bias"),
    [
        ((LogitMap.temperature(2.0),), 0.5, None),
        ((LogitMap(np.array(1.3), None, "log_probs"),), 1.3, None),
        ((LogitMap(np.array(1.25), np.array([0.5, 2.0])),), 1.25, 1.5),
        ((LogitMap(np.array([[1.0, 4.0], [2.0, 7.0]])), LogitMap.temperature(2.0)), 1.5, None),
        ((LogitMap(np.array([3.0, 4.0]), np.array([1.0, 0.0])), LogitMap.temperature(2.0)), 2.0, -0.5),
        ((LogitMap(np.array([3.0, 4.0]), None, "log_probs"),), None, None),
        ((LogitMap.temperature(2.0), LogitMap(np.array([3.0, 4.0]), None, "log_probs")), None, None),
        ((LogitMap(np.array(1.0), None, "log_probs", 0.05),), None, None),
        ((), 1.0, None),
    ],
)
def test_maps_of_two_logits_are_one_map_of_their_difference_where_they_are_linear(maps, weight, bias):
    one = of_one_column(artifact(*maps, classes=2))
    if weight is None:
        assert one is None
        return
    assert one.weight.tolist() == [weight]
    assert (one.bias if bias is None else one.bias.tolist()) == (bias if bias is None else [bias])
