"""Parts of fusion that few graphs meet: copied operators, learned shapes, shifts, ties, narrow types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from fuse_graphs import run
from fuse_texts import TWO, X, fused, graph
from onnx.reference import ReferenceEvaluator

from calib_serve import LogitMap, ProbTable
from calib_serve.metrics import softmax

# --- nodes of other domains -------------------------------------------------------------------------


def test_a_copied_map_of_class_names_is_still_an_operator_of_its_domain(tmp_path: Path) -> None:
    body = "z = Neg(x) p = Softmax(z) y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [4, 5, 6]> (p)"
    model = graph(body, outputs="seq(map(int64, float)) y")
    _, made = fused(model, tmp_path, TWO, keep_raw=True)
    assert [n.domain for n in made.graph.node if n.op_type == "ZipMap"] == ["ai.onnx.ml"] * 2
    got = run(made, {"x": X})
    for name, want in (("y", softmax(-X / 2)), ("raw_y", softmax(-X))):
        np.testing.assert_allclose([[row[k] for k in (4, 5, 6)] for row in got[name]], want, atol=1e-6)


def test_a_map_of_class_names_beside_another_reader_of_its_scores_is_calibrated_alone(tmp_path: Path) -> None:
    body = (
        "z = Neg(x) p = Softmax(z) y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [4, 5, 6]> (p) "
        "other = Neg(p)"
    )
    model = graph(body, outputs="seq(map(int64, float)) y, float[n, 3] other")
    _, made = fused(model, tmp_path, TWO, output_name="y")
    got = run(made, {"x": X})
    np.testing.assert_allclose([[row[k] for k in (4, 5, 6)] for row in got["y"]], softmax(-X / 2), atol=1e-6)
    np.testing.assert_allclose(got["other"], -softmax(-X), atol=1e-6)


# --- shapes that only a run tells -------------------------------------------------------------------


# --- the input shift --------------------------------------------------------------------------------


# --- labels, scores and tables ----------------------------------------------------------------------


def test_a_label_never_contradicts_the_predicted_class_beside_it(tmp_path: Path) -> None:
    body = (
        "label, s = ai.onnx.ml.LinearClassifier <classlabels_ints: ints = [0, 1, 2], intercepts: floats = "
        "[0.0, 0.0, 0.0], coefficients: floats = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]> (x) "
        "y = Softmax(s)"
    )
    model = graph(body, outputs="int64[n] label, float[n, 3] y")
    step = LogitMap(np.array([1.0, 1.0, 2.0]))
    _, made = fused(model, tmp_path, step, output_name="y", returns="all")
    tied = np.array([[0.0, 1e-9, -5.0]], "f4")  # apart as logits, and the same as probabilities
    got = run(made, {"x": np.concatenate([tied, X])})
    assert got["probabilities"][0, 0] == got["probabilities"][0, 1]
    assert got["logits"][0, 0] < got["logits"][0, 1]
    assert got["label"].tolist() == got["predicted"].tolist()


def test_a_table_of_a_half_precision_model_is_looked_up_in_single_precision(tmp_path: Path) -> None:
    model = graph("z = Neg(x) y = Softmax(z)", "float16[n, 3] x", "float16[n, 3] y")
    table = ProbTable(np.array([[0.50005]]), np.array([[0.25, 0.75]]))
    _, made = fused(model, tmp_path, table)
    x = np.array([[-0.0004, 0.0, 20.0], [0.0, 0.0, 20.0]], "f2")
    top = softmax(-x.astype("f8")).max(axis=1)
    assert top[0] > 0.50005 > float(np.float16(top[0]))
    # Onnxruntime computes in single precision on most CPUs, whatever the graph says; onnx itself does not.
    by_onnx: Any = ReferenceEvaluator(made).run(["y"], {"x": x})
    for got in (run(made, {"x": x})["y"], by_onnx[0]):
        assert got[:, 0].tolist() == [0.75, 0.25]


# --- repairs and parity -----------------------------------------------------------------------------
