#!/usr/bin/env bash
# catboost 1.2.10 and onnxruntime 1.32.0: of two classes and any bias that is not 0, as boost_from_average=True leaves
# one, onnxruntime gives each class the other's probability, off by up to .99, the named class with it; a bias of 1e-6
# is enough. onnx 1.23.2's reference reads the same file right, and so is onnxruntime with a bias of 0.
# Guess before: the file holds scale and bias, and every runtime gives predict_proba to 1e-6; or no file is written.
# A scale that is not 1 is refused by catboost.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check catboost==1.2.10 scikit-learn==1.9.1 \
  onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - "$folder/model.onnx" <<'PY'
import sys

import catboost
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from sklearn.datasets import load_breast_cancer

x, y = load_breast_cancer(return_X_y=True)
x = x[:, :6].astype(np.float32)
found = {}


def compare(name, model):
    """Largest error of a probability in onnxruntime and in the reference, and the share of rows of the same class."""
    model.save_model(sys.argv[1], format="onnx")
    file = onnx.load(sys.argv[1])
    onnx.checker.check_model(file)
    label, probs = file.graph.node[0].output
    del file.graph.node[1:], file.graph.output[1:]  # the ZipMap, which the reference lacks
    file.graph.output.append(helper.make_tensor_value_info(probs, TensorProto.FLOAT, [None, 2]))
    session = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    served, rows = session.run([label, probs], {"features": x})
    by_reference = ReferenceEvaluator(file).run([probs], {"features": x})[0]
    own = model.predict_proba(x)
    off = [round(float(np.abs(found - own).max()), 4) for found in (rows, by_reference)]
    found[name] = *off, float(np.mean(served == model.predict(x)))
    scale, bias = model.get_scale_and_bias()
    print(f"catboost {catboost.__version__}, {name}, bias {bias:.6f}: off in onnxruntime {onnxruntime.__version__} by "
          f"{off[0]}, in onnx's reference by {off[1]}; the same class in {found[name][2]:.1%} of the rows")


options = {"iterations": 20, "depth": 3, "random_seed": 0, "thread_count": 1, "verbose": 0, "allow_writing_files": False}
model = catboost.CatBoostClassifier(**options).fit(x, y)
compare("plain", model)
compare("boost_from_average", catboost.CatBoostClassifier(**options, boost_from_average=True).fit(x, y))
model.set_scale_and_bias(1, 1e-6)
compare("hardly any", model)
assert found["plain"] == (0, 0, 1)
assert all(found[name][0] > 0.9 and found[name][1] == 0 for name in ("boost_from_average", "hardly any"))
assert all(found[name][2] < 0.2 for name in ("boost_from_average", "hardly any"))
try:
    model.set_scale_and_bias(0.5, 0.0)
    model.save_model(sys.argv[1], format="onnx")
except catboost.CatBoostError as error:
    assert "Scale" in str(error)
else:
    raise SystemExit("catboost takes a scale now")
PY
