#!/usr/bin/env bash
# libsvm-official 3.35.0: svm-predict's probabilities (-b 1) come in the order in which labels first appear in the
# training data, for labels 0 and 1; the same data sorted the other way give the other order.
# Guess before: columns are in the labels' own order, as scikit-learn's classes_ are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check libsvm-official==3.35.0 scikit-learn==1.9.1 numpy scipy
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
from libsvm.svmutil import svm_predict, svm_problem, svm_parameter, svm_train
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

x, y = load_breast_cancer(return_X_y=True)
x = scale(x)
found = {}
for first in (0, 1):
    order = np.argsort(y != first, kind="stable")
    model = svm_train(svm_problem(y[order].tolist(), x[order].tolist()), svm_parameter("-q -b 1"))
    _, _, rows = svm_predict([], x.tolist(), model, "-q -b 1")
    found[first] = model.get_labels(), float(np.mean(np.argmax(rows, axis=1) == y))
for first, (labels, accuracy) in found.items():
    print(f"libsvm {version('libsvm-official')}: trained with label {first} first: columns {labels}, accuracy by "
          f"position {accuracy:.3f}")
assert found[0][0] == [0, 1] and found[1][0] == [1, 0] and found[0][1] > 0.9 > 0.1 > found[1][1]
PY
