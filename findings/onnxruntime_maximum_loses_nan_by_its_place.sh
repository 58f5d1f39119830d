#!/usr/bin/env bash
# onnxruntime 1.32.0 (CPU): whether the maximum of a row with one NaN is NaN depends on where it stands, and on the
# operator: of four places, ReduceMax keeps it in the first, GlobalMaxPool and MaxPool in the last; Softmax in all.
# Guess before: GlobalMaxPool keeps NaN, MaxPool may lose it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 numpy
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

CASES = {
    "ReduceMax": ([1, 4], [1, 1], {"axes": [1]}),
    "GlobalMaxPool": ([1, 1, 2, 2], [1, 1, 1, 1], {}),
    "MaxPool": ([1, 1, 2, 2], [1, 1, 1, 1], {"kernel_shape": [2, 2]}),
    "Softmax": ([1, 4], [1, 4], {"axis": 1}),
}
found = {}
for operator, (taken, given, attributes) in CASES.items():
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (("x", taken), ("y", given))]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]),
                              opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = [np.insert(np.array([1, 2, 0], np.float32), place, np.nan) for place in range(4)]
    found[operator] = [bool(np.isnan(session.run(None, {"x": row.reshape(taken)})[0]).any()) for row in rows]
print(f"onnxruntime {onnxruntime.__version__}: NaN is kept, where it is first, second, third, last:", found)
assert found["Softmax"] == [True] * 4 and found["ReduceMax"] != found["GlobalMaxPool"]
assert all(any(kept) and not all(kept) for name, kept in found.items() if name != "Softmax")
PY
