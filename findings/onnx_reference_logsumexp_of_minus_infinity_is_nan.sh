#!/usr/bin/env bash
# onnx 1.23.2's ReferenceEvaluator: ReduceLogSumExp of a row of minus infinity is NaN; onnxruntime 1.32.0,
# openvino 2026.4.1 and tract 0.23.9 give minus infinity. tract instead overflows where a number is 1000.
# Guess before: the reference gives minus infinity, the logarithm of an empty sum, and tract NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  openvino==2026.4.1 onnxruntime==1.32.0 tract==0.23.9 onnx==1.23.2 numpy
"$folder/venv/bin/python" -W ignore::RuntimeWarning - "$folder/model.onnx" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
import tract
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (("x", [1, 3]), ("y", [1, 1]))]
node, path = helper.make_node("ReduceLogSumExp", ["x"], ["y"], axes=[1]), sys.argv[1]
graph = helper.make_graph([node], "g", ends[:1], ends[1:])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def found(numbers):
    x = np.array([numbers], np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    every = {
        "onnx": ReferenceEvaluator(path).run(None, {"x": x})[0],
        "onnxruntime": session.run(None, {"x": x})[0],
        "openvino": openvino.Core().compile_model(path, "CPU")(x)[0],
        "tract": tract.onnx().load(path).into_model().into_runnable().run([x])[0].to_numpy(),
    }
    return {name: float(y[0, 0]) for name, y in every.items()}


masked, large = found([-np.inf] * 3), found([1000, 999, 0])
print(f"of minus infinity: {masked}; of 1000, 999, 0: {large}")
assert np.isnan(masked.pop("onnx")) and set(masked.values()) == {-np.inf}
assert large.pop("tract") == np.inf and all(abs(value - 1000.3133) < 1e-3 for value in large.values())
PY
