"""Shapes that inference does not find: which are asked for, and what one run tells of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from fuse_texts import K, graph

from calib_serve.fuse.onnx.shapes import learn, unknown


def inside(body: str, inputs: str = "float[n, 3] x", outputs: str = "float[n, 3] y") -> ir.Graph:
    """A graph that knows no shapes but of its inputs and outputs."""
    return ir.from_proto(graph(body, inputs, outputs)).graph


def asked(made: ir.Graph, features: str | None = None) -> list[str | None]:
    return [value.name for value in unknown(made, features)]


# --- which ------------------------------------------------------------------------------------------


def test_shapes_are_asked_for_a_few_nodes_back_from_the_outputs_and_no_further() -> None:
    chain = "v0 = Neg(x) " + " ".join(f"v{i} = Neg(v{i - 1})" for i in range(1, 9)) + " y = Neg(v8)"
    assert asked(inside(chain)) == ["v8", "v7", "v6", "v5", "v4", "v3"]
    assert asked(inside(chain), "v1") == ["v8", "v7", "v6", "v5", "v4", "v3", "v1"]
    assert asked(inside(chain), "v5") == ["v8", "v7", "v6", "v5", "v4", "v3"]
    assert asked(inside(chain), "v") == ["v8", "v7", "v6", "v5", "v4", "v3"]


def test_shapes_are_asked_for_on_every_way_to_an_output_once() -> None:
    body = "a = Neg(x) b = Add(a, x) c = Clip(b, , a) y = Mul(b, c) other = Abs(c)"
    made = inside(body, outputs="float[n, 3] y, float[n, 3] other")
    assert asked(made) == ["b", "c", "a"]


def test_outputs_are_asked_for_where_the_file_does_not_state_them() -> None:
    made = inside("p = Neg(x) y = Neg(p)")
    (y,) = made.outputs
    y.shape = None
    assert asked(made) == ["y", "p"]
    y.shape, y.dtype = ir.Shape((None, K)), None
    assert asked(made) == ["y", "p"]
    y.dtype = ir.DataType.FLOAT
    assert asked(made) == ["p"]


def test_inputs_and_maps_of_class_names_are_not_asked_for() -> None:
    made = inside("p = Neg(x) y = ai.onnx.ml.ZipMap <classlabels_int64s: ints = [4, 5, 6]> (p)")
    made.inputs[0].shape = None
    made.outputs[0].type = made.outputs[0].shape = None
    assert asked(made) == ["p"]


# --- what a run tells -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "u1"])
def test_of_a_matrix_a_run_tells_the_type_and_the_columns(dtype: str) -> None:
    value = ir.Value(name="p")
    learn([value], [np.zeros((2, 5), dtype)])
    assert value.dtype == ir.DataType.from_numpy(np.dtype(dtype))
    assert value.shape is not None
    assert list(value.shape)[1:] == [5]
    assert not isinstance(value.shape[0], int), "rows are free"


@pytest.mark.parametrize(
    "found",
    [
        np.zeros(3, "f4"), np.zeros((2, 3, 1), "f4"), np.array([["a", "b"]], object),
        np.array([[True, False]]),
        [{0: 0.25, 1: 0.75}], [[0.25, 0.75]], None,
    ],
)  # fmt: skip
def test_of_anything_else_a_run_tells_nothing(found: Any) -> None:
    values = [ir.Value(name="other"), ir.Value(name="matrix")]
    learn(values, [found, np.zeros((2, 5), "f4")])
    assert (values[0].dtype, values[0].shape) == (None, None)
    assert values[1].dtype == ir.DataType.FLOAT, "what comes behind is learned all the same"
