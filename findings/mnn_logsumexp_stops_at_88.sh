#!/usr/bin/env bash
# MNN 3.6.1: exp holds its argument within 87 of zero: LogSumExp of logits (1000, 1000), and of (100, 90), is 87.69,
# Softplus of 100 is 87. LogSoftmax of the same logits is right, as it takes the largest away first.
# Guess before: an overflow to inf, or a stable 1000.69.
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
import onnx
from onnx import TensorProto, helper


def run(operator, *numbers, **attributes):
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, len(numbers)])]
    ends.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], **attributes)], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "m.onnx")
    convert = "mnnconvert -f ONNX --modelFile m.onnx --MNNModel m.mnn --bizCode b"
    subprocess.run(convert.split(), check=True, capture_output=True)
    net = MNN.nn.load_module_from_file("m.mnn", ["x"], ["y"])
    x = MNN.expr.const([float(one) for one in numbers], [1, len(numbers)], MNN.expr.NCHW)
    return net.forward([x])[0].read().ravel().tolist()


large, less = run("ReduceLogSumExp", 1000, 1000, axes=[1]), run("ReduceLogSumExp", 100, 90, axes=[1])
softplus, stable = run("Softplus", 30, 100), run("LogSoftmax", 1000, 1000, axis=1)
print(f"MNN {version('MNN')}: LogSumExp {large}, {less}; Softplus of 30, 100: {softplus}; LogSoftmax {stable}")
assert 87.6 < large[0] == less[0] < 87.8 and softplus == [30.0, 87.0] and abs(stable[0] + 0.6931) < 1e-3
PY
