#!/usr/bin/env bash
# openvino 2026.4.1 (CPU): Greater and GreaterOrEqual of NaN are true, Less and LessOrEqual false, and Max of NaN and a
# number is the number. So log(max(p, 1e-9)), which keeps a logarithm finite, makes a broken row of three NaN three
# equal scores, with a confidence of a third instead of NaN, and "confidence > .9" lets NaN pass. onnxruntime 1.32.0
# keeps NaN, and no comparison with it is true.
# Guess before: Max may lose NaN, as over a row; comparisons are false, as IEEE 754 has them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check openvino==2026.4.1 onnxruntime==1.32.0 onnx==1.23.2 numpy
"$folder/venv/bin/python" - "$folder/model.onnx" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
import openvino

body = """c = Constant <value = float {0.9}> () greater = Greater(x, c) greater_or_equal = GreaterOrEqual(x, c)
less = Less(x, c) less_or_equal = LessOrEqual(x, c) e = Constant <value = float {1e-9}> () m = Max(x, e) l = Log(m)
again = Softmax <axis: int = -1> (l)"""
flags = ", ".join(f"bool[n, 3] {name}" for name in ("greater", "greater_or_equal", "less", "less_or_equal"))
model = onnx.parser.parse_model(
    f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 3] x) => ({flags}, float[n, 3] again) {{ {body} }}'
)
onnx.checker.check_model(model, full_check=True)
onnx.save(model, sys.argv[1])
names = [one.name for one in model.graph.output]
x = np.full((8, 3), np.nan, np.float32)
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
by = {"onnxruntime": dict(zip(names, session.run(names, {"x": x})))}
compiled = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
found = compiled({"x": x})
by["openvino"] = {name: np.asarray(found[name]) for name in names}
told = {runtime: {name: values[name][0, 0].item() for name in names} for runtime, values in by.items()}
for runtime, values in told.items():
    print(f"{runtime}: of NaN: {values}")
print(openvino.__version__)
assert not any(told["onnxruntime"][name] for name in names[:4]) and np.isnan(by["onnxruntime"]["again"]).all()
assert told["openvino"]["greater"] and told["openvino"]["greater_or_equal"]
assert not told["openvino"]["less"] and not told["openvino"]["less_or_equal"]
assert np.allclose(by["openvino"]["again"], 1 / 3)
PY
