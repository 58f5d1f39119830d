"""What a file states of types, sizes and shapes: kept, where it is still true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_graphs import run
from fuse_texts import DELTA, LAYER, TWO, K, X, fused, graph
from onnx import numpy_helper

from calib_serve import InputShift
from calib_serve.metrics import softmax

MAPS = "p = Softmax(x) y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [4, 5, 6]> (p)"
SEQ = "seq(map(int64, float)) y"


def stated(made: onnx.ModelProto) -> list[tuple[str, onnx.TypeProto]]:
    return [(value.name, value.type) for value in (*made.graph.input, *made.graph.output)]


@pytest.mark.parametrize(
    ("body", "inputs", "outputs", "feeds"),
    [
        ("z = Neg(x) y = Softmax(z)", "float[batch, 3] x", "float[rows, 3] y", {"x": X}),
        ("z = Neg(x) y = Softmax(z)", "float[batch, 3] x", "float[?, 3] y", {"x": X}),
        (MAPS, "float[n, 3] x", SEQ, {"x": X}),
        ("v = ai.onnx.ml.DictVectorizer <int64_vocabulary: ints = [0, 1, 2]> (x) y = Softmax(v)",
         "map(int64, float) x", "float[n, 3] y", {"x": {0: 0.5, 1: 1.0, 2: -1.0}}),
    ],
)  # fmt: skip
def test_types_of_inputs_and_outputs_stay_as_the_file_states_them(
    body: str, inputs: str, outputs: str, feeds: dict[str, Any], tmp_path: Path
) -> None:
    model = graph(body, inputs, outputs)
    _, made = fused(model, tmp_path, TWO, inputs=feeds)
    assert stated(made) == stated(model)


@pytest.mark.parametrize(
    ("body", "stated_as"),
    [
        ("p = Softmax(x) probabilities = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [4, 5, 6]> (p)",
         "seq(map(int64, float))"),
        ("probabilities = Unsqueeze(x, two)", "float[n, 3, 1]"),
    ],
)  # fmt: skip
def test_an_output_that_becomes_another_of_the_same_name_states_its_own_type(
    body: str, stated_as: str, tmp_path: Path
) -> None:
    model = graph(body, outputs=f"{stated_as} probabilities")
    model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
    _, made = fused(model, tmp_path, TWO, returns="probabilities")
    ((name, kind),) = stated(made)[1:]
    assert name == "probabilities"
    assert kind.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert [d.dim_value for d in kind.tensor_type.shape.dim][1:] == [K]
    np.testing.assert_allclose(run(made, {"x": X})["probabilities"], softmax(X / 2), atol=1e-6)


def test_shapes_that_are_inferred_are_known_to_all_passes(tmp_path: Path) -> None:
    chain = " ".join(f"v{i} = Neg(v{i - 1})" for i in range(1, 9))
    model = graph(f"t = Identity(x) {LAYER} v0 = MatMul(t, w) {chain} y = Neg(v8)")
    report, _ = fused(model, tmp_path, InputShift(DELTA))
    assert report.done == ("shift folded into Gemm 'v0'",)
