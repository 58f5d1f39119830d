#!/usr/bin/env bash
# CatBoost 1.2.10 writes a model of the classes 1 and 2 with a label output that is 0 or 1 in onnxruntime 1.32.0, of -1 and 1
# as well; the ZipMap beside it names the classes as they are. CatBoost gives both classes of a leaf in one number, which
# onnxruntime answers by its own constants; forests of scikit-learn in the same operator keep their names.
# Guess before: the label is one of classlabels_int64s, which the file holds.
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
is_second = x[:, 0] + rng.normal(size=2000) > 0
for first, second in ((0, 1), (1, 2), (-1, 1)):
    model = CatBoostClassifier(iterations=20, verbose=0, thread_count=1, allow_writing_files=False)
    model.fit(x, np.where(is_second, second, first))
    model.save_model("model.onnx", format="onnx")
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    labels, probabilities = session.run(None, {"features": x})
    said, named = set(np.unique(labels).tolist()), set(probabilities[0])
    print(f"classes {first} and {second}: predict {np.unique(model.predict(x))}, the label output {said}, ZipMap {named}")
    assert set(np.unique(model.predict(x))) == named == {first, second}
    assert said == {0, 1}
PY
