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
from calib_serve.errors import FuseError
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.one_column import WidenColumn
from calib_serve.fuse.onnx.tail import Tail, find_tail
from calib_serve.metrics import softmax

TWO = artifact(LogitMap.temperature(2.0), classes=2, outputs=None)
THREE = artifact(LogitMap.temperature(2.0), classes=3, outputs=None)
OF_LABELS = artifact(LogitMap.temperature(2.0), classes=3, outputs="label_logits")
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


def test_integers_from_outside_are_no_scores_behind_a_cast() -> None:
    one = found(editor("y = Cast <to: int = 1> (x)", "int64[n, 3] x"))
    assert (one.logits.name, one.path) == ("y", ())


def test_a_square_is_no_product_with_1_though_it_be_1() -> None:
    made = editor("one = Constant <value = float[1, 1] {1.0}> () y = Mul(one, one)", outputs="float[1, 1] y")
    one = found(made, artifact=TWO)
    assert (one.logits.name, one.path) == ("y", ())


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


def test_a_factor_of_1_that_adds_a_dimension_is_not_passed_over() -> None:
    made = editor(
        "one = Constant <value = float[1, 1, 1] {1.0}> () z = Neg(x) p = Softmax(z) y = Mul(p, one)",
        outputs="float[1, n, 3] y",
    )
    with pytest.raises(FuseError) as error:
        found(made)
    assert str(error.value) == (
        "the scores 'y' behind output 'y' have shape [1,n,3], not (n, K); name another output, --output-name "
        "(output_name=), or export the model with a Flatten before them"
    )


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


def test_what_is_known_of_a_classifier_s_scores_is_kept() -> None:
    made = editor("z = ai.onnx.ml.Normalizer (x) y = Identity(z)", "double[n, k] x", "float[n, k] y")
    z = value(made, "z")
    z.dtype, z.shape = ir.DataType.DOUBLE, ir.Shape(("n", "k"))
    assert found(made).logits.dtype == ir.DataType.DOUBLE
    assert z.shape == ir.Shape(("n", "k"))


@pytest.mark.parametrize("op", ["of.ours.Normalizer", "ai.onnx.ml.Scaler", "Neg"])
def test_other_operators_say_nothing_of_their_scores(op: str) -> None:
    assert found(editor(f"y = {op} (x)")).outputs == "logits"


# --- the activation ---------------------------------------------------------------------------------


def test_a_sigmoid_is_of_one_column_and_normalises_nothing_until_it_is_a_softmax() -> None:
    made = editor("z = Neg(x) y = Sigmoid(z)", "float[n, 1] x", "float[n, 1] y")
    one = found(made, artifact=TWO)
    assert (operators(one.path), one.outputs) == (["Sigmoid"], "probability")
    assert (one.normalised, one.one_column) == (False, True)
    after, _ = WidenColumn().call(made, one)
    assert (after.outputs, after.normalised, after.one_column) == ("probability", True, False)
    bare = found(editor("y = Neg(x)", "float[n, 1] x", "float[n, 1] y"), artifact=TWO)
    assert (bare.outputs, bare.normalised, bare.one_column) == ("logit", False, True)
    several = found(editor("y = Neg(x)"))
    assert (several.outputs, several.normalised, several.one_column) == ("logits", False, False)
    both = found(editor("y = Softmax(x)", "float[n, 2] x", "float[n, 2] y"), artifact=TWO)
    assert (both.outputs, both.normalised, both.one_column) == ("probabilities", True, False)


def test_a_sigmoid_has_no_axis_to_be_wrong() -> None:
    made = editor("z = Neg(x) y = Sigmoid(z)", "float[n, 3, 1, 1] x", "float[n, 3, 1, 1] y")
    one = found(made, artifact=OF_LABELS)
    assert (operators(one.path), one.outputs) == (["Sigmoid"], "label_probabilities")


def test_an_activation_that_states_no_axis_is_over_the_last() -> None:
    assert operators(found(editor("z = Neg(x) y = Softmax(z)")).path) == ["Softmax"]
    with pytest.raises(FuseError) as error:
        found(editor("z = Neg(x) y = Softmax(z)", "float[n, 3, 1, 1] x", "float[n, 3, 1, 1] y"))
    assert str(error.value) == (
        "Softmax 'y' works on axis -1 of 4, not over the classes of (n, K) logits; name another output: "
        "--output-name (output_name=)"
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("z = of.ours.Body(x) y = Softmax(z)",
         "the scores 'z' are of unknown type, not floating point; name another output: --output-name "
         "(output_name=)"),
        ("z = of.ours.Body(x) y = Softmax <axis: int = 0> (z)",
         "Softmax 'y' works on axis 0 of None, not over the classes of (n, K) logits; name another output: "
         "--output-name (output_name=)"),
        ("i = of.ours.Sizes(x) z = Reshape(x, i) y = Softmax(z)",
         "the shape of 'z' is not known, and no run on generated inputs tells that it is (n, K); give inputs "
         "to run on: --inputs (inputs=)"),
    ],
)  # fmt: skip
def test_logits_of_which_nothing_is_known_are_refused(body: str, said: str) -> None:
    with pytest.raises(FuseError) as error:
        found(editor(body))
    assert str(error.value) == said


@pytest.mark.parametrize("op", ["QLinearSoftmax", "QLinearSigmoid"])
def test_an_activation_in_integers_needs_somebody_to_say_what_it_makes(op: str) -> None:
    attributes = "<axis: int = 1, opset: int = 13>" if op == "QLinearSoftmax" else ""
    body = (
        f"{STEPS} q = QuantizeLinear(z, s, zero) p = com.microsoft.{op} {attributes} (q, s, zero, s, zero) "
        "y = DequantizeLinear(p, s, zero)"
    )
    with pytest.raises(FuseError) as error:
        found(editor(body))
    assert str(error.value) == (
        f"{op} 'p' gives probabilities in 256 steps: quantise in the QDQ format, or leave it out of the "
        "quantisation; or say --outputs probabilities (outputs=)"
    )
    one = found(editor(body), outputs="probabilities")
    assert (one.logits.name, one.path, one.outputs) == ("y", (), "probabilities")


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


@pytest.mark.parametrize(("fitted", "width"), [(TWO, 3), (THREE, 1), (THREE, 2), (THREE, 4)])
def test_scores_of_another_number_of_classes_are_refused(fitted: object, width: int) -> None:
    classes = 2 if fitted is TWO else 3
    with pytest.raises(FuseError) as error:
        found(editor("y = Neg(x)", f"float[n, {width}] x", f"float[n, {width}] y"), artifact=fitted)
    assert str(error.value) == (
        f"the artifact is for {classes} classes, but 'y' has {width}; fit one for this model or name another "
        "output: --output-name (output_name=)"
    )


def test_scores_that_do_not_say_how_many_they_are_may_be_the_classes() -> None:
    one = found(editor("y = of.ours.Body(x)", outputs="float[n, k] y"))
    assert (one.logits.name, one.outputs) == ("y", "logits")


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


def test_a_graph_output_that_shows_the_logits_is_named(tmp_path: Path) -> None:
    model = graph("z = Neg(x) y = Softmax(z)", outputs="float[n, 3] y, float[n, 3] z")
    report, made = fused(model, tmp_path, LogitMap.temperature(2.0), output_name="y")
    assert report.done == ("logit map put in as one Mul (the graph output 'z' also reads the logits)",)
    got = run(made, {"x": X})
    np.testing.assert_allclose(got["y"], softmax(-X / 2), atol=1e-6)
    np.testing.assert_array_equal(got["z"], -X)


def test_new_scores_are_read_by_all_but_those_that_make_them() -> None:
    made = editor(
        "z = Neg(x) y = Softmax(z) a = ArgMax(y) b = ArgMax(y)",
        outputs="float[n, 3] y, int64[n, 1] a, int64[n, 1] b",
    )
    one = found(made)
    first, second = (node for node in made.graph if node.op_type == "ArgMax")
    new = made.node("Abs", [one.output])
    after = one.replace_scores(made, one.output, new, {first})
    assert (first.inputs[0], second.inputs[0], after.output) == (one.output, new, new)
    assert [v.name for v in made.graph.outputs] == ["y", "a", "b"]
    assert made.graph.outputs[0] is new


def test_new_scores_on_the_way_leave_the_output_as_it_is() -> None:
    made = editor("z = Neg(x) p = Softmax(z) y = Identity(p)")
    one = found(made)
    old = one.path[0].outputs[0]
    new = made.node("Abs", [old])
    assert one.replace_scores(made, old, new, ()) is one
    assert one.path[1].inputs[0] is new
    assert made.graph.outputs[0] is one.output


def test_a_way_to_what_is_no_output_of_the_graph_is_refused() -> None:
    made = editor("z = Neg(x) y = Softmax(z)")
    one = found(made)
    made.graph.outputs.clear()
    with pytest.raises(
        FuseError, match=r"^fusing went wrong: the output is another; please report this graph$"
    ):
        one.check()
