"""Sums are exact, merge, and travel as one vector."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib_serve.errors import InputError, ShapeError
from calib_serve.watch.ledger.sums import SUMS, Sums, label_places

probabilities = st.lists(st.floats(0, 1), max_size=50)


@settings(deadline=None)
@given(probabilities, probabilities)
def test_sums_merge_revert_and_travel_packed(a, b):
    one, two = Sums.served(a), Sums.labelled(b, np.ones(len(b)))
    assert one + two == two + one
    np.testing.assert_allclose((one + two - two).vector, one.vector, atol=1e-12)
    assert Sums.unpacked((one + two).packed(), bins=15) == one + two


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


def test_labels_are_taken_away_only_where_they_are():
    all_, some = Sums.labelled([0.9, 0.9, 0.5], [1, 0, 1]), Sums.labelled([0.9], [1])
    np.testing.assert_allclose(all_.less(some).vector, Sums.labelled([0.9, 0.5], [0, 1]).vector, atol=1e-12)
    assert all_.less(all_) == Sums(15, np.zeros_like(all_.vector))
    with pytest.raises(InputError, match="never counted here"):
        some.less(all_)


def test_the_highest_and_the_lowest_are_of_published_sums_alone():
    one, two = Sums.labelled([0.9, 0.5], [1, 1]), Sums.labelled([0.9, 0.9], [1, 0])
    assert one.highest(two).labels.sum() == 3
    assert one.lowest(two).labels.sum() == 1
    assert one.highest(one) == one.lowest(one) == one
    # Sums of squares are not published: they stay.
    assert one.lowest(two)["calib_feedback_weight_squared"].sum() == 2


def test_sums_of_other_shapes_and_weights_are_refused():
    with pytest.raises(ShapeError, match="15 bins with 10"):
        Sums.zeros() + Sums.zeros(10)
    for damaged in (b"x", b"\x01\x00" * 2 + bytes(16), b"\xff\xff" + bytes(8)):
        with pytest.raises(ShapeError, match="no sums over 15 bins"):
            Sums.unpacked(damaged, bins=15)
    with pytest.raises(InputError, match="at least 1"):
        Sums.labelled([0.5], [1], weight=0.5)


def test_only_what_is_published_is_compared_with_what_was():
    """What is not published, such as a signed gap, may go down: a mark of it would stay too high."""
    names = [one.name for one in SUMS if one.published]
    others = [one.name for one in SUMS if not one.published]
    assert names
    assert others
    ones = Sums.zeros(10).with_values({(one.name, 0): 1.0 for one in SUMS})
    more = Sums.zeros(10).with_values({(one.name, 0): 3.0 for one in SUMS})
    for name in names:
        assert more.beyond(ones)[name][0] == 2
        assert (ones.highest(more)[name][0], more.lowest(ones)[name][0]) == (3, 1)
    for name in others:
        assert more.beyond(ones)[name][0] == 0
        assert (ones.highest(more)[name][0], more.lowest(ones)[name][0]) == (1, 3)
    less = Sums.zeros(10).with_values({(name, 0): 1.0 for name in names})
    assert not less.below(ones)
    assert less.with_values({(names[-1], 0): 0.9}).below(ones)


def test_label_sums_lie_by_bin_or_are_of_all():
    counts, by_bin, whole = label_places(10)
    binned = {place for one in by_bin for place in one}
    every = Sums.zeros(10).with_values({(one.name, i): 1.0 for one in SUMS for i in range(60)})
    assert not binned & set(whole)
    assert binned | set(whole) == set(np.flatnonzero(every.of("labels").vector))
    assert set(counts) <= binned
    for b, one in enumerate(by_bin):
        sums = Sums(10, np.isin(np.arange(len(every.vector)), one).astype(float))
        for name in (sum.name for sum in SUMS if sum.of == "labels" and sum.per == "bin"):
            assert np.flatnonzero(sums[name]).tolist() == [b]


def test_what_sums_have_more_than_others_is_never_below_0():
    one, two = (Sums.labelled([0.7] * n, [1] * n) for n in (1, 2))
    assert not one.beyond(two).vector.any()
    assert two.beyond(one)["calib_feedback_total"].sum() == 1
    assert not Sums(two.bins, two.vector * (1 + 1e-12)).beyond(two).vector.any()
