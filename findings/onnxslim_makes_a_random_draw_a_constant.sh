#!/usr/bin/env bash
# onnxslim 0.1.98 takes a RandomUniform node for a constant: it draws once, while it simplifies, and every run of the
# file gives that draw. A Dropout that is on by its training_mode input is removed as if it were off.
# Guess before: random nodes stay as they are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxslim==0.1.98 onnxruntime==1.32.0 onnx==1.23.2 numpy
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
import onnx
import onnxruntime
import onnxslim
from onnx import TensorProto, helper, numpy_helper

X = np.full((1, 1000), 0.5, np.float32)
RATIO, ON = numpy_helper.from_array(np.array(0.5, np.float32), "ratio"), numpy_helper.from_array(np.array(True), "on")
NODES = {
    "RandomUniform": helper.make_node("RandomUniform", [], ["a"], shape=[1, 1000]),
    "Dropout": helper.make_node("Dropout", ["x", "ratio", "on"], ["a"]),
}


def varies(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return not np.array_equal(session.run(None, {"x": X})[0], session.run(None, {"x": X})[0])


found = {}
for kind, node in NODES.items():
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1000]) for name in "xy"]
    graph = helper.make_graph([node, helper.make_node("Add", ["a", "x"], ["y"])], "g", ends[:1], ends[1:],
                              [RATIO, ON] if kind == "Dropout" else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    before, slim = varies(model), onnxslim.slim(model)
    found[kind] = before, varies(slim), [one.op_type for one in slim.graph.node]
print(f"onnxslim {version('onnxslim')}: two runs differ before, after; what is left: {found}")
assert found == {"RandomUniform": (True, False, ["Add"]), "Dropout": (True, False, ["Add"])}
PY
