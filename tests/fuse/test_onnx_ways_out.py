"""The way from the logits to the output: which nodes pass scores on, who follows, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import IMPORTS, editor, fused, graph, operators, value

from calib_serve import LogitMap
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.tail import Tail, find_tail

TWO = artifact(LogitMap.temperature(2.0), classes=2, outputs=None)
THREE = artifact(LogitMap.temperature(2.0), classes=3, outputs=None)
X = np.random.default_rng(1).normal(size=(20, 3)).astype("f4")


def found(made: Editor, **options: object) -> Tail:
    return find_tail(made, **({"output": "y", "outputs": None, "artifact": THREE} | options))  # type: ignore[arg-type]


# --- what passes scores on --------------------------------------------------------------------------

STEPS = "s = Constant <value = float {0.00390625}> () zero = Constant <value = uint8 {0}> () z = Neg(x) "
ONES = "one = Constant <value = float[1, 1] {1.0}> () z = Neg(x) p = Softmax(z) "


@pytest.mark.parametrize(
    ("body", "logits", "path"),
    [
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
def test_only_what_leaves_scores_as_they_are_is_on_the_way(body: str, logits: str, path: list[str]) -> None:
    one = found(editor(body))
    assert (one.logits.name, operators(one.path)) == (logits, path)


def test_scores_of_a_loop_without_a_count_are_calibrated(tmp_path: Path) -> None:
    body = (
        "go = Constant <value = bool {1}> () y = Loop <body = turn (int64 i, bool on, float[n, 3] state) => "
        "(bool stop, float[n, 3] next) { stop = Not(on) next = Neg(state) }> ( , go, x)"
    )
    report, made = fused(graph(body), tmp_path, LogitMap.temperature(2.0))
    assert report.done == (
        "logit map put in as one Mul (the logits come from Loop 'y', not from a Gemm or MatMul)",
    )
    np.testing.assert_allclose(run(made, {"x": X})["y"], -X / 2, atol=1e-6)


# --- classifiers of scikit-learn's exports ----------------------------------------------------------


@pytest.mark.parametrize(
    "maker",
    [
        "l, z = ai.onnx.ml.LinearClassifier <coefficients: floats = [1.0]> (x)",
        "l, z = ai.onnx.ml.SVMClassifier (x)",
        "l, z = ai.onnx.ml.TreeEnsembleClassifier (x)",
        "z = ai.onnx.ml.TreeEnsemble (x)",
        "z = ai.onnx.ml.Normalizer (x)",
    ],
)
@pytest.mark.parametrize(
    ("end", "path"),
    [
        ("y = Identity(z)", ["Identity"]),
        ("y = Cast <to: int = 1> (z)", ["Cast"]),
        ("y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [4, 5, 6]> (z)", ["ZipMap"]),
    ],
)
def test_scores_of_a_classifier_operator_are_probabilities_unless_told(
    maker: str, end: str, path: list[str]
) -> None:
    imports = IMPORTS.replace('"ai.onnx.ml" : 3', '"ai.onnx.ml" : 5')
    made = editor(f"{maker} {end}", imports=imports)
    z = value(made, "z")
    z.type = z.shape = None  # as where inference knows nothing of the operator
    one = found(made)
    assert (one.logits.name, operators(one.path), one.outputs) == ("z", path, "probabilities")
    assert (z.dtype, z.shape) == (ir.DataType.FLOAT, ir.Shape((None, 3)))
    assert found(made, outputs="logits").outputs == "logits"


# --- the activation ---------------------------------------------------------------------------------


# --- which output, of which shape -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "kinds", "chosen"),
    [
        (3, "float[n, k] y, float[n, 4] z", "y"), (3, "float[n, 3, 5] y, float[n, 3] z", "z"),
        (3, "float[n, 3, 1, 1] y, float[n, 1] z", "y"), (3, "float16[n, 3] y, int32[n, 3] z", "y"),
        (3, "bfloat16[n, 3] y, float[3] z", "y"), (3, "double[n, 3] y, float z", "y"),
        (2, "float[n, 1] y, float[n, 3] z", "y"), (2, "float[n, 2] y, float[n, 4] z", "y"),
        (2, "float[n, 1, 1] y, float[n, 0] z", "y"),
    ],
)  # fmt: skip
def test_the_output_whose_shape_fits_the_classes_is_chosen(classes: int, kinds: str, chosen: str) -> None:
    made = editor("y = of.ours.Body(x) z = of.ours.Body(x)", outputs=kinds)
    fitted = THREE if classes == 3 else TWO
    assert found(made, output=None, artifact=fitted).output.name == chosen


def test_a_map_a_row_is_chosen_beside_a_label() -> None:
    made = editor(
        "l, p = ai.onnx.ml.TreeEnsembleClassifier (x) y = ai.onnx.ml.ZipMap (p)",
        outputs="int64[n] l, float y",
    )
    y = value(made, "y")
    y.type = y.shape = None  # onnx-ir has no maps
    assert found(made, output=None).output is y


# --- who reads the scores ---------------------------------------------------------------------------


def test_decisions_follow_the_calibrated_scores_and_others_do_not() -> None:
    made = editor(
        "z = Neg(x) y = Softmax(z) k = Constant <value = int64[1] {1}> () a = ArgMax(y) h = Hardmax(y) "
        "t, i = TopK(y, k) o = of.ours.ArgMax(y) e = Exp(y)",
        outputs="float[n, 3] y, int64[n, 1] a, float[n, 3] h, float[n, 1] t, int64[n, 1] o, float[n, 3] e",
    )
    one = found(made)
    assert operators(one.readers(one.output)) == ["ArgMax", "Hardmax", "TopK"]
    old = next(node for node in made.graph if node.op_type == "Exp").inputs[0]
    assert old is not None
    assert operators(one.readers(old)) == []
    assert one.strangers(old) == ["ArgMax 'o'", "Exp 'e'"]
