#!/usr/bin/env bash
# xgboost-cpu 3.2.0: with objective binary:logitraw, predict_proba returns the raw margin z in its second column and
# 1 - z in its first: rows sum to 1 and are no probabilities.
# Guess before: predict_proba applies the sigmoid, or refuses.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgboost-cpu==3.2.0 scikit-learn==1.9.1 numpy
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import xgboost
from sklearn.datasets import load_breast_cancer

x, y = load_breast_cancer(return_X_y=True)
model = xgboost.XGBClassifier(objective="binary:logitraw", n_estimators=30, random_state=0).fit(x, y)
rows, z = model.predict_proba(x), model.predict(x, output_margin=True)
off, low, high = np.abs(rows.sum(axis=1) - 1).max(), rows.min(), rows.max()
print(f"xgboost {xgboost.__version__}: rows sum to 1 within {off:.1e}, values from {low:.2f} to {high:.2f}")
assert off < 1e-5 and low < -1 and high > 2 and np.allclose(rows[:, 1], z)
PY
