#!/usr/bin/env bash
# torch 2.13.0's ONNX exporter (dynamo) with onnxscript 0.7.2: what a model writes in a stable form is taken apart.
# F.logsigmoid is Log(Sigmoid(x)), and of -20 minus infinity in onnxruntime 1.32.0, -20 in torch; logaddexp of 100 and 0
# is infinity; the complementary log-log link -expm1(-exp(z)), and log1p(exp(z)), are 0 at -20, where torch has 2.06e-9.
# F.softplus, logsumexp and log_softmax are right.
# Guess before: each as in torch to 1e-3, as the exporter knows softplus; expm1 exact enough that a rare class is not 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 onnxscript==0.7.2 onnx==1.23.2 \
  onnxruntime==1.32.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - "$folder/model.onnx" <<'PY'
import logging
import sys

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F

logging.disable()
Z = torch.tensor([[-20.0, -5.0, 0.0, 100.0]])
FORMS = {
    "logsigmoid": F.logsigmoid,
    "logaddexp": lambda z: torch.logaddexp(z, torch.zeros_like(z)),
    "cloglog": lambda z: -torch.expm1(-torch.exp(z)),
    "log1p(exp)": lambda z: torch.log1p(torch.exp(z)),
    "softplus": F.softplus,
    "logsumexp": lambda z: torch.logsumexp(torch.stack([z, torch.zeros_like(z)]), 0),
    "log_softmax": lambda z: torch.log_softmax(torch.stack([z, torch.zeros_like(z)], -1), -1)[..., 0],
}


class Form(torch.nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, z):
        return self.form(z)


found = {}
for name, form in FORMS.items():
    model = Form(form).eval()
    torch.onnx.export(model, (Z,), dynamo=True, verbose=False).save(sys.argv[1])
    own = model(Z).numpy()[0]
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    made = session.run(None, {"z": Z.numpy()})[0][0]
    found[name] = own, made
    print(f"torch {torch.__version__}, {name} of {Z[0].tolist()}: torch {own}, onnxruntime {onnxruntime.__version__} {made}")


assert all(np.allclose(*found[name], rtol=1e-3, atol=1e-12) for name in ("softplus", "logsumexp", "log_softmax"))
assert found["logsigmoid"][1][0] == -np.inf and abs(found["logsigmoid"][0][0] + 20) < 1e-4
assert found["logaddexp"][1][3] == np.inf and found["logaddexp"][0][3] == 100
assert all(found[name][1][0] == 0 and abs(found[name][0][0] / 2.06e-9 - 1) < 1e-2 for name in ("cloglog", "log1p(exp)"))
PY
