"""Real streams: where drift is known, and where there is none."""

import numpy as np
import pytest

from calib_serve.watch.drift import Detector


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


@pytest.mark.parametrize("days", [1, 30])
def test_labels_that_come_days_late_and_out_of_order_still_raise_the_alarm(data_dir, days):
    c, y, _ = binary(data_dir, "elec2_frozen_gb")
    c, y = c[: 3 * 4664], y[: 3 * 4664]
    made = np.arange(len(c)) / DAY
    rng = np.random.default_rng(0)
    order = np.argsort(made + days * rng.random(len(c)), kind="stable")
    alarms = Detector(arl=1_000_000, tolerance=0.02, block=DAY).update(
        c[order], y[order], time=made[order] * 86_400
    )
    # Drift begins within the second eighth (ECE 6.7 %). Shuffled labels break up runs, so a block
    # tells more; what must not happen is an alarm before, or one later than by the delay.
    assert 1.4 * 4664 < alarms[0].label < 2 * 4664 + (7 + days) * DAY


def test_employment_stays_within_a_point_by_year_and_subgroup_and_what_is_left_is_found(data_dir):
    c, y, data = binary(data_dir, "acs_employment_ma")
    prime = (data["AGEP"] >= 30) & (data["AGEP"] < 50)

    def alarms(chosen, tolerance):
        rows = np.flatnonzero(chosen)[:15_000]
        return Detector(arl=1_000_000, tolerance=tolerance).update(c[rows], y[rows])

    for chosen in (data["year"] == 2015, data["year"] == 2018, prime):
        assert alarms(chosen, 0.01) == []
    # Those in their thirties and forties: accuracy 1.6 points above confidence over all years.
    found = alarms(prime, 0.0)
    assert found
    assert found[0].direction in ("underconfident", "mixed")
