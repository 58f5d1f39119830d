#!/usr/bin/env bash
# netcal 1.4.0 fits a temperature to float64 probabilities, and none to the same numbers as float32: it stays at exactly 1, for two
# classes and for ten, and fit() says nothing. Its search takes finite differences in the type of its input, and those of
# float32 are zero.
# Guess before: a temperature that differs in the sixth digit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check netcal==1.4.0 numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1
"$folder/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from netcal.scaling import TemperatureScaling


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


rng = np.random.default_rng(0)
for classes in (2, 10):
    logits = 2 * rng.normal(size=(4000, classes))
    labels = np.array([rng.choice(classes, p=p) for p in softmax(logits)])
    found = {}
    for kind in (np.float64, np.float32):
        probs = softmax(3 * logits).astype(kind)
        calibrator = TemperatureScaling()
        calibrator.fit(probs[:, 1] if classes == 2 else probs, labels)
        found[kind.__name__] = float(np.ravel(calibrator.temperature)[0])
    print(f"{classes} classes, logits three times too large: the factor is {found}")
    assert abs(found["float64"] - 1 / 3) < 0.02 and found["float32"] == 1
PY
