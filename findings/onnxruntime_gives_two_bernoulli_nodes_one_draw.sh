#!/usr/bin/env bash
# onnxruntime 1.32.0 (CPU): with its default optimisations two Bernoulli nodes of one input, without a seed, give the
# same draw; without optimisations they differ, and so do two RandomUniformLike nodes at either level.
# Guess before: onnxruntime never merges what is random.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

X, LEVELS = np.full((1, 1000), 0.5, np.float32), onnxruntime.GraphOptimizationLevel
found = {}
for kind in ("Bernoulli", "RandomUniformLike"):
    nodes = [helper.make_node(kind, ["x"], [name]) for name in "ab"]
    nodes += [helper.make_node("Add", [name, "x"], [f"{name}_x"]) for name in "ab"]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1000]) for name in ("x", "a_x", "b_x")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    for level in (LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        found[kind, level.name] = bool(np.array_equal(*session.run(None, {"x": X})))
print(f"onnxruntime {onnxruntime.__version__}: two draws are equal:", found)
assert found == {("Bernoulli", "ORT_DISABLE_ALL"): False, ("Bernoulli", "ORT_ENABLE_ALL"): True,
                 ("RandomUniformLike", "ORT_DISABLE_ALL"): False, ("RandomUniformLike", "ORT_ENABLE_ALL"): False}
PY
