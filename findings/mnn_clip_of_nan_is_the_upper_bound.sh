#!/usr/bin/env bash
# MNN 3.6.1: Clip of NaN to (0, 1) is 1, Sigmoid of NaN is 1 and Relu of NaN is 0: a broken row leaves such a graph
# with the surest confidence there is. Softmax keeps NaN.
# Guess before: NaN stays NaN, or the lower bound.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check MNN==3.6.1 onnx==1.23.2 numpy
cd "$folder"
PATH="$folder/venv/bin:$PATH" "$folder/venv/bin/python" - <<'PY'
import subprocess
from importlib.metadata import version

import MNN.expr
import MNN.nn
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def run(operator, bounds=()):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy"]
    kept = [numpy_helper.from_array(np.float32(one), f"bound{one}") for one in bounds]
    node = helper.make_node(operator, ["x", *(one.name for one in kept)], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "m.onnx")
    convert = "mnnconvert -f ONNX --modelFile m.onnx --MNNModel m.mnn --bizCode b"
    subprocess.run(convert.split(), check=True, capture_output=True)
    net = MNN.nn.load_module_from_file("m.mnn", ["x"], ["y"])
    x = MNN.expr.const([float("nan"), 2.0, -1.0], [1, 3], MNN.expr.NCHW)
    return np.array(net.forward([x])[0].read()).ravel()


clip, sigmoid, relu, softmax = run("Clip", (0, 1)), run("Sigmoid"), run("Relu"), run("Softmax")
print(f"MNN {version('MNN')}, of NaN, 2, -1: Clip {clip}; Sigmoid {sigmoid}; Relu {relu}; Softmax {softmax}")
assert clip.tolist() == [1, 1, 0] and sigmoid[0] == 1 and relu.tolist() == [0, 2, 0] and np.isnan(softmax).all()
PY
