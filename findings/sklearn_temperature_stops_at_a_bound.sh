#!/usr/bin/env bash
# scikit-learn 1.9.1: CalibratedClassifierCV(method="temperature") looks for the inverse temperature between e^-10 and
# e^10, and stops at the end without a word. Of a linear classifier on columns as they are, whose margins are in the
# millions, it leaves a confidence of .99 and more on average, where two of three are right, and a log loss of 10; a
# hundredth of that inverse temperature has .8.
# Guess before: the temperature with the least log loss on what it is fitted on, whatever the scale of the margins.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scikit-learn==1.9.1 numpy
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import sklearn
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_wine
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

x, y = load_wine(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
x, y = x[order], y[order]
model = SGDClassifier(random_state=0).fit(x[::2], y[::2])
fitted = CalibratedClassifierCV(FrozenEstimator(model), method="temperature").fit(x[1::2], y[1::2])
beta = fitted.calibrated_classifiers_[0].calibrators[0].beta_
probs = fitted.predict_proba(x[1::2])
margins = model.decision_function(x[1::2])


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


here, beyond = (log_loss(y[1::2], softmax(margins * b)) for b in (beta, beta / 100))
confidence, accuracy = probs.max(axis=1).mean(), np.mean(np.argmax(probs, axis=1) == y[1::2])
print(f"scikit-learn {sklearn.__version__}: margins up to {np.abs(margins).max():.0f}, inverse temperature {beta:.3g} "
      f"(e^-10 is {np.exp(-10):.3g}), confidence {confidence:.2f}, accuracy {accuracy:.2f}, log loss {here:.2f}, of a "
      f"hundredth of that {beyond:.2f}")
assert abs(beta - np.exp(-10)) < 1e-9 and confidence > accuracy + 0.2 and here > 2 * beyond
PY
