#!/usr/bin/env bash
# The maximum of a row of minus infinity, as of a row whose classes are all masked, is the lowest finite float32:
# in openvino 2026.4.1 by ReduceMax, GlobalMaxPool and MaxPool, in onnxruntime 1.32.0 by both pools, in tract 0.23.9
# by ReduceMax and GlobalMaxPool. onnx 1.23.2's reference gives minus infinity for all three.
# Guess before: minus infinity everywhere, as IEEE 754's maximum has it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  openvino==2026.4.1 onnxruntime==1.32.0 tract==0.23.9 onnx==1.23.2 numpy
"$folder/venv/bin/python" - "$folder/model.onnx" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
import tract
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

CPU = ["CPUExecutionProvider"]
RUNS = {
    "onnx": lambda path, x: ReferenceEvaluator(path).run(None, {"x": x})[0],
    "onnxruntime": lambda path, x: onnxruntime.InferenceSession(path, providers=CPU).run(None, {"x": x})[0],
    "openvino": lambda path, x: openvino.Core().compile_model(path, "CPU")(x)[0],
    "tract": lambda path, x: tract.onnx().load(path).into_model().into_runnable().run([x])[0].to_numpy(),
}
CASES = {
    "ReduceMax": ([1, 4], [1, 1], {"axes": [1]}),
    "GlobalMaxPool": ([1, 1, 2, 2], [1, 1, 1, 1], {}),
    "MaxPool": ([1, 1, 2, 2], [1, 1, 1, 1], {"kernel_shape": [2, 2]}),
}
found = {}
for operator, (taken, given, attributes) in CASES.items():
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (("x", taken), ("y", given))]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]),
                              opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, sys.argv[1])
    for name, run in RUNS.items():
        found[operator, name] = float(np.ravel(run(sys.argv[1], np.full(taken, -np.inf, np.float32)))[0])
    print(operator, {name: found[operator, name] for name in RUNS})
lowest = {key for key, value in found.items() if value == np.finfo(np.float32).min}
assert lowest == {("ReduceMax", "openvino"), ("ReduceMax", "tract"), ("GlobalMaxPool", "openvino"),
                  ("GlobalMaxPool", "onnxruntime"), ("GlobalMaxPool", "tract"), ("MaxPool", "openvino"),
                  ("MaxPool", "onnxruntime")}
assert all(value == -np.inf for key, value in found.items() if key not in lowest)
PY
