#!/usr/bin/env bash
# lightgbm 4.7.0: with objective multiclassova, rows of predict_proba are a sigmoid a class, and do not sum to 1,
# although each sample has one class.
# Guess before: predict_proba divides each row by its sum, as scikit-learn's OneVsRestClassifier does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check lightgbm==4.7.0 scikit-learn==1.9.1 numpy
"$folder/venv/bin/python" - <<'PY'
import lightgbm
from sklearn.datasets import load_iris
from sklearn.multiclass import OneVsRestClassifier

x, y = load_iris(return_X_y=True)
own = lightgbm.LGBMClassifier(objective="multiclassova", n_estimators=20, verbose=-1, random_state=0)
sums = own.fit(x, y).predict_proba(x).sum(axis=1)
rest = OneVsRestClassifier(lightgbm.LGBMClassifier(n_estimators=20, verbose=-1, random_state=0))
others = rest.fit(x, y).predict_proba(x).sum(axis=1)
print(f"lightgbm {lightgbm.__version__}: rows sum to {sums.min():.3f} to {sums.max():.3f}; of scikit-learn's "
      f"one against the rest to {others.min():.3f} to {others.max():.3f}")
assert sums.min() < 0.99 and sums.max() > 1.01 and abs(others - 1).max() < 1e-9
PY
