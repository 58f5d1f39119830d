#!/usr/bin/env bash
# torchmetrics 1.9.0: BinaryCalibrationError counts in the type of the probabilities: of float16 and more than 65,504
# rows the error is exactly 0, where float32 gives .17. MulticlassCalibrationError counts in float32. And a probability
# of exactly 1 has a bin of its own, beyond the last: 500 rows of 1 and 500 of .97 give .065 in 10 bins, and in 1 bin,
# where the rows together are off by .035.
# Guess before: sums in float32, within .005 of float32's error; 1 in the last bin, with .97.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import torch
import torchmetrics
from torchmetrics.classification import BinaryCalibrationError, MulticlassCalibrationError

rng = np.random.default_rng(0)
p = rng.uniform(0.02, 0.98, 70_000)
happened = torch.tensor(rng.random(p.size) < p**2)
found = {}
for kind in (torch.float32, torch.float16):
    two, many = BinaryCalibrationError(n_bins=10), MulticlassCalibrationError(num_classes=2, n_bins=10)
    for batch in range(0, p.size, 1000):
        part, label = torch.tensor(p[batch : batch + 1000]), happened[batch : batch + 1000].long()
        two.update(part.to(kind), label)
        many.update(torch.stack([1 - part, part], 1).to(kind), label)
    found[kind] = round(float(two.compute()), 4), round(float(many.compute()), 4)
    print(f"torchmetrics {torchmetrics.__version__}, {p.size} rows of {kind}: ECE of P(1) {found[kind][0]}, of the top "
          f"class {found[kind][1]}")
sure = torch.tensor([1.0] * 500 + [0.97] * 500)
right = torch.tensor([1] * 450 + [0] * 50 + [1] * 500)
edges = [float(BinaryCalibrationError(n_bins=bins)(sure, right)) for bins in (1, 10)]
print(f"500 rows of 1 and 500 of .97: {edges}; all of them in one bin would have {0.985 - 0.95:.3f}")
single, half = found[torch.float32], found[torch.float16]
assert 0.15 < single[0] < 0.2 and half[0] == 0 and abs(half[1] - single[1]) < 0.001
assert all(abs(edge - 0.065) < 1e-6 for edge in edges)
PY
