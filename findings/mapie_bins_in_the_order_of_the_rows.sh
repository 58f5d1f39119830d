#!/usr/bin/env bash
# mapie 1.6.0: expected_calibration_error with split_strategy="array split" cuts the rows as they come, and takes each
# part's largest confidence for an edge: of shuffled rows nearly all lie below the first edge, in one bin, where errors
# cancel: .01 where the same rows, sorted, give .13. With "uniform" there is a bin less than num_bins says: two are one.
# Guess before: equal-mass bins whatever the order, and num_bins bins between 0 and 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mapie==1.6.0 scikit-learn==1.9.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
from importlib.metadata import version

import numpy as np
from mapie.metrics.calibration import expected_calibration_error

rng = np.random.default_rng(0)
confidence = rng.uniform(0.5, 1, 5000)  # right three times in four, whatever it says
right = (rng.random(5000) < 0.75).astype(int)
found = {}
for strategy in ("uniform", "quantile", "array split"):
    for name, order in (("shuffled", np.arange(5000)), ("sorted", np.argsort(confidence))):
        found[strategy, name] = expected_calibration_error(
            right[order], confidence[order], num_bins=15, split_strategy=strategy
        )
unsure = np.repeat([0.3, 0.7], 500)
agrees = np.concatenate([np.repeat([1, 0], [250, 250]), np.repeat([1, 0], [250, 250])])
two = expected_calibration_error(agrees, unsure, num_bins=2, split_strategy="uniform")
three = expected_calibration_error(agrees, unsure, num_bins=3, split_strategy="uniform")
print(f"mapie {version('mapie')}: ECE of the same rows: {({k: round(float(v), 4) for k, v in found.items()})}; of .3 and "
      f".7, each right half the time, in 2 uniform bins {two:.2f}, in 3 {three:.2f}")
assert found["array split", "shuffled"] < 0.02 and found["array split", "sorted"] > 0.12
assert all(abs(found[s, "shuffled"] - found[s, "sorted"]) < 1e-9 for s in ("uniform", "quantile"))
assert two < 1e-9 and abs(three - 0.2) < 1e-9
PY
