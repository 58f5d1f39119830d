#!/usr/bin/env bash
# betacal 1.1.0: "abm" sets a negative coefficient to 0 and fits the other again without looking at its sign. Of a
# score that is the other class's probability the map falls, in one feature of two: NLL .45 where the same score the
# right way round gives .40, and no word.
# Guess before: coefficients of at least 0, as the paper asks of a calibration map, so a flat map; or a warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check betacal==1.1.0 scikit-learn==1.9.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PY'
from importlib.metadata import version

import numpy as np
from betacal import BetaCalibration

rng = np.random.default_rng(0)
logit = rng.normal(0, 2.5, 4000)
happened = rng.random(4000) < 1 / (1 + np.exp(-logit))
score = 1 / (1 + np.exp(-2.5 * logit))


def fitted(scores):
    map_ = BetaCalibration("abm").fit(scores.reshape(-1, 1), happened)
    p = map_.predict(scores)
    return map_.predict(np.array([0.1, 0.5, 0.9])), -np.log(np.where(happened, p, 1 - p)).mean()


(upright, loss), (reversed_, worse) = fitted(score), fitted(1 - score)
print(f"betacal {version('betacal')}: of .1, .5, .9 {upright.round(3)}, NLL {loss:.4f}", end="; ")
print(f"of the other class's {reversed_.round(3)}, NLL {worse:.4f}")
assert (np.diff(upright) > 0).all() and (np.diff(reversed_) < 0).all() and worse > loss + 0.02
PY
