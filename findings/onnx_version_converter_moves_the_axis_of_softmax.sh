#!/usr/bin/env bash
# onnx 1.23.2's version_converter: from opset 13 down to 12 a Softmax over an axis that is not the last keeps its axis,
# which opset 12 reads as "this one and all behind it": of pictures (N, C, H, W) the probabilities of all pixels together
# sum to 1. LogSoftmax does the same. From 12 up to 13 both are rewritten and right, while Hardmax is not: one class a
# sample becomes one a pixel. Each file passes the checker, and no word is said.
# Guess before: both directions rewritten, as the way up is for Softmax, or refused, as Hardmax's way down is.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, version_converter

X = np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)


def run(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


def before_and_after(operator, axis, old, new):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(X.shape)) for name in "xy"]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], axis=axis)], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", old)], ir_version=7)
    made = version_converter.convert_version(model, new)
    onnx.checker.check_model(made, full_check=True)
    return run(model), run(made)


found = {}
for case in (("Softmax", 1, 13, 12), ("LogSoftmax", 1, 13, 12), ("Softmax", 3, 13, 12), ("Softmax", 1, 12, 13),
             ("LogSoftmax", 1, 12, 13), ("Hardmax", 1, 12, 13)):
    found[case] = before_and_after(*case)
    operator, axis, old, new = case
    print(f"onnx {onnx.__version__}: {operator} over axis {axis}, opset {old} to {new}: off by "
          f"{np.abs(found[case][0] - found[case][1]).max():.3f}")
off = {case: float(np.abs(one - other).max()) for case, (one, other) in found.items()}
assert [case for case in off if off[case] > 1e-6] == [
    ("Softmax", 1, 13, 12), ("LogSoftmax", 1, 13, 12), ("Hardmax", 1, 12, 13)
]
before, after = found["Softmax", 1, 13, 12]
assert np.allclose(before.sum(axis=1), 1, atol=1e-6) and np.allclose(after.sum(axis=(1, 2, 3)), 1, atol=1e-6)
before, after = found["Hardmax", 1, 12, 13]
assert before.sum() == 2 and after.sum() == 32
try:
    before_and_after("Hardmax", 1, 13, 12)
except RuntimeError as error:
    assert "Hardmax" in str(error)
else:
    raise SystemExit("Hardmax is converted down now")
PY
