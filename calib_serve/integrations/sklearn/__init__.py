"""Calibration inside scikit-learn: a classifier with calibrated probabilities, and a calibrator of scores.

Both are scikit-learn estimators: they clone, and go into pipelines and searches. The classifier passes
``check_estimator``; to the calibrator of scores those checks do not apply that fit d features to K classes.
"""

from calib_serve.core.errors import MissingDependency

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise MissingDependency(error.name or "scikit-learn", "sklearn") from error

from calib_serve.integrations.sklearn.estimators import CalibratedClassifier, ScoreCalibrator

__all__ = ["CalibratedClassifier", "ScoreCalibrator"]
