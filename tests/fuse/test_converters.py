"""Converters of the versions that are pinned: no file passes that gives other scores than its estimator.

Each is made of public data with a fifth of the labels drawn anew, so that no probability is sure.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from calib_serve import Artifact
from calib_serve.artifact import LogitMap
from calib_serve.core.errors import CalibServeError
from calib_serve.fuse import fuse_onnx, open_session

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore"),
]
skl2onnx = pytest.importorskip("skl2onnx")
pytest.importorskip("onnxmltools")
Case = tuple[str, str, Callable[[], Any]]


def data(name: str) -> tuple[NDArray[np.float32], NDArray[Any]]:
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name.replace('missing', 'breast_cancer')}")(return_X_y=True)
    rng = np.random.default_rng(0)
    if name == "missing":
        x[rng.random(x.shape) < np.where(y == 1, 0.1, 0.02)[:, None]] = np.nan
    order = rng.permutation(len(y))
    x, y = x[order].astype("f4"), y[order]
    return x, np.where(rng.random(len(y)) < 0.2, rng.integers(0, y.max() + 1, len(y)), y)


def converted(model: Any, x: NDArray[np.float32], folder: Path) -> onnx.ModelProto:
    library = type(model).__module__.partition(".")[0]
    if library == "catboost":
        model.save_model(str(folder / "cat.onnx"), format="onnx")
        return onnx.load(folder / "cat.onnx")
    if library == "sklearn":
        opsets, plain = {"": 18, "ai.onnx.ml": 3}, {id(model): {"zipmap": False}}
        return skl2onnx.to_onnx(model, x[:1], target_opset=opsets, options=plain)
    from onnxmltools import convert_lightgbm, convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [("X", FloatTensorType([None, x.shape[1]]))]
    if library == "lightgbm":
        return convert_lightgbm(model, initial_types=types, zipmap=False, target_opset=15)
    return convert_xgboost(model, initial_types=types, target_opset=15)


def lightgbm(**options: Any) -> Any:
    return pytest.importorskip("lightgbm").LGBMClassifier(n_estimators=10, verbose=-1, n_jobs=1, **options)


def xgboost(name: str = "XGBClassifier", **options: Any) -> Any:
    return getattr(pytest.importorskip("xgboost"), name)(n_jobs=1, **options)


def catboost(**options: Any) -> Any:
    made = pytest.importorskip("catboost").CatBoostClassifier
    return made(iterations=10, verbose=0, allow_writing_files=False, thread_count=1, **options)


def sklearn(name: str, *given: Any, **options: Any) -> Any:
    from importlib import import_module

    home, _, called = name.rpartition(".")
    return getattr(import_module(f"sklearn.{home}"), called)(*given, **options)


def forest() -> Any:
    return sklearn("ensemble.RandomForestClassifier", 20, random_state=0)


def isotonic(base: Any) -> Any:
    return sklearn("calibration.CalibratedClassifierCV", base, method="isotonic", cv=3)


RANDOM = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6, "random_state": 0}
WRONG: list[Case] = [
    ("a binary LDA: its log-odds doubled", "breast_cancer",
     lambda: sklearn("discriminant_analysis.LinearDiscriminantAnalysis")),
    ("isotonic of forests", "digits", lambda: isotonic(forest())),
    ("isotonic of Bayes", "breast_cancer", lambda: isotonic(sklearn("naive_bayes.GaussianNB"))),
    ("neighbours by distance", "wine",
     lambda: sklearn("neighbors.KNeighborsClassifier", weights="distance")),
    ("float32 moves thresholds", "breast_cancer", lightgbm),
    ("one against all", "wine", lambda: lightgbm(objective="multiclassova")),
    ("a random forest of LightGBM: summed", "breast_cancer", lambda: lightgbm(**RANDOM)),
    ("one of three classes: two columns", "wine", lambda: lightgbm(**RANDOM)),
    ("linear leaves: constant", "breast_cancer", lambda: lightgbm(linear_tree=True)),
    ("a link of its own slope", "breast_cancer", lambda: lightgbm(sigmoid=2.0)),
    ("parallel trees: classes mixed", "wine",
     lambda: xgboost(n_estimators=5, num_parallel_tree=4, subsample=0.7)),
    ("softmax of XGBoost: margins", "wine", lambda: xgboost(objective="multi:softmax")),
    ("a forest that learned from missing values: their side is lost", "missing", forest),
    ("a random forest of XGBoost", "wine", lambda: xgboost("XGBRFClassifier", n_estimators=8)),
    ("CatBoost's one against all: softmaxed", "wine", lambda: catboost(loss_function="MultiClassOneVsAll")),
]  # fmt: skip
RIGHT: list[Case] = [
    ("lda of three", "wine", lambda: sklearn("discriminant_analysis.LinearDiscriminantAnalysis")),
    ("sigmoid of forests", "digits",
     lambda: sklearn("calibration.CalibratedClassifierCV", forest(), cv=3)),
    ("support vectors", "breast_cancer", lambda: sklearn("svm.SVC", probability=True, random_state=0)),
    ("qda", "wine", lambda: sklearn("discriminant_analysis.QuadraticDiscriminantAnalysis")),
    ("adaboost", "wine", lambda: sklearn("ensemble.AdaBoostClassifier")),
    ("boosting", "wine", lambda: sklearn("ensemble.GradientBoostingClassifier", n_estimators=20)),
    ("one against the rest", "wine", lambda: sklearn("multiclass.OneVsRestClassifier", forest())),
    ("a network", "digits", lambda: sklearn("neural_network.MLPClassifier", max_iter=50, random_state=0)),
    ("more trees", "breast_cancer", lambda: sklearn("ensemble.ExtraTreesClassifier", 20, random_state=0)),
    ("lightgbm", "wine", lightgbm),
    ("xgboost", "wine", lambda: xgboost(n_estimators=10)),
    ("xgboost of two", "breast_cancer", lambda: xgboost(n_estimators=10)),
    ("catboost", "wine", catboost),
]  # fmt: skip


def compared(case: Case, folder: Path) -> tuple[float, str]:
    """How far the file's probabilities are from the estimator's, and what proves it; or "" for a refusal."""
    _, name, made = case
    x, y = data(name)
    half = len(y) // 2
    model = made().fit(x[:half], y[:half])
    scores = np.asarray(model.predict_proba(x[half:]))
    onnx.save(converted(model, x, folder), folder / "raw.onnx")
    session = open_session(folder / "raw.onnx", threads=1)
    found = session.run(None, {session.get_inputs()[0].name: x[half:]})[-1]
    if isinstance(found, list):
        found = np.array([[row[k] for k in sorted(row)] for row in found])
    apart = np.abs(found - scores).max() if found.shape == scores.shape else np.inf
    fitted = Artifact(
        (LogitMap.temperature(2.0),), method="temperature", classes=scores.shape[1],
        model={"outputs": "probabilities"},
    )  # fmt: skip
    output = session.get_outputs()[-1].name
    try:
        report = fuse_onnx(
            folder / "raw.onnx", fitted, folder / "out.onnx", against=(x[half:], scores), output_name=output
        )
    except CalibServeError:
        assert not (folder / "out.onnx").exists()
        return float(apart), ""
    return float(apart), report.proof


@pytest.mark.parametrize("case", WRONG, ids=[case[0] for case in WRONG])
def test_a_file_of_other_scores_does_not_pass(case: Case, tmp_path: Path) -> None:
    apart, proof = compared(case, tmp_path)
    assert apart > 1e-3, "this converter is right by now: find another"
    assert not proof


@pytest.mark.parametrize("case", RIGHT, ids=[case[0] for case in RIGHT])
def test_a_file_of_the_same_scores_passes(case: Case, tmp_path: Path) -> None:
    apart, proof = compared(case, tmp_path)
    assert apart < 1e-4
    assert "of the fitted scores" in proof
