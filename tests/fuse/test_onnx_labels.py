"""Labels beside the scores follow the calibrated ones, or a warning says that they do not."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact, output_steps
from fuse_graphs import Builder, run
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

from calib_serve import LogitMap
from calib_serve.fuse.onnx.graph import fuse_onnx

K = 3
VECTOR = LogitMap(np.array([1.0, 0.5, 2.0]), np.array([0.5, 0.0, -1.0]))
(TABLE,) = output_steps("classwise", K, np.random.default_rng(0))[1:]

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
    for step, returns in ((VECTOR, "same"), (TABLE, "same"), (VECTOR, "all")):
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


def test_a_temperature_leaves_labels_as_they_are(tmp_path):
    model, x = learned(LogisticRegression, np.array([3, 5, 9]))
    raw = to_onnx(model, x[:1])
    onnx.save(raw, tmp_path / "raw.onnx")
    fitted = artifact(LogitMap.temperature(2.0), classes=K)
    report = fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "fused.onnx")
    assert not any("label" in what for what in report.done)
    label = next(iter(run(str(tmp_path / "fused.onnx"), {"X": x}).values()))
    np.testing.assert_array_equal(label, model.predict(x))


def classifier():
    """Softmax scores of a linear layer."""
    b = Builder(np.dtype("f4"), np.random.default_rng(0))
    z = b.node("Gemm", "x", b.normal(6, K), b.normal(K))
    y = b.node("Softmax", z, axis=1, output="y")
    return b, z, y


def done(b: Builder, outputs: list, step, tmp_path, **options) -> str:
    model = b.model([info("x", "n", 6)], [info("y", "n", K), *outputs])
    onnx.save(model, tmp_path / "raw.onnx")
    fitted = artifact(step, classes=options.pop("classes", K))
    report = fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "fused.onnx", output_name="y", **options)
    return "\n".join(report.done)


def test_a_one_hot_answer_follows_a_table(tmp_path):
    b, z, _ = classifier()
    chosen = b.node("Hardmax", z, axis=1, output="chosen")
    done(b, [info(chosen, "n", K)], TABLE, tmp_path)
    x = np.random.default_rng(1).normal(size=(200, 6)).astype("f4")
    raw, got = run(str(tmp_path / "raw.onnx"), {"x": x}), run(str(tmp_path / "fused.onnx"), {"x": x})
    np.testing.assert_array_equal(got["chosen"], np.eye(K)[got["y"].argmax(axis=1)])
    assert (got["chosen"] != raw["chosen"]).any()


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
