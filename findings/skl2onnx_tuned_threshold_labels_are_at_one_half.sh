#!/usr/bin/env bash
# skl2onnx 1.20.0 converts TunedThresholdClassifierCV of scikit-learn 1.9.1, and leaves the threshold out: the graph's label
# output says class 1 from one half on, its probabilities are right. FixedThresholdClassifier, the same with a number that is
# given, is refused.
# Guess before: converted with its threshold, or refused, as its sibling is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check skl2onnx==1.20.0 scikit-learn==1.9.1 onnx==1.23.2 \
  onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from skl2onnx.common.exceptions import MissingShapeCalculator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV

rng = np.random.default_rng(0)
x = rng.normal(size=(3000, 4)).astype(np.float32)
y = (x[:, 0] + rng.normal(size=3000) > 1.5).astype(int)
model = TunedThresholdClassifierCV(LogisticRegression(), scoring="f1").fit(x, y)
graph = to_onnx(model, x[:1], options={"zipmap": False})
session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
labels, probs = session.run(None, {"X": x})
own = model.predict(x)
print(f"threshold {model.best_threshold_:.3f}: predict says 1 {own.sum()} times, the graph {labels.sum()} times")
assert np.abs(probs - model.predict_proba(x)).max() < 1e-6
assert model.best_threshold_ < 0.45 and np.array_equal(labels, (probs[:, 1] > 0.5).astype(int))
assert own.sum() > 1.1 * labels.sum()
try:
    to_onnx(FixedThresholdClassifier(LogisticRegression(), threshold=0.3).fit(x, y), x[:1])
except MissingShapeCalculator:
    print("FixedThresholdClassifier is refused")
else:
    raise AssertionError("FixedThresholdClassifier is converted")
PY
