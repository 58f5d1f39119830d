"""Sums are exact, and merge."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.receipts.sums import Sums

probabilities = st.lists(st.floats(0, 1), max_size=50)


@settings(deadline=None)
@given(probabilities, probabilities)
def test_sums_merge_and_revert(a, b):
    one, two = Sums.served(a), Sums.labelled(b, np.ones(len(b)))
    assert one + two == two + one
    np.testing.assert_allclose((one + two - two).vector, one.vector, atol=1e-12)


def test_every_sum_is_what_its_name_says():
    rng = np.random.default_rng(0)
    c, y, w = rng.random(1000), rng.integers(0, 2, 1000), 1 / rng.uniform(0.01, 1, 1000)
    delay = 10 ** rng.uniform(0, 7, 1000)
    sums = Sums.labelled(c, y, weight=w, delay=delay, bins=10)
    index = np.minimum(np.ceil(c * 10).astype(int) - 1, 9)
    expected = {
        "total": w**0,
        "weight_total": w,
        "confidence_total": w * c,
        "correct_total": w * y,
        "squared_error_total": w * (c - y) ** 2,
        "noise_total": w**2 * c * (1 - c),
        "weight_squared": w**2,
        "gap_weighted": w**2 * (c - y),
        "gap_squared": w**2 * (c - y) ** 2,
        "correct_weighted": w**2 * y,
    }
    for name, each in expected.items():
        np.testing.assert_allclose(sums[f"calib_feedback_{name}"], np.bincount(index, each, 10), rtol=1e-12)
    # Delays: up to 2 s, to 3, 4, 6, ... s, and what is longer than all.
    ends = [round(2 ** (k / 2)) for k in range(2, 47)]
    steps = [sum(one > end for end in ends) for one in delay]
    np.testing.assert_array_equal(sums["calib_feedback_delay"], np.bincount(steps, minlength=46))


def test_sums_of_other_shapes_and_weights_are_refused():
    with pytest.raises(ShapeError, match="15 bins with 10"):
        Sums.zeros() + Sums.zeros(10)
    with pytest.raises(InputError, match="at least 1"):
        Sums.labelled([0.5], [1], weight=0.5)


def test_sums_take_values_by_name_and_place_and_leave_out_what_they_do_not_have():
    sums = Sums.served([0.9, 0.5], bins=2)
    values = {("calib_predictions_total", 1): 5.0, ("calib_feedback_delay", 45): 2.0}
    found = sums.with_values({**values, ("other", 0): 9.0, ("calib_predictions_total", 2): 9.0})
    assert found.predictions.tolist() == [1, 5]
    assert found["calib_feedback_delay"].tolist() == [0.0] * 45 + [2.0]
    assert (found.vector != sums.vector).sum() == 2
