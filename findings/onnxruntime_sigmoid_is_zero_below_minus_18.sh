#!/usr/bin/env bash
# onnxruntime 1.32.0 (CPU): Sigmoid of a float32 of -20 is exactly 0, and of -17 twice what it should be; Softmax of
# (0, -20), and Sigmoid of the same number in float64, give 2.06e-9.
# Guess before: within 1 % of 2.06e-9, as float32 has smaller numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper


def run(operator, x, kind):
    ends = [helper.make_tensor_value_info(name, kind, list(x.shape)) for name in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0][0]


single = run("Sigmoid", np.array([[-20, -17]], np.float32), TensorProto.FLOAT)
double = run("Sigmoid", np.array([[-20, -17]], np.float64), TensorProto.DOUBLE)
softmax = run("Softmax", np.array([[0, -20]], np.float32), TensorProto.FLOAT)
print(f"onnxruntime {onnxruntime.__version__}: Sigmoid of -20 and -17 in float32 {single}, in float64 {double}; "
      f"Softmax of 0 and -20 in float32 {softmax}")
assert single[0] == 0 and single[1] > 2 * double[1] and 2e-9 < double[0] < 2.1e-9 and 2e-9 < softmax[1] < 2.1e-9
PY
