"""The edits of a graph that all passes share: names, places, types, outputs and what is unused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuse_graphs import run
from fuse_texts import editor, fused, graph, operators, value
from onnx import TensorProto

from calib_serve import LogitMap, Mixture, ProbTable
from calib_serve.metrics import softmax

X = np.random.default_rng(1).normal(size=(20, 3)).astype("f4")
TWO = LogitMap.temperature(2.0)


# --- names ------------------------------------------------------------------------------------------


def test_no_name_is_given_twice_whatever_has_it() -> None:
    body = (
        "[first] z = Mul(x, w) [turns] y = Loop <body = turn (int64 i, bool go, float[n, 3] state) => "
        "(bool on, float[n, 3] next) <float step = {2}> { on = Identity(go) next = Add(state, step) }> "
        "(m, c, z)"
    )
    made = editor(body, "float[n, 3] x, int64 m, bool c", constants="float[3] w = {1, 2, 3}")
    for name in ("x", "w", "z", "y", "first", "turns", "i", "state", "next", "step"):
        assert made.name(name) == f"{name}_1", name
        assert made.name(name) == f"{name}_2", name
    assert made.name("calib_serve.Mul") == "calib_serve.Mul"
    assert made.name("calib_serve.Mul") == "calib_serve.Mul_1"


def test_a_value_inside_makes_room_for_an_output_of_its_name(tmp_path: Path) -> None:
    model = graph("probabilities = Neg(x) z = Neg(probabilities) y = Softmax(z)")
    _, made = fused(model, tmp_path, TWO, returns="probabilities")
    assert made.graph.node[0].output[0] == "calib_serve.raw.probabilities"
    np.testing.assert_allclose(run(made, {"x": X})["probabilities"], softmax(X / 2), atol=1e-6)


# --- places -----------------------------------------------------------------------------------------


def test_a_graph_without_a_node_is_calibrated(tmp_path: Path) -> None:
    model = graph("", "float[n, 3] y")
    assert not model.graph.node
    report, made = fused(model, tmp_path, LogitMap.temperature(1.0), returns="probabilities")
    assert (report.nodes_before, operators(made)) == (0, ["Softmax"])
    np.testing.assert_allclose(run(made, {"y": X})["probabilities"], softmax(X), atol=1e-6)


# --- types and shapes -------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [13, 17, 18, 20])
def test_outputs_are_written_with_their_types_and_shapes(opset: int, tmp_path: Path) -> None:
    model = graph("z = Neg(x) y = Softmax(z)", imports=f'"" : {opset}')
    steps = Mixture([1.0, 0.5], [0.5, 0.3, 0.2]), ProbTable(np.array([[0.5]]), np.array([[0.4, 0.9]]))
    _, made = fused(model, tmp_path, TWO, *steps, returns="all")
    kinds = {
        v.name: (
            v.type.tensor_type.elem_type,
            [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim],
        )
        for v in made.graph.output
    }
    assert kinds == {
        "logits": (TensorProto.FLOAT, ["n", 3]),
        "probabilities": (TensorProto.FLOAT, ["n", 3]),
        "confidence": (TensorProto.FLOAT, ["n"]),
        "predicted": (TensorProto.INT64, ["n"]),
        "bin": (TensorProto.INT64, ["n"]),
    }


def test_parity_is_as_exact_as_the_narrowest_type_inside(tmp_path: Path) -> None:
    def tolerance(*through: int) -> float:
        names = ["x", *(f"c{i}" for i in range(len(through)))]
        casts = "".join(
            f"{after} = Cast <to: int = {to}> ({before}) "
            for before, after, to in zip(names, names[1:], through, strict=False)
        )
        model = graph(casts + f"z = Cast <to: int = 1> ({names[-1]}) y = Softmax(z)")
        return fused(model, tmp_path, TWO)[0].tolerance

    half, brain, double = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
    assert tolerance(half, brain) == tolerance(brain, half) == tolerance(brain)
    assert tolerance(brain) > tolerance(half) > tolerance(double)
    assert tolerance(half, double) == tolerance(half)
    assert tolerance(double) == tolerance()


# --- outputs and what is unused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "outputs", "sign"),
    [
        ("y = Softmax(x)", "float[n, 3] y", 1),
        ("z = Neg(x) y = Softmax(z)", "float[n, 3] y, float[n, 3] z", -1),
    ],
)
def test_logits_that_are_an_input_or_an_output_already_are_shown_once_more_by_a_copy(
    body: str, outputs: str, sign: int, tmp_path: Path
) -> None:
    same = LogitMap.temperature(1.0)
    _, made = fused(graph(body, outputs=outputs), tmp_path, same, returns="all", output_name="y")
    assert operators(made).count("Identity") == 1
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["logits"], sign * X)
    np.testing.assert_array_equal(got.get("z", -X), -X)


def test_outputs_take_the_place_of_the_one_they_are_made_of(tmp_path: Path) -> None:
    model = graph(
        "a = Neg(x) y = Softmax(x) b = Abs(x)", outputs="float[n, 3] a, float[n, 3] y, float[n, 3] b"
    )
    _, made = fused(model, tmp_path, TWO, returns="all", output_name="y")
    names = ["a", "logits", "probabilities", "confidence", "predicted", "bin", "b"]
    assert [v.name for v in made.graph.output] == names
    assert "Identity" not in operators(made)


def test_what_only_the_old_scores_needed_goes_with_them() -> None:
    made = editor(
        "a = Clip(x, , one) b = Mul(a, shown) other = Add(x, two) c, d = Split(b, sizes) e = Sub(c, two) "
        "y = Neg(x)",
        outputs="float[n, 3] y, float[3] shown, float[n, 3] other, float[n, 1] d",
        constants="float one = {1}, float[3] two = {2, 2, 2}, float[3] shown = {1, 2, 3}, "
        "int64[2] sizes = {2, 1}",
    )
    made.remove_unused(value(made, "c"))
    assert len(made.graph) == 6, "a node reads it"
    made.remove_unused(value(made, "e"))
    assert operators(made.graph) == ["Clip", "Mul", "Add", "Split", "Neg"], "d is shown"
    assert list(made.graph.initializers) == ["one", "two", "shown", "sizes"]
    made.graph.outputs.pop()
    made.remove_unused(value(made, "c"))
    assert operators(made.graph) == ["Add", "Neg"]
    assert list(made.graph.initializers) == ["two", "shown"]
    assert [v.name for v in made.graph.inputs] == ["x"]
