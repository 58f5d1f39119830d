#!/usr/bin/env bash
# ngboost 0.5.11: after a fit that stopped early, predict_proba is of the last tree and not of the best one: a log loss on
# the validation rows of .288, where the best had .269. max_iter=best_val_loss_itr, which names that one, gives the tree
# before it, as the number counts from 0. And the fit begins at the share of classes without sample_weight.
# Guess before: the best iteration, as xgboost and lightgbm take by themselves; the number is what max_iter means.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ngboost==0.5.11 scikit-learn==1.9.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import numpy as np
from ngboost import NGBClassifier
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss
from sklearn.tree import DecisionTreeRegressor

x, y = load_breast_cancer(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
x, y = x[order, :4], y[order]
first, rest = slice(0, 250), slice(250, None)
base = DecisionTreeRegressor(max_depth=3, random_state=0)  # random_state of NGBClassifier does not reach its trees
options = {"Base": base, "learning_rate": 0.1, "verbose": False, "random_state": 0}
model = NGBClassifier(n_estimators=400, **options).fit(
    x[first], y[first], X_val=x[rest], Y_val=y[rest], early_stopping_rounds=20
)
staged = [log_loss(y[rest], probs) for probs in model.staged_predict_proba(x[rest])]
given = log_loss(y[rest], model.predict_proba(x[rest]))
named = log_loss(y[rest], model.predict_proba(x[rest], max_iter=model.best_val_loss_itr))
best = int(np.argmin(staged))
starts = [
    NGBClassifier(n_estimators=1, **options).fit(x, y, sample_weight=weights).init_params
    for weights in (None, np.where(y == 1, 100.0, 1.0))
]
print(f"ngboost {version('ngboost')}: of {len(staged)} trees, number {model.best_val_loss_itr} is named the best: log loss "
      f"{staged[best]:.4f}; predict_proba {given:.4f}; with that number as max_iter {named:.4f}; begins at "
      f"{starts[0]}, where class 1 weighs 100 at {starts[1]}")
assert best == model.best_val_loss_itr and len(staged) > best + 10
assert given == staged[-1] > staged[best] + 0.01 and named == staged[best - 1] > staged[best]
assert np.array_equal(*starts)
PY
