"""Constants of a graph: what is one, and new ones in their place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from fuse_graphs import run
from fuse_texts import fused, graph, value
from onnx import TensorProto

from calib_serve import LogitMap
from calib_serve.errors import ModelError
from calib_serve.fuse.onnx.edit import Editor, constant
from calib_serve.metrics import softmax

X = np.random.default_rng(1).normal(size=(20, 3)).astype("f4")
W = np.array([[1, 2, 0], [0, 1, -1], [2, 0, 1]], "f4")
WEIGHT = "float[3, 3] w = {1, 2, 0, 0, 1, -1, 2, 0, 1}"
TWO = LogitMap.temperature(2.0)


def test_a_weight_behind_an_identity_is_a_constant_all_the_same(tmp_path: Path) -> None:
    model = graph("v = Identity(w) z = MatMul(x, v) y = Softmax(z)", constants=WEIGHT)
    report, made = fused(model, tmp_path, TWO)
    assert report.done == ("logit map folded into MatMul 'z'",)
    np.testing.assert_allclose(run(made, {"x": X})["y"], softmax(X @ W / 2), atol=1e-6)


def test_numbers_that_are_not_of_their_shape_are_an_error_of_the_model() -> None:
    model = graph("y = Mul(x, w)")
    model.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[3], raw_data=bytes(16)))
    made = Editor(ir.from_proto(model))
    with pytest.raises(ModelError, match=r"^the numbers of 'w' are not as their type and shape say: "):
        constant(value(made, "w"))


def test_a_constant_that_others_read_stays_theirs(tmp_path: Path) -> None:
    model = graph(
        "z = MatMul(x, w) y = Softmax(z) other = MatMul(x, w)",
        outputs="float[n, 3] y, float[n, 3] other",
        constants=WEIGHT,
    )
    _, made = fused(model, tmp_path, TWO, output_name="y")
    assert sorted(t.name for t in made.graph.initializer) == ["calib_serve.weight", "w"]
    got = run(made, {"x": X})
    np.testing.assert_allclose(got["y"], softmax(X @ W / 2), atol=1e-6)
    np.testing.assert_allclose(got["other"], X @ W, atol=1e-6)
