#!/usr/bin/env bash
# onnxmltools 1.16.0 with xgboost-cpu 3.2.0: of objective multi:softmax, the output "probabilities" of the file holds
# raw margins, below 0 and above 1, and no word of it; of multi:softprob, the same trees, they are predict_proba's.
# Guess before: both objectives give probabilities, as XGBClassifier.predict_proba does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xgboost-cpu==3.2.0 scikit-learn==1.9.1 \
  onnxmltools==1.16.0 skl2onnx==1.20.0 onnx==1.23.2 onnxruntime==1.32.0 "protobuf<7" numpy
"$folder/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import onnxmltools
import onnxruntime
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from sklearn.datasets import load_wine

x, y = load_wine(return_X_y=True)
x, found = x.astype(np.float32), {}
for objective in ("multi:softprob", "multi:softmax"):
    model = xgboost.XGBClassifier(objective=objective, n_estimators=10, random_state=0).fit(x, y)
    made = onnxmltools.convert_xgboost(model, initial_types=[("x", FloatTensorType([None, 13]))], target_opset=15)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    rows, own = session.run(["probabilities"], {"x": x})[0], model.predict_proba(x)
    margins = model.predict(x, output_margin=True)
    apart = [float(np.abs(rows - wanted).max()) for wanted in (own, margins)]
    found[objective] = (*apart, float(rows.min()), float(rows.max()))
    print(f"onnxmltools {onnxmltools.__version__}, {objective}: off predict_proba by {apart[0]:.1e}, off margins by "
          f"{apart[1]:.1e}, from {rows.min():.2f} to {rows.max():.2f}")
assert found["multi:softprob"][0] < 1e-5
assert found["multi:softmax"][0] > 0.5 and found["multi:softmax"][2] < -0.5 and found["multi:softmax"][3] > 1.5
PY
