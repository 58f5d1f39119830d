"""An artifact goes into a graph of other bytes if that answers as the model that it was fitted for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_texts import LAYER, TWO, W, graph

from calib_serve import Artifact
from calib_serve.artifact.model_response import random_inputs, response
from calib_serve.core.errors import FuseError
from calib_serve.fuse import fuse_onnx

PRODUCT = "z = MatMul(x, w) y = Softmax(z)"
WEIGHT = "float[3, 3] w = {1, 2, 0, 0, 1, -1, 2, 0, 1}"
COLUMN = np.array([[1], [2], [-1]], "f4")


def fitted(weight: np.ndarray = W) -> Artifact:
    """An artifact of a linear model, known by its hash and by its answers to made-up inputs."""
    inputs = random_inputs((3,))
    assert inputs is not None
    z = inputs @ weight
    z = np.concatenate([np.zeros_like(z), z], axis=1) if weight.shape[1] == 1 else z
    known = {"outputs": "logits", "sha256": "0" * 64, "input_shape": [3], "response": response(z)}
    return artifact(TWO, classes=z.shape[1], model=known)


@pytest.mark.parametrize(
    ("body", "inputs", "constants"),
    [
        (LAYER + PRODUCT, "float[n, 3] x", ""),
        (LAYER + PRODUCT, "float[1, 3] x", ""),
        # Each row acts for itself: of a fixed batch the first one answers.
        (LAYER + "r = Constant <value = float[4, 1] {1, 2, 3, 4}> () a = Mul(x, r) z = MatMul(a, w) "
         "y = Softmax(z)", "float[4, 3] x", ""),
        (LAYER + "c = Cast <to: int = 1> (x) z = MatMul(c, w) y = Softmax(z)", "double[n, 3] x", ""),
        # A weight that may be given from outside has its own numbers where nobody does.
        (PRODUCT, "float[n, 3] x, float[3, 3] w", WEIGHT),
        (PRODUCT, "float[3, 3] w, float[n, 3] x", WEIGHT),
    ],
)  # fmt: skip
def test_a_graph_that_answers_as_the_model_did_is_an_export_of_it(
    body: str, inputs: str, constants: str, tmp_path: Path
) -> None:
    rows = "4" if "[4, 3]" in inputs else "n"
    model = graph(body, inputs, f"float[{rows}, 3] y", constants=constants)
    onnx.save(model, tmp_path / "raw.onnx")
    report = fuse_onnx(tmp_path / "raw.onnx", fitted(), tmp_path / "out.onnx")
    assert report.max_abs_diff < 1e-5


def test_one_column_answers_as_the_two_that_it_is_the_difference_of(tmp_path: Path) -> None:
    weight = "w = Constant <value = float[3, 1] {1, 2, -1}> () z = MatMul(x, w) "
    onnx.save(graph(weight + "y = Sigmoid(z)", outputs="float[n, 1] y"), tmp_path / "raw.onnx")
    fuse_onnx(tmp_path / "raw.onnx", fitted(COLUMN), tmp_path / "out.onnx")
    with pytest.raises(FuseError, match="gives other scores for the same inputs"):
        fuse_onnx(tmp_path / "raw.onnx", fitted(-COLUMN), tmp_path / "no.onnx")


@pytest.mark.parametrize(
    ("body", "inputs", "why"),
    [
        (LAYER.replace("{1, 2", "{1, 3") + PRODUCT, "float[n, 3] x", "gives other scores"),
        # Inputs of 0 to 1 alone would not tell it.
        (LAYER + "a = Abs(x) z = MatMul(a, w) y = Softmax(z)", "float[n, 3] x", "gives other scores"),
        (LAYER + "a = Add(x, o) z = MatMul(a, w) y = Softmax(z)", "float[n, 3] x, float[n, 3] o", "not take"),
        (LAYER + "c = Cast <to: int = 1> (x) z = MatMul(c, w) y = Softmax(z)", "int64[n, 3] x", "not take"),
        ("w = Constant <value = float[4, 3] {1, 2, 0, 0, 1, -1, 2, 0, 1, 0, 0, 0}> () " + PRODUCT,
         "float[n, 4] x", "not take"),
        ("w = Constant <value = float[1, 3] {1, 2, 0}> () z = Mul(w, x) y = Softmax(z)", "float x",
         "not take"),
    ],
)  # fmt: skip
def test_a_graph_that_answers_otherwise_is_another_model(
    body: str, inputs: str, why: str, tmp_path: Path
) -> None:
    onnx.save(graph(body, inputs), tmp_path / "raw.onnx")
    with pytest.raises(FuseError, match=f"was fitted for .* {why}"):
        fuse_onnx(tmp_path / "raw.onnx", fitted(), tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["raw.onnx"]
    fuse_onnx(tmp_path / "raw.onnx", fitted(), tmp_path / "out.onnx", force=True)
