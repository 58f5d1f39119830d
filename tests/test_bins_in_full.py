"""Every number of ``Bins`` against numpy written out, and every refusal of one wrong value among good."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binned_statistic

from calib_serve.bins import Bins, bin_index
from calib_serve.errors import InputError, ShapeError

RNG = np.random.default_rng(11)
CONFIDENCE = RNG.beta(5, 2, 500).clip(0.05, 0.95)
RIGHT = (RNG.random(500) < CONFIDENCE - 0.15).astype(float)
EDGES = np.linspace(0, 1, 16)


def plain(statistic: str, values: np.ndarray) -> np.ndarray:
    """By scipy, whose bins are closed on the left: the same where no value is an edge."""
    assert not np.isin(CONFIDENCE, EDGES).any()
    return np.nan_to_num(binned_statistic(CONFIDENCE, values, statistic, bins=EDGES)[0])


def test_sums_are_scipys() -> None:
    for edges in ("right", "left"):
        bins = Bins.tally(CONFIDENCE, RIGHT, edges=edges)  # type: ignore[arg-type]
        assert bins.count.tolist() == plain("count", RIGHT).tolist()
        np.testing.assert_allclose(bins.confidence, plain("sum", CONFIDENCE), rtol=1e-12)
        assert bins.correct.tolist() == plain("sum", RIGHT).tolist()
        assert len(bins) == 15


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
        floor += size / n * math.sqrt(2 / math.pi * c.mean() * (1 - c.mean()) / size)
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


def test_no_prediction_is_no_error() -> None:
    assert bin_index([]).tolist() == []
    assert Bins.tally([], []) == Bins.zeros()
    assert bin_index([[0.1, 0.9]], bins=2).tolist() == [[0, 1]]


def test_shapes_that_do_not_fit_are_refused() -> None:
    for confidence, correct in (([[0.5]], [[1]]), (0.5, 1), ([0.5], [1, 0]), ([0.5], [[1]])):
        with pytest.raises(ShapeError, match=r"both be \(n,\)"):
            Bins.tally(confidence, correct)  # type: ignore[arg-type]
    one, two = np.ones(1), np.ones(2)
    for sums in ((one, one, two), (one, two, one), (two, one, one), (np.ones((1, 1)),) * 3, (1.0, 1.0, 1.0)):
        with pytest.raises(ShapeError, match="1-D of one length"):
            Bins(*sums)


def test_zeros_are_zeros_and_equality_is_of_all_three_sums() -> None:
    empty = Bins.zeros(3)
    assert [v.tolist() for v in vars(empty).values()] == [[0.0, 0.0, 0.0]] * 3
    base = Bins([2.0], [1.0], [1.0])
    assert base == Bins([2.0], [1.0], [1.0])
    for other in (Bins([3.0], [1.0], [1.0]), Bins([2.0], [1.5], [1.0]), Bins([2.0], [1.0], [2.0]), 7, None):
        assert base != other


def test_sums_merge_each_with_its_own() -> None:
    merged = Bins([1, 2], [0.5, 1], [0, 1]).merge(Bins([10, 20], [5, 10], [1, 3]))
    assert merged == Bins([11, 22], [5.5, 11], [1, 4])
    assert Bins([1], [1], [1]) + Bins([1], [1], [0]) == Bins([2], [2], [1])
