"""What the outputs of a fused graph hold: names, order, types, numbers, and what is said of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_graphs import run
from fuse_texts import TWO, K, X, graph, operators

from calib_serve import Artifact, Bins, Mixture, ProbTable
from calib_serve.fuse.onnx.graph import FuseReport, fuse_onnx
from calib_serve.metrics import sigmoid
from calib_serve.scores import Outputs

TOP = ProbTable(np.array([[0.5]]), np.array([[0.35, 0.9]]))
MIXED = Mixture([1.0, 0.5], [0.6, 0.3, 0.1])
EACH = ProbTable(np.full((K, 1), 0.4), np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.9]]))
ROWS = np.array([[0.0, 0.0, -200.0], [0.0, 0.1, 0.2], [0.0, 0.2, 1.1], [3.0, 0.0, 0.0]], "f4")
"""Of a softmax's most likely class: exactly a half, 0.37, 0.57 and 0.91."""


def fused(
    model: onnx.ModelProto, folder: Path, fitted: Artifact, **options: Any
) -> tuple[FuseReport, onnx.ModelProto]:
    onnx.save(model, folder / "raw.onnx")
    report = fuse_onnx(folder / "raw.onnx", fitted, folder / "fused.onnx", **options)
    return report, onnx.load(folder / "fused.onnx")


def of(*steps: object, outputs: Outputs = "logits", classes: int = K, **facts: Any) -> Artifact:
    return artifact(*steps, classes=classes, outputs=outputs, **facts)


def shapes(model: onnx.ModelProto) -> dict[str, list[str | int]]:
    return {
        o.name: [d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output
    }


# --- all outputs ------------------------------------------------------------------------------------


def counted(bins: int) -> Bins:
    return Bins(np.full(bins, 2), np.full(bins, 1.0), np.full(bins, 1))


@pytest.mark.parametrize(("reference", "bins"), [(None, 15), (counted(4), 4)])
def test_all_outputs_of_labels_are_one_decision_a_label(
    reference: Bins | None, bins: int, tmp_path: Path
) -> None:
    model = graph("z = Identity(x) y = Sigmoid(z)")
    fitted = of(outputs="label_logits", reference=reference)
    _, made = fused(model, tmp_path, fitted, returns="all")
    assert list(shapes(made)) == ["logits", "probabilities", "confidence", "predicted", "bin"]
    assert [len(shape) for shape in shapes(made).values()] == [2] * 5
    x = np.array([[0.0, 0.5, -0.5], [3.0, -3.0, 1.0]], "f4")
    got = run(made, {"x": x})
    np.testing.assert_array_equal(got["logits"], x)
    np.testing.assert_allclose(got["probabilities"], sigmoid(x), atol=1e-6)
    np.testing.assert_allclose(got["confidence"], sigmoid(np.abs(x)), atol=1e-6)
    assert got["predicted"].dtype == np.int64
    assert got["predicted"].tolist() == [[0, 1, 0], [1, 0, 1]]  # a half is no
    inner = np.arange(1, bins) / bins
    assert got["bin"].tolist() == (got["confidence"][..., None] > inner).sum(axis=-1).tolist()


def test_a_confidence_on_an_edge_is_in_the_bin_below_it(tmp_path: Path) -> None:
    ends = np.linspace(0, 1, 11)[[4, 6, 7]]
    table = ProbTable(np.array([[0.45, 0.6]]), ends[None])
    model = graph("z = Log(x) y = Softmax(z)", "double[n, 3] x", "double[n, 3] y")
    x = np.array([[0.4, 0.3, 0.3], [0.5, 0.25, 0.25], [0.9, 0.05, 0.05]])
    fitted = of(table, reference=counted(10))
    _, made = fused(model, tmp_path, fitted, returns="all", inputs={"x": x})
    got = run(made, {"x": x})
    assert (got["confidence"].tolist(), got["bin"].tolist()) == (ends.tolist(), [3, 5, 6])
    table = ProbTable(np.full((K, 1), 0.5), np.stack([1 - ends, [0.5, *ends[1:]]], axis=1))
    model = graph("z = Neg(x) y = Sigmoid(z)", "double[n, 3] x", "double[n, 3] y")
    fitted = of(table, reference=counted(10), outputs="label_logits")
    _, made = fused(model, tmp_path, fitted, returns="all")
    got = run(made, {"x": -np.ones((1, K))})
    assert (got["confidence"].tolist(), got["bin"].tolist()) == ([[0.5, *ends[1:]]], [[4, 5, 6]])


def test_a_label_s_table_is_looked_up_in_single_precision_for_a_half_precision_model(tmp_path: Path) -> None:
    table = ProbTable(np.full((K, 1), 0.50005), np.tile([[0.25, 0.75]], (K, 1)))
    model = graph("z = Neg(x) y = Sigmoid(z)", "float16[n, 3] x", "float16[n, 3] y")
    x = np.array([[-0.0004, 0.0, 2.0]], "f2")
    assert sigmoid(0.0004) > 0.50005 > float(np.float16(sigmoid(0.0004)))
    _, made = fused(model, tmp_path, of(table, outputs="label_logits"))
    got = onnx.reference.ReferenceEvaluator(made).run(["y"], {"x": x})
    assert np.asarray(got[0]).tolist() == [[0.75, 0.25, 0.25]]


# --- decisions of the graph's own -------------------------------------------------------------------


def test_the_best_class_follows_a_table_wherever_its_node_stands(tmp_path: Path) -> None:
    body = "z = Neg(x) best = ArgMax <axis: int = 1> (z) y = Softmax(z) hot = Hardmax(z) raw = Hardmax(x)"
    outputs = "float[n, 3] y, int64[n, 1] best, float[n, 3] hot, float[n, 3] raw"
    _, made = fused(graph(body, outputs=outputs), tmp_path, of(EACH), output_name="y")
    x = -np.array([[0.1, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 2.0]], "f4")
    got = run(made, {"x": x})
    np.testing.assert_allclose(got["y"], of(EACH).probs(-x), atol=1e-6)
    assert got["best"].ravel().tolist() == got["y"].argmax(axis=1).tolist() == [2, 2, 2]
    assert got["hot"].argmax(axis=1).tolist() == [2, 2, 2]
    assert got["raw"].argmax(axis=1).tolist() == x.argmax(axis=1).tolist()


def test_the_most_likely_class_of_a_table_is_still_that_of_the_softmax_before_it(tmp_path: Path) -> None:
    # By its own result it would be another: 0.35 for the most likely of [0.45, 0.44, 0.11].
    x = np.log(np.array([[0.45, 0.44, 0.11], [0.2, 0.1, 0.7]], "f4"))
    _, made = fused(graph("z = Identity(x) y = Softmax(z)"), tmp_path, of(TOP))
    want = [[0.35, 0.65 * 0.44 / 0.55, 0.65 * 0.11 / 0.55], [0.1 * 2 / 3, 0.1 / 3, 0.9]]
    np.testing.assert_allclose(run(made, {"x": x})["y"], want, atol=1e-6)
    assert operators(made).count("Softmax") == 1


@pytest.mark.parametrize("returns", ["same", "probabilities"])
@pytest.mark.parametrize("source", ["z", "y"])
def test_the_best_class_of_pooled_scores_follows_a_table_in_its_own_shape(
    source: str, returns: Any, tmp_path: Path
) -> None:
    last = "y = Softmax <axis: int = 1> (z)" if source == "y" else "y = Identity(z)"
    body = f"z = Neg(x) {last} best = ArgMax <axis: int = 1> ({source}) hot = Hardmax <axis: int = 1> (y)"
    outputs = "float[n, 3, 1, 1] y, int64[n, 1, 1, 1] best, float[n, 3, 1, 1] hot"
    model = graph(body, "float[n, 3, 1, 1] x", outputs)
    _, made = fused(model, tmp_path, of(EACH), output_name="y", returns=returns)
    got, best = run(made, {"x": X[..., None, None]}), of(EACH).probs(-X).argmax(axis=1)
    assert got["best"].shape == (20, 1, 1, 1)
    assert got["best"].ravel().tolist() == got["hot"][..., 0, 0].argmax(axis=1).tolist() == best.tolist()
    assert best.tolist() != (-X).argmax(axis=1).tolist()


# --- the raw scores beside them ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "inside"),
    [
        ("y = Neg(x)", ["Neg", "Mul", "Identity"]),
        ("z = Neg(x) y = Softmax(z)", ["Neg", "Mul", "Softmax", "Softmax"]),
        (
            "z = Neg(x) s = Constant <value = float {0.01}> () zero = Constant <value = uint8 {0}> () "
            "p = Softmax(z) q = QuantizeLinear(p, s, zero) y = DequantizeLinear(q, s, zero)",
            [
                "Constant",
                "Constant",
                "DequantizeLinear",
                "Mul",
                "Neg",
                "QuantizeLinear",
                "Softmax",
                "Softmax",
            ],
        ),
    ],
)
def test_the_raw_scores_have_the_name_type_and_numbers_of_the_raw_graph(
    body: str, inside: list[str], tmp_path: Path
) -> None:
    model = graph(body)
    report, made = fused(model, tmp_path, of(TWO), keep_raw=True)
    assert report.done[-1] == "the raw scores are output 'raw_y'"
    assert sorted(operators(made)) == sorted(inside)
    calibrated, raw = made.graph.output
    assert (calibrated.name, raw.name) == ("y", "raw_y")
    assert raw.type == calibrated.type == model.graph.output[0].type
    np.testing.assert_array_equal(run(made, {"x": X})["raw_y"], run(model, {"x": X})["y"])
