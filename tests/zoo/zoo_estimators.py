"""Estimators of scikit-learn, XGBoost and LightGBM, by their own converters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from libraries import library
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from specimens import ROWS, Feeds, Specimen, quiet

Maker = Callable[[], Any]


def samples(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype("f4")
    noisy = x[:, 0] + 0.8 * rng.normal(size=240)
    return x, np.digitize(noisy, np.linspace(-0.7, 0.7, classes - 1) if classes > 2 else [0.0])


def _sklearn(make: Maker, classes: int, opset: int, maps: bool, path: Path) -> Feeds:
    x, y = samples(classes)
    with quiet():
        fitted = make().fit(x, y)
        exported = library("skl2onnx").to_onnx(fitted, x[:1], target_opset=opset, options={"zipmap": maps})
    onnx.save(exported, path)
    return {"X": x[:ROWS]}


def _boosted(make: Maker, converter: str, classes: int, path: Path) -> Feeds:
    x, y = samples(classes)
    tools = library("onnxmltools")
    floats = library("onnxmltools.convert.common.data_types").FloatTensorType([None, 4])
    with quiet():
        fitted = make().fit(x, y)
        exported = getattr(tools, converter)(fitted, initial_types=[("X", floats)], target_opset=15)
    onnx.save(exported, path)
    return {"X": x[:ROWS]}


def xgboost() -> Any:
    return library("xgboost").XGBClassifier(n_estimators=5, max_depth=3, n_jobs=1)


def lightgbm() -> Any:
    return library("lightgbm").LGBMClassifier(n_estimators=5, max_depth=3, verbose=-1, n_jobs=1)


_PROBABILITIES = {"outputs": "probabilities"}


def _estimator(
    name: str, make: Maker, classes: int, opset: int = 17, *, maps: bool = False, **facts: Any
) -> Specimen:
    shown = f"scikit-learn {name}, {classes} classes, opset {opset}" + (", ZipMap" if maps else "")
    return Specimen(
        shown,
        partial(_sklearn, make, classes, opset, maps),
        classes,
        "probabilities",
        options=_PROBABILITIES,
        **facts,
    )


def _booster(name: str, make: Maker, classes: int, **facts: Any) -> Specimen:
    converter = f"convert_{name.lower()}"
    return Specimen(
        f"{name}, {classes} classes",
        partial(_boosted, make, converter, classes),
        classes,
        "probabilities",
        options=_PROBABILITIES,
        refusals={"": "opset"},
        **facts,
    )


SMALL = [
    _estimator("logistic", LogisticRegression, 2, 13, maps=True),
    _estimator("random forest", lambda: RandomForestClassifier(5, max_depth=3, random_state=0), 3),
    _estimator("network", lambda: MLPClassifier(8, max_iter=20, random_state=0), 3, 21),
    _booster("XGBoost", xgboost, 3),
    _booster("LightGBM", lightgbm, 2),
]
LARGE = [
    _estimator("logistic", LogisticRegression, 4, 21),
    _estimator("one logistic a class", lambda: OneVsRestClassifier(LogisticRegression()), 3),
    _estimator("naive Bayes", GaussianNB, 3),
    _estimator("naive Bayes, binary", BernoulliNB, 2, 15),
    _estimator("neighbours", lambda: KNeighborsClassifier(5), 3),
    _estimator("extra trees", lambda: ExtraTreesClassifier(5, max_depth=3, random_state=0), 2, 18, maps=True),
    _estimator("tree", lambda: DecisionTreeClassifier(max_depth=3, random_state=0), 3, 14),
    _estimator("support vectors", lambda: SVC(probability=True, random_state=0), 3),
    _estimator("network", lambda: MLPClassifier(8, max_iter=20, random_state=0), 2),
    _estimator("pipeline", lambda: make_pipeline(StandardScaler(), LogisticRegression()), 3, 19, maps=True),
    _estimator("boosted trees", lambda: GradientBoostingClassifier(n_estimators=5), 3),
    _estimator("AdaBoost", lambda: AdaBoostClassifier(n_estimators=5), 3),
    _estimator("discriminants", LinearDiscriminantAnalysis, 3, 20),
    _estimator("Platt's", lambda: CalibratedClassifierCV(LogisticRegression(), cv=3), 3),
    _booster("XGBoost", xgboost, 2),
    _booster("LightGBM", lightgbm, 3),
]
