"""Real streams: where drift is known, and where there is none."""

import numpy as np

from calib_serve.monitor import Detector


def binary(folder, name):
    """Top-1 confidence and whether it was right, in time order, of a stream with ``prob1``."""
    data = np.load(folder / "streams" / f"{name}.npz")
    p = data["prob1"].astype(float)
    y = data["labels"][int(data["train_rows"]) :] if "labels" in data else data["label"]
    return np.maximum(p, 1 - p), ((p > 0.5) == (y == 1)).astype(float), data


DAY = 48  # half hours: electricity prices, and so errors, come in runs of hours


def test_a_frozen_model_under_concept_drift_alarms_in_the_eighth_in_which_it_begins(data_dir):
    c, y, _ = binary(data_dir, "elec2_frozen_gb")
    assert len(c) == 37_312  # ECE by eighth: 2.9, 6.7, then 24.2 %
    alarms = Detector(arl=1_000_000, tolerance=0.02, block=DAY).update(c[: 3 * 4664], y[: 3 * 4664])
    assert 1.4 * 4664 < alarms[0].label < 2 * 4664
    assert alarms[0].direction == "overconfident"
    assert alarms[1].gap > 0.3


def test_baseball_forecasts_raise_no_false_alarm(data_dir):
    c, y, _ = binary(data_dir, "538_mlb_games")
    assert Detector(arl=100_000, tolerance=0.01).update(c, y) == []
