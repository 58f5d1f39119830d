"""A calibrator of scores that are there already, as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError, ShapeError
from calib_serve.scores import Outputs, Scores
from calib_serve.sklearn.choice import calibrated, seed_of


class ScoreCalibrator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Calibrated probabilities of scores (n, K), a column a class; one column for two classes.

    ``outputs`` says what the scores hold: "logits", "log_probs" or "probabilities"; else their numbers do, in
    ``fit``. ``method`` is "auto" or a method's name, ``options`` its own options, ``random_state`` the seed
    of what is drawn.
    ``classes`` are the labels in the order of the columns; by default those of y, sorted.

    After ``fit``: ``artifact_`` is the calibration, ``method_`` the method that was fitted, ``classes_``
    the labels.

    >>> scores = [[0.0, 2.0], [2.0, 0.0]] * 4  # right three times of four
    >>> calibrator = ScoreCalibrator("temperature").fit(scores, ["b", "a", "b", "a", "b", "a", "a", "b"])
    >>> calibrator.predict_proba([[0.0, 2.0]]).round(3).tolist()
    [[0.25, 0.75]]
    """

    artifact_: Artifact
    classes_: NDArray[Any]
    method_: str

    def __init__(
        self,
        method: str = "auto",
        *,
        outputs: Outputs | None = None,
        classes: ArrayLike | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.outputs = outputs
        self.classes = classes
        self.options = options
        self.random_state = random_state

    def fit(self, scores: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ScoreCalibrator:
        """Fit to scores and labels y (n,), which the model must not have been trained on."""
        z, y = validate_data(self, scores, y, dtype=np.float64)
        classes, labels = encoded(y, self.classes)
        given = Scores.of(z, outputs=self.outputs)
        if given.is_multilabel:
            raise InputError(f"{given.outputs} are of a multi-label model; fit them with calibrate()")
        if given.classes != len(classes):
            raise ShapeError(
                f"the scores have {given.classes} columns and y {len(classes)} classes; give every class a "
                "column, and name them all (classes=) where y lacks some"
            )
        self.artifact_ = calibrated(
            np.asarray(given.logits, np.float64),
            labels,
            method=self.method,
            outputs=given.outputs,
            class_names=classes,
            sample_weight=sample_weight,
            options=self.options,
            seed=seed_of(self.random_state),
        )
        self.classes_ = classes
        self.method_ = self.artifact_.method
        return self

    def predict_proba(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Calibrated probabilities (n, K)."""
        check_is_fitted(self, "artifact_")
        z = validate_data(self, scores, dtype=np.float64, reset=False)
        return self.artifact_.probs(z, outputs=self.artifact_.model.outputs)

    def predict(self, scores: ArrayLike) -> NDArray[Any]:
        """The class of the largest probability, (n,)."""
        probs = self.predict_proba(scores)
        return np.asarray(self.classes_[probs.argmax(axis=1)])


def encoded(y: ArrayLike, classes: ArrayLike | None = None) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The classes (K,) and y as class ids (n,); InputError for labels that are not among ``classes``."""
    assert_all_finite(y)
    check_classification_targets(y)
    encoder = LabelEncoder().fit(y)
    found = encoder.classes_
    known = found if classes is None else np.asarray(classes)
    if len(known) < 2:
        raise InputError(f"y holds one class, {known.tolist()}; a classifier needs at least two classes")
    if classes is None:
        return known, encoder.transform(y).astype(np.intp)
    place = {label: k for k, label in enumerate(known.tolist())}
    strange = [label for label in found.tolist() if label not in place]
    if strange:
        raise InputError(f"y holds labels {strange[:5]} that are not among the classes {known.tolist()[:20]}")
    ids = np.array([place[label] for label in found.tolist()], np.intp)
    return known, ids[encoder.transform(y)]
