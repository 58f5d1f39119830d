#!/usr/bin/env bash
# CatBoost 1.2.10 trains MultiClassOneVsAll with a sigmoid a class, and its predict_proba answers so; its rows sum to 1.3 here.
# The ONNX file that it writes takes a Softmax of the same sums: each row sums to 1, and a class moves by .16.
# Guess before: LOGISTIC, one for each class, as the operator has it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check catboost==1.2.10 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnxruntime
from catboost import CatBoostClassifier

rng = np.random.default_rng(0)
x = rng.normal(size=(2000, 4)).astype(np.float32)
y = np.digitize(x[:, 0] + 0.5 * rng.normal(size=2000), [-0.5, 0.5])
for loss in ("MultiClass", "MultiClassOneVsAll"):
    model = CatBoostClassifier(
        loss_function=loss, iterations=20, verbose=0, thread_count=1, allow_writing_files=False
    ).fit(x, y)
    model.save_model("model.onnx", format="onnx")
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    exported = np.array([[row[k] for k in range(3)] for row in session.run(None, {"features": x})[1]])
    own = model.predict_proba(x)
    off = float(np.abs(exported - own).max())
    sums = own.sum(axis=1)
    print(f"{loss}: its own rows sum to {sums.min():.2f} to {sums.max():.2f}; the file's are off by {off:.3f}")
    assert np.allclose(exported.sum(axis=1), 1, atol=1e-6)
    assert off < 1e-6 if loss == "MultiClass" else off > 0.1 and sums.max() > 1.2
PY
