"""Calibrate scikit-learn classifiers, beside scikit-learn's own CalibratedClassifierCV.

    python examples/scikit_learn.py             # three small data sets that come with it; some minutes

Every row is the mean over splits of half the data to train and calibrate on, half to test; NLL in nats, ECE
in percent, over 15 bins. The sets are small: differences below the spread mean nothing.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from calib_serve.integrations.sklearn.estimators import CalibratedClassifier
from calib_serve.metrics import accuracy, ece, nll

DATA = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}

CLASSIFIERS = {
    "naive Bayes": GaussianNB(),
    "forest": RandomForestClassifier(100, random_state=0),
    "linear SVM": make_pipeline(StandardScaler(), LinearSVC(random_state=0)),
}


def calibrated(estimator: Any) -> dict[str, Any]:
    """The classifier as it is, under scikit-learn's methods, and under ours."""
    theirs = {
        f"scikit-learn, {method}": CalibratedClassifierCV(clone(estimator), method=method)
        for method in ("sigmoid", "isotonic", "temperature")
    }
    ours = {"calib_serve, auto": CalibratedClassifier(clone(estimator))}
    plain = {"as it is": clone(estimator)} if hasattr(estimator, "predict_proba") else {}
    return {**plain, **theirs, **ours}


def measure(model: Any, parts: list[Any]) -> tuple[float, float, float]:
    """Accuracy, NLL and ECE on the test half of ``parts``."""
    x, x_test, y, y_test = parts
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        probs = np.clip(model.fit(x, y).predict_proba(x_test), 1e-12, 1)  # isotonic may give 0: infinite NLL
    probs /= probs.sum(axis=1, keepdims=True)
    return accuracy(probs, y_test), nll(probs, y_test), ece(probs, y_test)


def main() -> None:
    """Read the options, fit, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--splits", type=int, default=5, help="Splits into halves, by seed.")
    splits = parser.parse_args().splits
    print(f"{'data':<15}{'classifier':<13}{'calibration':<27}{'accuracy':>9}{'NLL':>16}{'ECE':>14}")
    for data, load in DATA.items():
        x, y = load(return_X_y=True)
        for name, estimator in CLASSIFIERS.items():
            for calibration in calibrated(estimator):
                found = []
                for seed in range(splits):
                    parts = train_test_split(x, y, test_size=0.5, random_state=seed, stratify=y)
                    found.append(measure(calibrated(estimator)[calibration], parts))
                mean, spread = np.mean(found, axis=0), np.std(found, axis=0)
                print(
                    f"{data:<15}{name:<13}{calibration:<27}{mean[0]:>9.3f}"
                    f"{mean[1]:>9.3f} ± {spread[1]:.2f}{100 * mean[2]:>8.2f} ± {100 * spread[2]:.1f}"
                )


if __name__ == "__main__":
    main()
