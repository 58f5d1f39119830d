#!/usr/bin/env bash
# venn-abers 1.5.4: VennAbersCalibrator takes two labels for the numbers 0 and 1, whatever they are: of labels -1 and 1,
# and of 1 and 2, "probabilities" run from -20 to 20, without a word. Of three classes, one of which the calibration set
# lacks, two columns come back, made of the second class's probability alone.
# Guess before: columns in the order of the sorted labels, as scikit-learn's, or a refusal; of a class without samples
# a refusal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check venn-abers==1.5.4 scikit-learn==1.9.1 numpy
"$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import numpy as np
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale
from venn_abers import VennAbersCalibrator


def answered(load, named):
    """Probabilities of the last third, calibrated on the second, whose classes have these labels."""
    x, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = scale(x)[order, :2], y[order]
    first, second, last = np.array_split(np.arange(len(y)), 3)
    model = LogisticRegression().fit(x[first], y[first])
    cal, test = model.predict_proba(x[second]), model.predict_proba(x[last])
    keep = np.isin(y[second], list(named))
    labels = np.array([named[i] for i in y[second][keep]])
    return VennAbersCalibrator().predict_proba(p_cal=cal[keep], y_cal=labels, p_test=test)


cases = {
    "0 and 1": answered(load_breast_cancer, {0: 0, 1: 1}),
    "-1 and 1": answered(load_breast_cancer, {0: -1, 1: 1}),
    "1 and 2": answered(load_breast_cancer, {0: 1, 1: 2}),
    "0, 1 and 2": answered(load_wine, {0: 0, 1: 1, 2: 2}),
    "0 and 2 of three": answered(load_wine, {0: 0, 2: 2}),
}
for name, rows in cases.items():
    print(f"venn-abers {version('venn-abers')}: labels {name}: {rows.shape[1]} columns from {rows.min():.2f} to "
          f"{rows.max():.2f}")
assert all(cases[name].min() >= 0 and cases[name].max() <= 1 for name in ("0 and 1", "0, 1 and 2"))
assert all(cases[name].min() < -5 and cases[name].max() > 5 for name in ("-1 and 1", "1 and 2"))
assert cases["0, 1 and 2"].shape[1] == 3 and cases["0 and 2 of three"].shape[1] == 2
PY
