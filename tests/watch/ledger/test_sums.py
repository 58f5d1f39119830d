"""Sums are exact, merge, and travel as one vector."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib_serve.errors import ShapeError
from calib_serve.watch.ledger.sums import Sums

probabilities = st.lists(st.floats(0, 1), max_size=50)


@settings(deadline=None)
@given(probabilities, probabilities)
def test_sums_merge_revert_and_travel_flat(a, b):
    one, two = Sums.served(a), Sums.labelled(b, np.ones(len(b)))
    assert one + two == two + one
    np.testing.assert_allclose((one + two - two).vector, one.vector, atol=1e-12)
    assert Sums.stored((one + two).vector, bins=15) == one + two


def test_the_brier_score_is_exact():
    rng = np.random.default_rng(0)
    c, y = rng.random(10_000), rng.integers(0, 2, 10_000)
    assert Sums.labelled(c, y, bins=10).brier() == pytest.approx(((c - y) ** 2).mean(), rel=1e-12)


def test_sums_of_other_shapes_are_refused():
    with pytest.raises(ShapeError, match="15 bins with 10"):
        Sums.zeros() + Sums.zeros(10)
    with pytest.raises(ShapeError):
        Sums.stored([1.0, 2.0], bins=15)
