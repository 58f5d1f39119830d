#!/usr/bin/env bash
# tract 0.23.9: Sigmoid is a rational function of a clipped number: of -20, and of -100, it is 4.5e-7, which is 200
# times too much for -20. Softmax of (0, -20) is right.
# Guess before: within 1 % of 2.06e-9.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tract==0.23.9 onnx==1.23.2 numpy
"$folder/venv/bin/python" - "$folder/model.onnx" <<'PY'
import sys
from importlib.metadata import version

import numpy as np
import onnx
import tract
from onnx import TensorProto, helper


def run(operator, *numbers):
    x = np.array([numbers], np.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(x.shape)) for name in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), sys.argv[1])
    return tract.onnx().load(sys.argv[1]).into_model().into_runnable().run([x])[0].to_numpy()[0]


sigmoid, softmax = run("Sigmoid", -10, -20, -100), run("Softmax", 0, -20)
print(f"tract {version('tract')}: Sigmoid of -10, -20, -100: {sigmoid}; Softmax of 0, -20: {softmax}")
assert abs(sigmoid[0] / 4.5398e-5 - 1) < 1e-3 and sigmoid[1] == sigmoid[2] > 4e-7 and 2e-9 < softmax[1] < 2.1e-9
PY
