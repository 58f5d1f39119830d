#!/usr/bin/env bash
# onnx 1.23.2's ReferenceEvaluator: BatchNormalization of opset 9 to 13, without a mode of training, mixes the batch's
# own mean and variance into the given ones: a row's logits change with the rows beside it. From opset 14 on, and in
# onnxruntime 1.32.0 of both opsets, they do not.
# Guess before: the given mean and variance in every opset, as one output means inference.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.32.0 numpy
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

rows = np.array([[1.0, 2.0, 0.0], [9.0, -4.0, 5.0]], np.float32)
held = [onnx.numpy_helper.from_array(np.array(v, np.float32), n) for n, v in
        (("scale", [1, 1, 1]), ("bias", [0, 0, 0]), ("mean", [0, 0, 0]), ("var", [1, 1, 1]))]
node = helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y"], epsilon=0.0)
ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "xy"]
apart = {}
for opset in (9, 13, 14):
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    runs = {"reference": ReferenceEvaluator(model).run, "onnxruntime": session.run}
    for name, run in runs.items():
        alone, beside = run(None, {"x": rows[:1]})[0][0], run(None, {"x": rows})[0][0]
        apart[name, opset] = round(float(np.abs(beside - alone).max()), 3)
print(f"onnx {onnx.__version__}: a row beside another, and alone, apart by: {apart}")
assert all(apart["onnxruntime", opset] == 0 for opset in (9, 13, 14)) and apart["reference", 14] == 0
assert apart["reference", 9] > 0.3 and apart["reference", 13] > 0.3
PY
