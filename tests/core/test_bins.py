"""Bins: one edge convention, sums that merge, and the numbers that follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib_serve.core.bins import Bins, bin_index, psi
from calib_serve.core.errors import InputError, ShapeError

shares = st.floats(0, 1)
predictions = st.lists(st.tuples(shares, st.booleans()), max_size=60)


def tally(pairs: list[tuple[float, bool]], bins: int = 15) -> Bins:
    return Bins.tally([c for c, _ in pairs], [y for _, y in pairs], bins=bins)


def close(a: Bins, b: Bins) -> bool:
    return all(np.allclose(x, y, rtol=1e-12) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))


def test_each_convention_puts_a_confidence_on_an_edge_where_it_says() -> None:
    assert bin_index([0.25, 0.3, 0.5, 0.75], bins=4, edges="right").tolist() == [0, 1, 1, 2]
    assert bin_index([0.25, 0.3, 0.5, 0.75], bins=4, edges="left").tolist() == [1, 1, 2, 3]


def test_the_conventions_differ_in_ece_as_other_implementations_do() -> None:
    # These four predictions give .05, .20 or .225 in the wild. 0.6 lies just below np.linspace's edge as
    # a float64 and just above it as a float32, so the left-closed convention gives both of the others.
    confidence, correct = [0.5, 0.55, 0.6, 0.45], [1, 0, 1, 0]
    single = np.array(confidence, np.float32)
    assert Bins.tally(confidence, correct, bins=10, edges="right").ece() == pytest.approx(0.05)
    assert Bins.tally(confidence, correct, bins=10, edges="left").ece() == pytest.approx(0.20)
    assert Bins.tally(single, correct, bins=10, edges="left").ece() == pytest.approx(0.225)


@given(st.integers(1, 200), st.lists(shares, max_size=20))
def test_the_index_is_what_a_search_among_the_edges_finds(bins: int, confidence: list[float]) -> None:
    edges = np.linspace(0, 1, bins + 1)
    near = np.clip(np.concatenate([confidence, edges, np.nextafter(edges, 0), np.nextafter(edges, 1)]), 0, 1)
    for convention, side in (("right", "left"), ("left", "right")):
        found = bin_index(near, bins=bins, edges=convention)
        assert np.array_equal(found, np.searchsorted(edges[1:-1], near, side=side))


@given(predictions, st.integers(0, 60))
def test_bins_of_shards_merge_to_the_bins_of_the_whole(pairs: list[tuple[float, bool]], cut: int) -> None:
    assert close(tally(pairs[:cut]) + tally(pairs[cut:]), tally(pairs))


@given(predictions.filter(bool), st.integers(1, 40))
def test_errors_lie_in_the_unit_interval_and_in_their_order(
    pairs: list[tuple[float, bool]], count: int
) -> None:
    bins = tally(pairs, count)
    slack = 1e-12
    assert abs(bins.signed_gap()) <= bins.ece() + slack
    assert bins.ece() <= bins.l2() + slack
    assert bins.l2() <= bins.mce() + slack
    assert 0 <= bins.mce() <= 1
    assert 0 <= bins.ace() <= bins.mce() + slack
    assert 0 <= bins.noise_floor() <= 1
    assert bins.overconfidence_error() + bins.underconfidence_error() <= bins.ece() + slack


def test_a_calibrated_model_shows_an_ece_within_the_noise_floors_band() -> None:
    rng = np.random.default_rng(5)
    confidence = rng.beta(5, 2, size=4000)
    drawn = [Bins.tally(confidence, rng.random(4000) < confidence) for _ in range(200)]
    eces = np.array([b.ece() for b in drawn])
    assert eces.mean() == pytest.approx(drawn[0].noise_floor(), rel=0.05)
    # And the debiased squared error is 0 on average, as the plain one is not.
    squares = np.array([b.debiased_l2_squared() for b in drawn])
    assert abs(squares.mean()) < 3 * squares.std() / math.sqrt(len(squares))
    assert min(b.l2() for b in drawn) > 0


def test_ratios_of_no_prediction_are_nan() -> None:
    empty = Bins.zeros(5)
    for ratio in (empty.accuracy, empty.ece, empty.mce, empty.ace, empty.l2, empty.noise_floor):
        assert math.isnan(ratio())


# Every number against numpy written out

RNG = np.random.default_rng(11)
CONFIDENCE = RNG.beta(5, 2, 500).clip(0.05, 0.95)
RIGHT = (RNG.random(500) < CONFIDENCE - 0.15).astype(float)
EDGES = np.linspace(0, 1, 16)


def test_every_number_is_as_it_is_written_out() -> None:
    bins = Bins.tally(CONFIDENCE, RIGHT)
    index = np.ceil(CONFIDENCE * 15).astype(int) - 1
    n = len(RIGHT)
    ece = ace = over = under = l2 = debiased = floor = 0.0
    gaps = []
    for b in np.unique(index):
        c, y = CONFIDENCE[index == b], RIGHT[index == b]
        size, gap, right = len(c), c.mean() - y.mean(), y.mean()
        gaps.append((size, abs(gap)))
        ece += size / n * abs(gap)
        ace += abs(gap)
        over += size / n * c.mean() * max(gap, 0) if gap > 0 else 0
        under += size / n * c.mean() * -gap if gap < 0 else 0
        l2 += size / n * gap**2
        floor += size / n * math.sqrt(2 / math.pi * (c * (1 - c)).mean() / size)
        if size > 1:
            debiased += size / n * (gap**2 - right * (1 - right) / (size - 1))
    assert {size for size, _ in gaps} >= {1, 2} or min(size for size, _ in gaps) < 5
    assert bins.accuracy() == pytest.approx(RIGHT.mean())
    assert bins.mean_confidence() == pytest.approx(CONFIDENCE.mean())
    assert bins.signed_gap() == pytest.approx(CONFIDENCE.mean() - RIGHT.mean())
    assert bins.ece() == pytest.approx(ece)
    assert bins.ace() == pytest.approx(ace / len(gaps))
    assert bins.mce() == pytest.approx(max(gap for _, gap in gaps))
    assert bins.mce(at_least=30) == pytest.approx(max(gap for size, gap in gaps if size >= 30))
    assert bins.overconfidence_error() == pytest.approx(over / n * n)
    assert bins.underconfidence_error() == pytest.approx(under)
    assert bins.l2() == pytest.approx(math.sqrt(l2))
    assert bins.debiased_l2_squared() == pytest.approx(debiased)
    assert bins.noise_floor() == pytest.approx(floor)


def test_bins_of_one_prediction_and_of_part_of_one_are_taken_as_they_are() -> None:
    # Weighted sums may be below 1: such a bin has a gap, and is not asked for by default.
    bins = Bins([0.5, 1.0, 4.0], [0.4, 0.9, 2.0], [0.0, 1.0, 2.0])
    assert bins.mce() == pytest.approx(0.1)
    assert bins.mce(at_least=0) == pytest.approx(0.8)
    assert bins.mce(at_least=1.0) == pytest.approx(0.1)
    # One prediction has no variance to subtract: it is left out of the sum, not of the count.
    assert bins.debiased_l2_squared() == pytest.approx(4 * (0 - 0.25 / 3) / 5.5)


def test_a_bin_that_is_always_right_at_confidence_one_adds_no_noise() -> None:
    bins = Bins([4.0, 10.0], [4.0, 7.0], [4.0, 7.0])
    assert bins.noise_floor() == pytest.approx(math.sqrt(2 / math.pi * 7 * 0.3) / 14)
    # Rounding may leave a sum of confidences above the count: no root of a negative number.
    assert Bins([1.0], [1.0 + 1e-15], [1.0]).noise_floor() == 0.0


@pytest.mark.parametrize("wrong", [-0.25, 1.25, math.nan, math.inf, -math.inf])
def test_one_wrong_number_among_good_ones_is_refused(wrong: float) -> None:
    for at in range(3):
        values = [0.25, 0.5, 1.0]
        values[at] = wrong
        with pytest.raises(InputError, match="not logits or percent"):
            Bins.tally(values, [1, 0, 1])
        with pytest.raises(InputError, match="not logits or percent"):
            bin_index(np.array([values, values]))
        with pytest.raises(InputError, match="correct must be 0 or 1"):
            Bins.tally([0.25, 0.5, 1.0], values)


def test_options_and_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        bin_index([0.5], bins=0)
    with pytest.raises(InputError, match="'right' or 'left'"):
        bin_index([0.5], edges="middle")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="one bin count"):
        Bins.zeros(10).merge(Bins.zeros(15))
    for confidence, correct in (([[0.5]], [[1]]), (0.5, 1), ([0.5], [1, 0]), ([0.5], [[1]])):
        with pytest.raises(ShapeError, match=r"both be \(n,\)"):
            Bins.tally(confidence, correct)  # type: ignore[arg-type]
    one, two = np.ones(1), np.ones(2)
    for sums in ((one, one, two), (one, two, one), (two, one, one), (np.ones((1, 1)),) * 3, (1.0, 1.0, 1.0)):
        with pytest.raises(ShapeError, match="1-D of one length"):
            Bins(*sums)


def test_zeros_are_zeros_and_equality_is_of_all_three_sums() -> None:
    empty = Bins.zeros(3)
    assert len(Bins.zeros()) == len(Bins.tally([], []))
    assert [v.tolist() for v in vars(empty).values()] == [[0.0, 0.0, 0.0]] * 4
    base = Bins([2.0], [1.0], [1.0])
    assert base == Bins([2.0], [1.0], [1.0])
    for other in (Bins([3.0], [1.0], [1.0]), Bins([2.0], [1.5], [1.0]), Bins([2.0], [1.0], [2.0]), 7, None):
        assert base != other


def test_the_stability_index_is_symmetric_and_nan_where_a_histogram_is_empty() -> None:
    assert psi([40, 60], [50, 50]) == pytest.approx(-0.1 * math.log(0.8) + 0.1 * math.log(1.2))
    assert psi([0.1, 0.1], [0.2, 0.6]) == pytest.approx(psi([2, 6], [1, 1]))  # shares count, not how many
    assert psi([0, 7], [0, 70]) == 0
    assert psi([0, 1], [1, 0]) == pytest.approx(2 * (1 - 1e-4) * math.log(1e4))
    for empty, other in (([0, 0], [1, 1]), ([1, 1], [0, 0]), ([0, 0], [0, 0])):
        assert math.isnan(psi(empty, other))
    for one, other in (([1, 2, 3], [1, 2]), ([[1, 2]], [1, 2]), ([[1, 2]], [[1, 2]]), (3, 3)):
        with pytest.raises(ShapeError, match="both histograms"):
            psi(one, other)
