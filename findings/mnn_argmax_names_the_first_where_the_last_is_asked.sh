#!/usr/bin/env bash
# MNN 3.6.1: ArgMax with select_last_index=1 converts without a word and names the first of equal scores; TopK of two
# equal scores names the later one first. One graph that has both names two classes for one row.
# Guess before: the last, as ONNX asks, or a refusal to convert; TopK in the order of ONNX, the lower index first.
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


def run(node, *outputs, kept=()):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    ends = [helper.make_tensor_value_info(name, kind, [1, count]) for name, kind, count in outputs]
    graph = helper.make_graph([node], "g", [x], ends, kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, "m.onnx")
    convert = "mnnconvert -f ONNX --modelFile m.onnx --MNNModel m.mnn --bizCode b"
    subprocess.run(convert.split(), check=True, capture_output=True)
    net = MNN.nn.load_module_from_file("m.mnn", ["x"], [outputs[-1][0]])
    scores = MNN.expr.const([1.0, 2.0, 2.0, 0.0], [1, 4], MNN.expr.NCHW)
    return np.array(net.forward([scores])[0].read()).ravel().tolist()


last = helper.make_node("ArgMax", ["x"], ["y"], axis=1, select_last_index=1)
two = helper.make_node("TopK", ["x", "k"], ["values", "ids"])
asked = run(last, ("y", TensorProto.INT64, 1))
number = numpy_helper.from_array(np.array([2]), "k")
ids = run(two, ("values", TensorProto.FLOAT, 2), ("ids", TensorProto.INT64, 2), kept=[number])
print(f"MNN {version('MNN')}, of 1, 2, 2, 0: ArgMax with select_last_index {asked}; TopK {ids}")
assert asked == [1] and ids == [2, 1]
PY
