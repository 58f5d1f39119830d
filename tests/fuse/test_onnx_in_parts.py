"""Activations that a graph computes in parts, and classifier operators, are calibrated on their logits."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact, output_steps
from fuse_graphs import run
from fuse_texts import graph
from onnx import TensorProto, helper

from calib_serve.artifact import LogitMap
from calib_serve.fuse import fuse_onnx
from calib_serve.fuse.onnx._in_parts import write_activations_whole
from calib_serve.scores import log_softmax, sigmoid, to_logits

K = 3
X = (4 * np.random.default_rng(0).normal(size=(200, K))).astype("f4")
Z = X.astype("f8") @ np.array([[1, 2, 0], [0, 1, -1], [2, 0, 1]])
LAYER = "w = Constant <value = float[3, 3] {1, 2, 0, 0, 1, -1, 2, 0, 1}> () z = MatMul(x, w) "
ONE = (
    "w = Constant <value = float[3, 1] {1, 0.5, 2}> () z = MatMul(x, w) o = Constant <value = float {1}> () "
)
AXES = "a = Constant <value = int64[1] {-1}> () "
SUMMED = AXES + "m = ReduceMax <axes = [-1]> (z) d = Sub(z, m) e = Exp(d) s = ReduceSum(e, a) "
LOG_SOFTMAX = {
    "of sums": SUMMED + "l = Log(s) y = Sub(d, l)",
    "unshifted": AXES + "e = Exp(z) s = ReduceSum(e, a) l = Log(s) y = Sub(z, l)",
    "one operator": "l = ReduceLogSumExp <axes = [-1]> (z) y = Sub(z, l)",
    "of a softmax": "p = Softmax(z) y = Log(p)",
    "of a quotient": SUMMED + "q = Div(e, s) y = Log(q)",
    "turned round": "l = ReduceLogSumExp <axes = [-1]> (z) n = Sub(l, z) y = Neg(n)",
}
SOFTMAX = {
    "of sums": SUMMED + "y = Div(e, s)",
    "by a reciprocal": SUMMED + "r = Reciprocal(s) y = Mul(e, r)",
    "of logarithms": "l = ReduceLogSumExp <axes = [-1]> (z) d = Sub(z, l) y = Exp(d)",
    "of a softmax": "l = LogSoftmax(z) y = Exp(l)",
}
SIGMOID = {
    "of a quotient": "o = Constant <value = float {1}> () h = Neg(z) e = Exp(h) u = Add(o, e) y = Div(o, u)",
    "of a softplus": "h = Neg(z) s = Softplus(h) n = Neg(s) y = Exp(n)",
}


def fused(body: str, folder: Path, fitted, **options):
    onnx.save(graph(body), folder / "raw.onnx")
    report = fuse_onnx(folder / "raw.onnx", fitted, folder / "out.onnx", unproven=True, **options)
    return report, run(str(folder / "out.onnx"), {"x": X})["y"].astype("f8")


IN_PARTS = [
    *(
        ("LogSoftmax", *one)
        for one in product(LOG_SOFTMAX.values(), ["temperature", "vector", "dirichlet", "top"])
    ),
    *(("Softmax", *one) for one in product(SOFTMAX.values(), ["temperature", "vector", "matrix"])),
    *(("Sigmoid", *one) for one in product(SIGMOID.values(), ["temperature", "vector"])),
]


@pytest.mark.parametrize(("form", "parts", "kind"), IN_PARTS)
def test_an_activation_in_parts_is_calibrated_before_it(
    form: str, parts: str, kind: str, tmp_path: Path
) -> None:
    steps = output_steps(kind, K, np.random.default_rng(0))
    fitted = artifact(*steps, classes=K, outputs="label_logits" if form == "Sigmoid" else "logits")
    report, got = fused(LAYER + parts, tmp_path, fitted)
    assert f"'y' is computed as {form} of 'z': written as that" in report.done
    np.testing.assert_allclose(np.exp(got) if form == "LogSoftmax" else got, fitted.of_logits(Z), atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        SUMMED + "l = Log(s) y = Add(d, l)", SUMMED + "u = Mul(s, s) y = Div(e, u)", "e = Exp(z) y = Neg(e)",
        "p = Softmax <axis = 0> (z) y = Log(p)", "y = Softmax(z)", "p = Softmax(z) h = Neg(p) y = Neg(h)",
    ],
)  # fmt: skip
def test_what_computes_something_else_or_is_whole_stays(body: str) -> None:
    model = graph(LAYER + body)
    before = model.SerializeToString()
    assert write_activations_whole(model) == []
    assert model.SerializeToString() == before


COLUMNS = " q = Sub(o, p) y = Concat <axis = 1> (q, p)"


@pytest.mark.parametrize(
    ("parts", "form"),
    [
        ("p = Sigmoid(z)" + COLUMNS, "Softmax"),
        ("h = Neg(z) e = Exp(h) u = Add(o, e) p = Reciprocal(u)" + COLUMNS, "Softmax"),
        (
            "k = Sub(z, z) c = Concat <axis = 1> (k, z) l = ReduceLogSumExp <axes = [-1]> (c) y = Sub(c, l)",
            "LogSoftmax",
        ),
    ],
)
def test_two_columns_of_one_sigmoid_are_calibrated_on_its_logit_whatever_is_rounded(
    parts: str, form: str, tmp_path: Path
) -> None:
    fitted = artifact(LogitMap.temperature(4.0), classes=2, outputs="probabilities")
    onnx.save(graph(ONE + parts, outputs="float[n, 2] y"), tmp_path / "raw.onnx")
    report = fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", unproven=True)
    assert f"'y' is computed as {form} of two columns of 'z': written as that" in report.done
    x = (12 * np.random.default_rng(1).normal(size=(400, 3))).astype("f4")
    z = x.astype("f8") @ [1, 0.5, 2]
    assert z.min() < -60
    got = run(str(tmp_path / "out.onnx"), {"x": x})["y"]
    got = np.exp(got) if form == "LogSoftmax" else got
    np.testing.assert_allclose(got[:, 1], sigmoid(z / 4), atol=1e-5)


def classifier(
    post: str, rows: np.ndarray, bias: list[float], names, *behind, x: str = "float"
) -> onnx.ModelProto:
    """A LinearClassifier of a row a class, as scikit-learn's exporters write it."""
    key = "classlabels_strings" if isinstance(names[0], str) else "classlabels_ints"
    node = helper.make_node(
        "LinearClassifier", ["x"], ["label", "s" if behind else "y"], domain="ai.onnx.ml",
        coefficients=rows.ravel().tolist(), intercepts=bias, post_transform=post, **{key: names},
    )  # fmt: skip
    kinds = {"float": TensorProto.FLOAT, "double": TensorProto.DOUBLE, "int64": TensorProto.INT64}
    ends = [
        helper.make_tensor_value_info(
            "label", TensorProto.STRING if key.endswith("s") and "str" in key else TensorProto.INT64, ["n"]
        ),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", len(names)]),
    ]
    given = [helper.make_tensor_value_info("x", kinds[x], ["n", rows.shape[1]])]
    made = helper.make_graph([node, *behind], "g", given, ends)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(made, opset_imports=imports, ir_version=8)


NORMALISED = helper.make_node("Normalizer", ["s"], ["y"], domain="ai.onnx.ml", norm="L1")
ROWS = np.array([[1, 2, 0], [0, 1, -1], [2, 0, 1]], "f4")
BIAS = [0.5, 0.0, -1.0]


@pytest.mark.parametrize("kind", ["temperature", "dirichlet"])
@pytest.mark.parametrize(("post", "names"), [("SOFTMAX", ["a", "b", "c"]), ("LOGISTIC", [1, 2, 4])])
def test_a_linear_classifier_is_calibrated_on_its_logits_and_its_label_follows(
    post: str, names, kind: str, tmp_path: Path
) -> None:
    onnx.save(classifier(post, ROWS, BIAS, names, NORMALISED), tmp_path / "raw.onnx")
    fitted = artifact(*output_steps(kind, K, np.random.default_rng(0)), classes=K, outputs="probabilities")
    report = fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", unproven=True)
    got = run(str(tmp_path / "out.onnx"), {"x": X})
    z = X.astype("f8") @ ROWS.T + BIAS
    logs = log_softmax(z if post == "SOFTMAX" else -np.logaddexp(0, -z))
    want = fitted.of_logits(np.maximum(logs, np.log(np.finfo("f4").tiny)))
    np.testing.assert_allclose(got["y"], want, atol=1e-5)
    np.testing.assert_array_equal(got["label"], np.array(names)[want.argmax(axis=1)])
    assert {s.name: s.status for s in report.statuses} == {"label": "follows", "y": "calibrated"}


@pytest.mark.parametrize("kind", ["float", "double", "int64"])
def test_a_binary_logistic_head_is_right_where_runtimes_round_its_probabilities_to_0(
    kind: str, tmp_path: Path
) -> None:
    row = np.array([[3, -1, 2]], "f4")
    onnx.save(
        classifier("LOGISTIC", np.concatenate([-row, row]), [-0.25, 0.25], [0, 1], x=kind),
        tmp_path / "raw.onnx",
    )
    fitted = artifact(LogitMap.temperature(4.0), classes=2, outputs="probabilities")
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", unproven=True)
    x = (6 * X).astype({"float": "f4", "double": "f8", "int64": "i8"}[kind])
    z = x.astype("f8") @ row[0] + 0.25
    raw = run(str(tmp_path / "raw.onnx"), {"x": x})["y"][:, 1]
    assert (raw[z < -20] == 0).all()
    assert (z < -20).any()
    got = run(str(tmp_path / "out.onnx"), {"x": x})
    right = fitted.of_logits(to_logits(np.stack([sigmoid(-z), sigmoid(z)], axis=1), "probabilities"))
    np.testing.assert_allclose(got["y"][:, 1], sigmoid(z / 4), atol=1e-5)
    np.testing.assert_allclose(got["y"], right, atol=1e-5)
    np.testing.assert_array_equal(got["label"], (z > 0).astype(int))
