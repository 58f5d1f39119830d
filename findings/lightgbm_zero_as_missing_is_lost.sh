#!/usr/bin/env bash
# treelite 4.8.1 and onnxmltools 1.16.0 with lightgbm 4.7.0: of a model with zero_as_missing=True, both read zeros as
# numbers, without a word: probabilities are off by .3 and more. m2cgen 0.10.0 refuses such a model, and onnxmltools
# refuses xgboost's missing=0.
# Guess before: treelite gives lightgbm's numbers, onnxmltools gives them or refuses.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check m2cgen==0.10.0 lightgbm==4.7.0 scikit-learn==1.9.1 \
  treelite==4.8.1 onnxmltools==1.16.0 skl2onnx==1.20.0 onnx==1.23.2 onnxruntime==1.32.0 "protobuf<7" numpy
"$folder/venv/bin/python" -W ignore - <<'PY'
import lightgbm
import m2cgen
import numpy as np
import onnxmltools
import onnxruntime
import treelite
import treelite.gtil
from onnxmltools.convert.common.data_types import FloatTensorType
from sklearn.datasets import load_breast_cancer

x, y = load_breast_cancer(return_X_y=True)
x = x[:, :8].astype(np.float32)
x[np.random.default_rng(0).random(x.shape) < 0.3] = 0


def by_treelite(model):
    return np.ravel(treelite.gtil.predict(treelite.frontend.from_lightgbm(model.booster_), x))


def by_onnx(model):
    graph = onnxmltools.convert_lightgbm(model, initial_types=[("x", FloatTensorType([None, 8]))], zipmap=False)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[1][:, 1]


off = {}
for zero in (False, True):
    model = lightgbm.LGBMClassifier(n_estimators=20, verbose=-1, random_state=0, zero_as_missing=zero).fit(x, y)
    for tool, run in (("treelite", by_treelite), ("onnxmltools", by_onnx)):
        off[zero, tool] = round(float(np.abs(run(model) - model.predict_proba(x)[:, 1]).max()), 6)
print(f"lightgbm {lightgbm.__version__}: largest difference of a probability, by zero_as_missing: {off}")
assert max(off[False, tool] for tool in ("treelite", "onnxmltools")) < 1e-5
assert min(off[True, tool] for tool in ("treelite", "onnxmltools")) > 0.3
try:
    m2cgen.export_to_python(model)
except ValueError as error:
    assert "missing_type" in str(error)
else:
    raise SystemExit("m2cgen takes zero_as_missing now")
PY
