"""Classifiers that add class priors to scores of features: these are no mask, and their size is no error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fuse_artifacts import artifact
from fuse_texts import graph
from onnx.reference import ReferenceEvaluator
from onnx_runtimes import by_onnxruntime
from skl2onnx import to_onnx
from sklearn.datasets import load_digits, load_wine
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import ComplementNB, GaussianNB, MultinomialNB

from calib_serve import calibrate
from calib_serve.artifact import LogitMap
from calib_serve.fuse import fuse_onnx
from calib_serve.scores import softmax

X = np.random.default_rng(0).normal(size=(60, 3)).astype("f4")
SCALE, BIAS = np.array([2.0, 0.5, 1.25]), np.array([1.0, -1.0, 0.25])


@pytest.mark.parametrize(
    ("made", "load", "near"),
    [
        (GaussianNB(), load_wine, 1e-5),  # whose largest means are above 1000, as a mask's numbers
        (QuadraticDiscriminantAnalysis(), load_wine, 1e-5),  # which takes the logarithm of the priors
        (MultinomialNB(alpha=50), load_digits, 3e-4),  # scores of some hundreds, in float32
        (ComplementNB(alpha=50), load_digits, 3e-4),
    ],
    ids=lambda one: type(one).__name__,
)
def test_priors_are_calibrated_behind_and_not_before(
    made: Any, load: Any, near: float, tmp_path: Path
) -> None:
    x, y = load(return_X_y=True)
    x, rng = x.astype("f4"), np.random.default_rng(0)
    y = np.where(rng.random(len(y)) < 0.2, rng.integers(0, y.max() + 1, len(y)), y)
    model = made.fit(x[::2], y[::2])
    probs = model.predict_proba(x[1::2])
    plain = {id(model): {"zipmap": False}}
    onnx.save(
        to_onnx(model, x[:1], target_opset={"": 18, "ai.onnx.ml": 3}, options=plain), tmp_path / "raw.onnx"
    )
    fitted = calibrate(probs, y[1::2], "vector", outputs="probabilities", cross_validate=False)
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", returns="all", against=(x[1::2], probs))
    found = by_onnxruntime(tmp_path / "out.onnx", {"X": x[1::2]})["confidence"]
    assert np.abs(found - fitted.probs(probs).max(axis=1)).max() < near


@pytest.mark.parametrize("opset", [13, 14])
def test_a_scale_and_a_bias_of_each_class_are_those_of_the_row_alone(opset: int, tmp_path: Path) -> None:
    # onnx's reference lets a BatchNormalization of opset 9 to 13 read the whole batch.
    onnx.save(graph("z = Neg(x) y = Softmax(z)", imports=f'"" : {opset}'), tmp_path / "raw.onnx")
    fitted = artifact(LogitMap(SCALE, BIAS), classes=3)
    fuse_onnx(tmp_path / "raw.onnx", fitted, tmp_path / "out.onnx", unproven=True)
    (found,) = ReferenceEvaluator(onnx.load(tmp_path / "out.onnx")).run(None, {"x": X})
    assert np.abs(found - softmax(-X * SCALE + BIAS)).max() < 1e-6
