"""Labels in small graphs: how they are known, which thresholds and artifacts move them, what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuse_graphs import run
from fuse_texts import LAYER, TWO, fused, graph

from calib_serve import Head, LogitMap, Mixture, ProbTable

X = np.random.default_rng(1).normal(size=(40, 3)).astype("f4")
BIAS = LogitMap(np.ones(3), np.array([1.0, 0.0, -1.0]))
TABLE = ProbTable([[0.4, 0.6]], [[0.2, 0.5, 0.9]])
CLASSIFIER = (
    "label, s = ai.onnx.ml.LinearClassifier <classlabels_ints: ints = [4, 5, 6], intercepts: floats = "
    "[0.0, 0.0, 0.0], coefficients: floats = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]> (x) "
)
SCORES = "z = Neg(x) y = Softmax(z) "
OTHER = SCORES + "d = ArgMax <axis: int = 1, keepdims: int = 0> (o) "
"""Scores, and a class that is decided from others."""

WITH_OTHERS = "float[n, 3] x, float[n, 3] o"


def warning(name: str, node: str) -> str:
    return (
        f"warning: the output {name!r} is decided by {node} from uncalibrated scores, and may contradict the "
        "calibrated ones"
    )


def done(
    body: str, shown: str, folder: Path, *steps: object, inputs: str = WITH_OTHERS, **options: object
) -> list[str]:
    """What is said beside where the steps went."""
    model = graph(body, inputs, f"float[n, 3] y, {shown}")
    report, _ = fused(model, folder, *(steps or (BIAS,)), output_name="y", **options)
    return list(report.done[1:])


# --- from a decision to the label -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("label = Identity(d)", "int64[n] label"),
        ("label = Cast <to: int = 6> (d)", "int32[n] label"),
        ("s = Constant <value = int64[2] {-1, 1}> () label = Reshape(d, s)", "int64[n, 1] label"),
        ("a = Constant <value = int64[1] {1}> () c = Unsqueeze(d, a) label = Squeeze(c, a)",
         "int64[n] label"),
        ("a = Constant <value = int64[1] {1}> () label = Unsqueeze(d, a)", "int64[n, 1] label"),
        ("label = Flatten(d)", "int64[n, 1] label"),
        ("b = Cast <to: int = 9> (d) label = Not(b)", "bool[n] label"),
        ("b = Cast <to: int = 9> (d) label = Where(b, seven, seven)", "int64[n] label"),
        ("label = Gather(names, d)", "int64[n] label"),
        ("label = GatherElements(names, d)", "int64[n] label"),
        ("label = ai.onnx.ml.ArrayFeatureExtractor(names, d)", "int64[1, n] label"),
        ("label = ai.onnx.ml.LabelEncoder <keys_int64s: ints = [0, 1, 2], values_int64s: ints = [7, 8, 9]> "
         "(d)", "int64[n] label"),
    ],
)  # fmt: skip
def test_a_label_is_known_by_its_decision_whatever_names_it(names: str, shown: str, tmp_path: Path) -> None:
    numbers = "names = Constant <value = int64[3] {7, 8, 9}> () seven = Constant <value = int64[1] {7}> () "
    assert done(OTHER + numbers + names, shown, tmp_path) == [warning("label", "ArgMax 'd'")]
    assert done(OTHER + numbers + names, shown, tmp_path, TWO) == []


@pytest.mark.parametrize(
    ("sizes", "of_classes"),
    [("n, 3", True), ("n, k", True), ("n, 3, 1, 1", True), ("n, 8", False), ("n, 3, 2", False),
     ("3", False)],
)  # fmt: skip
def test_a_decision_is_between_classes_where_its_shape_may_be_that(
    sizes: str, of_classes: bool, tmp_path: Path
) -> None:
    axis = 0 if sizes == "3" else 1
    body = SCORES + f"d = ArgMax <axis: int = {axis}> (o) label = Flatten(d)"
    said = done(body, "int64[m, l] label", tmp_path, inputs=f"float[n, 3] x, float[{sizes}] o")
    assert said == ([warning("label", "ArgMax 'd'")] if of_classes else [])


# --- thresholds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "Identity(z)", "Cast <to: int = 11> (z)", "Exp(z)", "Log(z)", "Softmax(z)", "LogSoftmax(z)",
        "Sigmoid(z)", "ai.onnx.ml.Normalizer <norm: string = \"L1\"> (z)", "Div(z, two)", "Sub(z, two)",
        "Max(z, two)",
    ],
)  # fmt: skip
def test_a_threshold_on_what_the_scores_become_is_said(value: str, tmp_path: Path) -> None:
    body = SCORES + f"two = Constant <value = float {{2.0}}> () v = {value} "
    kind = "double" if "11" in value else "float"
    body += f"c = Constant <value = {kind} {{0.25}}> () label = Less(v, c)"
    assert done(body, "bool[n, 3] label", tmp_path, TWO) == [warning("label", "Less 'label'")]


@pytest.mark.parametrize(
    ("comparison", "steps", "moves"),
    [
        ("Greater(z, zero)", (TWO,), False), ("Less(zero, z)", (TWO,), False),
        ("Greater(z, zero)", (BIAS,), True), ("Greater(z, o)", (TWO,), True),
        ("Greater(z, mixed)", (TWO,), True), ("Greater(y, half)", (TWO,), True),
        ("Greater(z, zeros)", (TWO,), False),
    ],
)  # fmt: skip
def test_a_temperature_moves_nothing_across_0_and_the_likeliest_of_three_across_a_half(
    comparison: str, steps: tuple[LogitMap, ...], moves: bool, tmp_path: Path
) -> None:
    numbers = (
        "zero = Constant <value = float {0.0}> () half = Constant <value = float {0.5}> () "
        "mixed = Constant <value = float[3] {0.0, 0.0, 0.25}> () "
        "zeros = Constant <value = float[3] {0.0, 0.0, 0.0}> () "
    )
    body = numbers + SCORES + f"label = {comparison}"
    op = comparison.partition("(")[0]
    want = [warning("label", f"{op} 'label'")] if moves else []
    assert done(body, "bool[n, 3] label", tmp_path, *steps) == want
    got = run(str(tmp_path / "fused.onnx"), {"x": X, "o": 0 * X} if "o" in comparison else {"x": X, "o": X})
    if comparison == "Greater(y, half)":
        assert (got["label"] != (got["y"] > 0.5)).any(), "so it must be said"


# --- which artifacts move labels --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "keeps"),
    [
        ((TWO,), True), ((TWO, TWO), True), ((Mixture([1.0], [0.7, 0.3]),), True), ((TWO, BIAS), False),
        ((BIAS, TWO), False), ((TABLE,), False), ((TWO, TABLE), False),
        ((Head((np.eye(3)[::-1],), (np.zeros(3),)),), False),
    ],
)  # fmt: skip
def test_labels_move_unless_all_that_acts_keeps_the_order(
    steps: tuple[object, ...], keeps: bool, tmp_path: Path
) -> None:
    body = LAYER + "z = MatMul(x, w) y = Softmax(z) label = ArgMax <axis: int = 1> (o)"
    model = graph(body, WITH_OTHERS, "float[n, 3] y, int64[n, 1] label")
    report, _ = fused(model, tmp_path, *steps, output_name="y")
    assert report.done[len(steps) :] == (() if keeps else (warning("label", "ArgMax 'label'"),))


@pytest.mark.parametrize("activation", ["Softmax", "LogSoftmax"])
def test_a_decision_that_a_table_took_along_is_no_label_of_other_scores(
    activation: str, tmp_path: Path
) -> None:
    body = f"z = Neg(x) y = {activation}(z) label = ArgMax <axis: int = 1> (z)"
    model = graph(body, outputs="float[n, 3] y, int64[n, 1] label")
    report, made = fused(model, tmp_path, TABLE, output_name="y")
    assert report.done == ("prob table put in as standard operators",)
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["label"][:, 0], got["y"].argmax(axis=1))
    assert (got["label"][:, 0] != (-X).argmax(axis=1)).any()
