#!/usr/bin/env bash
# onnxslim 0.1.98, onnxsim 0.8.1, onnxoptimizer 0.4.2 and onnxscript 0.7.2's optimizer take two random nodes of one
# input, without a seed, for one: two passes of a Monte Carlo dropout model become the same pass, whose spread is 0.
# onnxscript does so for Bernoulli and Dropout in training mode alone.
# Guess before: none of them merges what is random.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxslim==0.1.98 onnxsim==0.8.1 \
  onnxoptimizer==0.4.2 onnxscript==0.7.2 onnxruntime==1.32.0 onnx==1.23.2 numpy
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import onnxoptimizer
import onnxruntime
import onnxscript.optimizer
import onnxsim
import onnxslim
from onnx import TensorProto, helper, numpy_helper

X = np.full((1, 1000), 0.5, np.float32)
TOOLS = {
    "none": lambda model: model,
    "onnxslim": onnxslim.slim,
    "onnxsim": lambda model: onnxsim.simplify(model)[0],
    "onnxoptimizer": lambda model: onnxoptimizer.optimize(model, ["eliminate_common_subexpression"]),
    "onnxscript": onnxscript.optimizer.optimize,
}


def two_draws(kind):
    kept = [numpy_helper.from_array(np.array(0.5, np.float32), "ratio"), numpy_helper.from_array(np.array(True), "on")]
    given = ["x", "ratio", "on"] if kind == "Dropout" else ["x"]
    nodes = [helper.make_node(kind, given, [name]) for name in "ab"]
    nodes += [helper.make_node("Add", [name, "x"], [f"{name}_x"]) for name in "ab"]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1000]) for name in ("x", "a_x", "b_x")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], kept if kind == "Dropout" else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def same(model):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return bool(np.array_equal(*session.run(None, {"x": X})))


found = {kind: [name for name, tool in TOOLS.items() if same(tool(two_draws(kind)))]
         for kind in ("RandomNormalLike", "Bernoulli", "Dropout")}
print("the two draws are equal after:", found)
assert found == {"RandomNormalLike": ["onnxslim", "onnxsim", "onnxoptimizer"],
                 "Bernoulli": ["onnxslim", "onnxsim", "onnxoptimizer", "onnxscript"],
                 "Dropout": ["onnxslim", "onnxsim", "onnxoptimizer", "onnxscript"]}
PY
