"""Calibration inside scikit-learn: a classifier with calibrated probabilities, and a calibrator of scores.

Both are scikit-learn estimators: they clone, go into pipelines and searches, and pass ``check_estimator``.
"""

from calib_serve.errors import MissingDependency

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise MissingDependency(error.name or "scikit-learn", "sklearn") from error

from calib_serve.sklearn.classifier import CalibratedClassifier
from calib_serve.sklearn.scores import ScoreCalibrator

__all__ = ["CalibratedClassifier", "ScoreCalibrator"]
