"""Calibration inside scikit-learn: a classifier with calibrated probabilities, which passes its checks."""

from calib_serve.core.errors import MissingDependency

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise MissingDependency(error.name or "scikit-learn", "sklearn") from error

from calib_serve.integrations.sklearn.estimators import CalibratedClassifier

__all__ = ["CalibratedClassifier"]
