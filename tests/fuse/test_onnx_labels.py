"""Labels beside the scores follow the calibrated ones, or a warning says that they do not."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact, output_steps
from fuse_graphs import Builder, run
from fuse_texts import LAYER, TWO, fused, graph, operators
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

from calib_serve import Head, LogitMap, Mixture, ProbTable
from calib_serve.fuse.onnx.graph import fuse_onnx

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


def test_a_classifier_of_other_scores_decides_its_label_and_not_its_scores(tmp_path: Path) -> None:
    other = CLASSIFIER.replace("(x)", "(o)").replace("[1.0, 0.0, 0.0,", "[1.0, 0.0, 0.0, 2.0, 1.0, 3.0,")
    shown, inputs = "float[n, 3] s, int64[n] label", "float[n, 3] x, float[n, 4] o"
    assert done(SCORES + other, shown, tmp_path, inputs=inputs) == [
        warning("label", "LinearClassifier 'label'")
    ]


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


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("", ("label",)), ("name = Cast <to: int = 6> (label)", ("name",)),
        ("name = Cast <to: int = 6> (label)", ("label", "name")), ("", ()),
    ],
)  # fmt: skip
def test_a_classifiers_label_follows_where_anybody_sees_it(
    names: str, shown: tuple[str, ...], tmp_path: Path
) -> None:
    body = CLASSIFIER + "tiny = Constant <value = float {1e-3}> () e = Exp(s) a = Max(e, tiny) b = Log(a) "
    kinds = {"label": "int64[n] label", "name": "int32[n] name"}
    outputs = ", ".join(["float[n, 3] y", *(kinds[name] for name in shown)])
    report, made = fused(
        graph(body + "y = Softmax(b)" + names, outputs=outputs), tmp_path, BIAS, output_name="y"
    )
    said = ["labels by LinearClassifier 'label' follow the calibrated scores"] if shown else []
    assert list(report.done[1:]) == said
    assert operators(made).count("ArgMax") == len(said)
    assert [one.name for one in made.graph.output] == ["y", *shown]
    got = run(made, {"x": X})
    for name in shown:
        np.testing.assert_array_equal(got[name], 4 + got["y"].argmax(axis=1))
        assert got[name].dtype == {"label": np.int64, "name": np.int32}[name]
    assert (got["y"].argmax(axis=1) != X.argmax(axis=1)).any()


def test_labels_follow_the_chosen_scores_and_not_others_of_a_name_of_ours(tmp_path: Path) -> None:
    body = CLASSIFIER + "logits = Identity(s) probabilities = Softmax(s)"
    shown = "float[n, 3] logits, float[n, 3] probabilities, int64[n] label"
    report, made = fused(graph(body, outputs=shown), tmp_path, BIAS, output_name="logits", outputs="logits")
    assert report.done[1:] == ("labels by LinearClassifier 'label' follow the calibrated scores",)
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["label"], 4 + got["logits"].argmax(axis=1))
    assert (got["probabilities"].argmax(axis=1) != got["logits"].argmax(axis=1)).any()


@pytest.mark.parametrize("step", [BIAS, TWO])
def test_an_earlier_decision_of_the_same_scores_follows_and_stands_behind_them(
    step: LogitMap, tmp_path: Path
) -> None:
    body = "a = Neg(x) label = ArgMax <axis: int = 1, keepdims: int = 0> (a) z = Identity(a) y = Softmax(z)"
    model = graph(body, outputs="float[n, 3] y, int64[n] label")
    report, made = fused(model, tmp_path, step, output_name="y")
    follows = "labels by ArgMax 'label' follow the calibrated scores"
    assert report.done[1:] == ((follows,) if step is BIAS else ())
    (decides,) = (node for node in made.graph.node if node.op_type == "ArgMax")
    assert list(decides.input) == ["y" if step is BIAS else "a"]
    got = run(made, {"x": X})
    np.testing.assert_array_equal(got["label"], got["y"].argmax(axis=1))


K = 3
VECTOR = LogitMap(np.array([1.0, 0.5, 2.0]), np.array([0.5, 0.0, -1.0]))
(CLASSWISE,) = output_steps("classwise", K, np.random.default_rng(0))[1:]

MAKERS = {
    "logistic": LogisticRegression,
    "bayes": GaussianNB,
    "forest": lambda: RandomForestClassifier(3, max_depth=2, random_state=0),
    "neighbors": KNeighborsClassifier,
    "vectors": lambda: SVC(probability=True, random_state=0),
    "network": lambda: MLPClassifier(4, max_iter=5, random_state=0),
    "boosted": lambda: AdaBoostClassifier(n_estimators=3, random_state=0),
    "bagged": lambda: BaggingClassifier(n_estimators=3, random_state=0),
}
OWN = ("logistic", "forest", "network")
"""Whose graphs show by themselves that they return probabilities."""


def info(name: str, *shape, kind: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def learned(maker, names: np.ndarray):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype("f4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # five steps do not converge, and need not
        return maker().fit(x, names[rng.integers(0, K, 200)]), x


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("names", "maps"), [((3, 5, 9), True), (("a", "bb", "ü"), False)], ids=["maps", "tensor"]
)
def test_scikit_learns_labels_are_those_of_the_calibrated_scores(maker, names, maps, tmp_path):
    names = np.array(names)
    model, x = learned(MAKERS[maker], names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # skl2onnx reads what scikit-learn will remove
        onnx.save(to_onnx(model, x[:1], options={"zipmap": maps}), tmp_path / "raw.onnx")
    said = None if maker in OWN else "probabilities"
    before = next(iter(run(str(tmp_path / "raw.onnx"), {"X": x}).values()))
    for step, returns in ((VECTOR, "same"), (CLASSWISE, "same"), (VECTOR, "all")):
        fitted = artifact(step, classes=K, outputs="probabilities")
        out = tmp_path / f"{step.kind}.{returns}.onnx"
        report = fuse_onnx(tmp_path / "raw.onnx", fitted, out, outputs=said, returns=returns)
        got = run(str(out), {"X": x})
        label = next(iter(got.values()))
        scores = got["probabilities"] if returns == "all" else list(got.values())[-1]
        if isinstance(scores, list):
            scores = np.array([[row[name] for name in names.tolist()] for row in scores])
        chosen = scores[np.arange(len(x)), np.searchsorted(names, label.astype(names.dtype))]
        np.testing.assert_array_equal(chosen, scores.max(axis=1))
        assert label.dtype == before.dtype
        assert label.shape == before.shape
        assert (label != before).any()
        assert not any("warning" in what for what in report.done)


COMPARISONS = {
    "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less, "LessOrEqual": np.less_equal
}  # fmt: skip


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("threshold", [0.5, 0.3])
@pytest.mark.parametrize("step", [LogitMap.temperature(2.0), LogitMap(np.ones(2), np.array([0.0, 1.0]))])
def test_a_threshold_is_of_the_uncalibrated_scores_and_said_where_that_matters(
    threshold, step, comparison, tmp_path
):
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    p = b.node("Sigmoid", b.node("Gemm", "x", b.normal(6, 1), b.normal(1)), output="y")
    label = b.node("Cast", b.node(comparison, p, b.number(threshold)), to=TensorProto.INT64, output="label")
    model = b.model([info("x", "n", 6)], [info(p, "n", 1), info(label, "n", 1, kind=TensorProto.INT64)])
    onnx.save(model, tmp_path / "raw.onnx")
    report = fuse_onnx(tmp_path / "raw.onnx", artifact(step, classes=2), tmp_path / "fused.onnx")
    moves = threshold != 0.5 or not step.is_scalar
    assert (
        any(f"warning: the output 'label' is decided by {comparison}" in what for what in report.done)
        == moves
    )
    x = np.random.default_rng(1).normal(size=(50, 6)).astype("f4")
    raw, got = run(model, {"x": x}), run(str(tmp_path / "fused.onnx"), {"x": x})
    np.testing.assert_array_equal(raw["label"], got["label"])
    if not moves:
        np.testing.assert_array_equal(got["label"], COMPARISONS[comparison](got["y"], 0.5))
