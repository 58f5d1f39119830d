#!/usr/bin/env bash
# ClickHouse 26.9 (chdb-core 26.9.0): a number becomes BFloat16 by cutting off: a confidence of .9999 is .9961, and the
# mean of confidences near 1 falls by .002, nearly the whole of a small error of calibration; ml_dtypes 0.5.4 rounds,
# and keeps the mean. And -0.0 = 0.0 is true there, while GROUP BY makes two groups of them.
# Guess before: rounded to the nearest, as everywhere else; one group of what is equal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check chdb==4.4.0 chdb-core==26.9.0 ml_dtypes==0.5.4 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import json

import chdb
import ml_dtypes
import numpy as np


def ask(query):
    return [tuple(row.values()) for row in json.loads(chdb.query(query, "JSON").bytes())["data"]]


served = "select toFloat32(0.9 + 0.1 * number / 100000) as p from numbers(100000)"
(version, one, true, cut), = ask(
    f"select version() v, toBFloat16(0.9999) one, avg(p) true, avg(toBFloat16(p)) cut from ({served})"
)
p = (0.9 + 0.1 * np.arange(100_000) / 100_000).astype(np.float32)
rounded = p.astype(ml_dtypes.bfloat16).astype(np.float64).mean()
groups = ask("select x, count() from (select arrayJoin([-0.0, 0.0]) as x) group by x order by toString(x)")
(equal,), = ask("select count() from (select arrayJoin([-0.0, 0.0]) as x) where x = 0")
print(f"ClickHouse {version}: .9999 is {one}; a mean of {true:.5f} is {cut:.5f} by BFloat16, by ml_dtypes "
      f"{rounded:.5f}; groups of -0 and 0: {groups}, rows equal to 0: {equal}")
assert one == 0.99609375 and float(np.array(0.9999, ml_dtypes.bfloat16)) == 1
assert 0.0015 < true - cut < 0.0025 and abs(true - rounded) < 0.0002
assert len(groups) == 2 and int(equal) == 2
PY
