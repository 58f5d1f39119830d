"""A new head in the place of the last linear layer: which features it reads, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import head
from fuse_graphs import run
from fuse_texts import LAYER, K, X, fused, graph

from calib_serve import Head
from calib_serve.metrics import softmax

ONE = head(3, K, 1, np.random.default_rng(0))
DEEP = head(3, K, 2, np.random.default_rng(0))
LINEAR = LAYER + "z = Gemm(f, w) "


def by_hand(step: Head, features: np.ndarray) -> np.ndarray:
    """Its logits, in float64."""
    hidden = features.astype("f8") @ step.weights[0].T.astype("f8") + step.biases[0]
    for w, b in zip(step.weights[1:], step.biases[1:], strict=True):
        hidden = np.maximum(hidden, 0) @ w.T.astype("f8") + b
    return hidden


# --- which features ---------------------------------------------------------------------------------


def test_old_logits_that_others_read_are_still_the_old_layers(tmp_path: Path) -> None:
    model = graph("f = Tanh(x) " + LINEAR + "y = Softmax(z)", outputs="float[n, 3] y, float[n, 3] z")
    report, made = fused(model, tmp_path, ONE, output_name="y")
    assert report.done == ("head of 1 layers reads 'f'",)
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["z"], run(model, {"x": X})["z"])
    np.testing.assert_allclose(got["y"], softmax(by_hand(ONE, np.tanh(X))), atol=1e-6)


@pytest.mark.parametrize("step", [ONE, DEEP])
@pytest.mark.parametrize("end", ["z = Gemm(g, w) y = Softmax(z)", "y = Gemm(g, w)"])
def test_features_of_another_type_are_read_in_the_type_of_the_logits(
    end: str, step: Head, tmp_path: Path
) -> None:
    model = graph(LAYER + "f = Cast <to: int = 10> (x) g = Cast <to: int = 1> (f) " + end)
    _, made = fused(model, tmp_path, step, features="f")
    assert made.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    logits = by_hand(step, X.astype("f2"))
    want = softmax(logits) if "Softmax" in end else logits
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)


def test_a_stranger_s_product_of_the_old_logits_may_be_read(tmp_path: Path) -> None:
    model = graph("f = Tanh(x) " + LINEAR + "y = Softmax(z) other = Sin(z)")
    _, made = fused(model, tmp_path, ONE, features="other")
    others = graph("f = Tanh(x) " + LINEAR + "y = Sin(z)")
    want = softmax(by_hand(ONE, run(others, {"x": X})["y"]))
    np.testing.assert_allclose(run(made, {"x": X})["y"], want, atol=1e-5)


# --- what is checked --------------------------------------------------------------------------------
