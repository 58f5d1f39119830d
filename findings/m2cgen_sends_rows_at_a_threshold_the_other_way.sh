#!/usr/bin/env bash
# m2cgen 0.10.0 with xgboost-cpu 3.2.0: the code compares doubles with thresholds as the shortest decimals of float32.
# Of trees by "hist" and "approx", whose thresholds are values of the data, a row that has that very value goes the other
# way: 2 % of the rows that the model was trained on, in float32, are off by .2 to .4. Thresholds put back into float32,
# or rows written as decimals, give predict_proba to 1e-6, as trees by "exact" do, whose thresholds lie between values.
# Guess before: float32 rows give predict_proba to 1e-6, whatever the tree method, where base_score is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check m2cgen==0.10.0 xgboost-cpu==3.2.0 \
  scikit-learn==1.9.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import re
from importlib.metadata import version

import m2cgen
import numpy as np
import xgboost
from sklearn.datasets import load_breast_cancer

x, y = load_breast_cancer(return_X_y=True)
x = x[:, :6].astype(np.float32)


def off(code, rows, probs):
    """Largest error of a probability, and the share of rows that are off."""
    made = {}
    exec(code, made)  # the text that m2cgen has just written
    apart = np.abs(np.array([made["score"](row) for row in rows]) - probs).max(axis=1)
    return round(float(apart.max()), 6), round(float((apart > 1e-6).mean()), 4)


found = {}
for method in ("hist", "approx", "exact"):
    model = xgboost.XGBClassifier(n_estimators=10, tree_method=method, base_score=0.5, random_state=0, n_jobs=1)
    probs = model.fit(x, y).predict_proba(x)
    code = m2cgen.export_to_python(model)
    single = re.sub(r"(?<= < )[\d.e+-]+(?=:)", lambda one: repr(float(np.float32(one[0]))), code)
    assert method == "exact" or single != code
    found[method] = {
        "as float32": off(code, x.tolist(), probs),
        "as decimals": off(code, [[float(str(value)) for value in row] for row in x], probs),
        "thresholds in float32": off(single, x.tolist(), probs),
    }
    print(f"m2cgen {version('m2cgen')}, xgboost {xgboost.__version__}, {method}: {found[method]}")
for method in ("hist", "approx"):
    assert found[method]["as float32"][0] > 0.2 and 0.01 < found[method]["as float32"][1] < 0.05
    assert all(found[method][how][0] < 1e-6 for how in ("as decimals", "thresholds in float32"))
assert all(largest < 1e-6 for largest, _ in found["exact"].values())
PY
