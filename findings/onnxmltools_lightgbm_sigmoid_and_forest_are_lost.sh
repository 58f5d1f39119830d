#!/usr/bin/env bash
# onnxmltools 1.16.0 converts LightGBM 4.7.0 with sigmoid=2 to a graph that takes the sigmoid of the sum, not of twice the sum,
# so a confidence of .88 is .73; of boosting_type="rf" it sums the trees that LightGBM averages, and .5 becomes 1.
# treelite 4.8.1 reads the same two models and equals LightGBM to 1e-7.
# Guess before: the parameter of the loss stands in the model's text, and is taken over or refused.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxmltools==1.16.0 lightgbm==4.7.0 treelite==4.8.1 \
  scikit-learn==1.9.1 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 skl2onnx==1.20.0
cd "$folder"
"$folder/venv/bin/python" - <<'PY' 2> >(grep -v -e VerifyOutputSizes -e Warning -e warn >&2)
import lightgbm
import numpy as np
import onnxruntime
import treelite
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType

rng = np.random.default_rng(0)
x = rng.normal(size=(2000, 4)).astype(np.float32)
y = (x[:, 0] + rng.normal(size=2000) > 0).astype(int)
forest = {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.6}
for options in ({}, {"sigmoid": 2.0}, forest):
    model = lightgbm.LGBMClassifier(n_estimators=10, verbose=-1, n_jobs=1, **options).fit(x, y)
    own = model.predict_proba(x)[:, 1]
    graph = convert_lightgbm(model, initial_types=[("x", FloatTensorType([None, 4]))], zipmap=False)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    converted = float(np.abs(session.run(None, {"x": x})[1][:, 1] - own).max())
    model.booster_.save_model("model.txt")
    read = treelite.gtil.predict(treelite.frontend.load_lightgbm_model("model.txt"), x).ravel()
    other = float(np.abs(read - own).max())
    print(f"{options or 'as usual'}: onnxmltools is off by {converted:.3f}, treelite by {other:.1e}")
    assert other < 1e-6
    assert converted > 0.1 if options else converted < 1e-6
PY
