#!/usr/bin/env bash
# openvino 2026.4.1: of an ONNX graph of opset 13 to 17, ReduceLogSumExp, ReduceLogSum and ReduceL1 reduce over all
# axes, the batch among them, whatever their axes say, and the output is declared (1, 1); so a log-softmax in parts, or
# a division by the L1 norm, mixes the samples of a batch. Of opset 11 and 18, and with ReduceMax and ReduceSum, axes hold.
# Guess before: the axes hold in every opset.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openvino==2026.4.1 onnx==1.23.2 numpy
"$folder/venv/bin/python" - "$folder/model.onnx" <<'PY'
import sys

import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
found = {}
for opset in (11, 13, 17, 18):
    for operator in ("ReduceLogSumExp", "ReduceLogSum", "ReduceL1", "ReduceMax"):
        taken, attributes, kept = ["x"], {"axes": [1]}, []
        if opset >= 18:
            taken, attributes, kept = ["x", "axes"], {}, [numpy_helper.from_array(np.array([1]), "axes")]
        node = helper.make_node(operator, taken, ["y"], **attributes)
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, size]) for n, size in (("x", 3), ("y", 1))]
        graph = helper.make_graph([node], "g", ends[:1], ends[1:], kept)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, sys.argv[1])
        found[opset, operator] = openvino.Core().compile_model(sys.argv[1], "CPU")(X)[0].shape
wrong = sorted(key for key, shape in found.items() if shape != (2, 1))
print(f"openvino {openvino.__version__.partition('-')[0]}: reduced over all axes: {wrong}")
assert wrong == [(o, name) for o in (13, 17) for name in ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")]
assert {found[key] for key in wrong} == {(1, 1)}
PY
