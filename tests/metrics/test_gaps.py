"""The tests of a verdict, each written out with numpy and scipy: cells, classes, totals and shape."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from calib_serve import judge
from calib_serve.core.options.evaluate import VerdictOptions
from calib_serve.metrics.gaps import Cells, class_gaps, class_totals, equal_mass, finest
from calib_serve.metrics.judging import _of_all, _of_classes, _of_label, _Sample
from calib_serve.metrics.shape import (
    Pair,
    _effect_of_features,
    shape_of_event,
    shape_of_top_two,
)

RNG = np.random.default_rng(8)
N = 900
P = RNG.uniform(0.55, 0.95, N)
CAME = (RNG.random(N) < P - 0.03).astype(float)
CELL = RNG.integers(0, 4, N)
GROUPS = RNG.integers(0, 150, N)
WHOLE = Cells.of(P, CAME, CELL)


# Cells


def test_cells_are_sums_of_each_and_empty_ones_are_left_out() -> None:
    found = Cells.of(P, CAME, np.where(CELL > 1, CELL + 7, CELL))
    for i, k in enumerate(range(4)):
        inside = k == CELL
        assert found.count[i] == inside.sum()
        assert found.said[i] == pytest.approx(P[inside].sum())
        assert found.came[i] == CAME[inside].sum()
        assert found.noise[i] == pytest.approx((P[inside] * (1 - P[inside])).sum())
        assert found.gaps[i] == pytest.approx(P[inside].mean() - CAME[inside].mean())
    assert (len(found.count), found.effect) == (4, 1.0)
    wanted = sum(abs(P[k == CELL].sum() - CAME[k == CELL].sum()) for k in range(4)) / N
    assert found.error == pytest.approx(wanted)


@pytest.mark.parametrize("effect", [1.0, 2.5])
def test_chances_and_bounds_are_those_of_the_chi_square_distributions(effect: float) -> None:
    one = Cells(WHOLE.count, WHOLE.said, WHOLE.came, WHOLE.noise, effect)
    gap, mean = one.said - one.came, one.said / one.count
    squares = (gap**2 / (one.noise + 1)).sum() / effect
    assert one.p == pytest.approx(stats.chi2.sf(squares, 4))

    def chance(t: float) -> float:
        noise = one.noise + one.count * np.maximum(t * np.abs(2 * mean - 1) - t**2, 1e-9)
        distance = (N * t) ** 2 / noise.sum() / effect
        seen = max((gap**2 / noise).sum() / effect, stats.chi2.median(4))
        return float(stats.ncx2.cdf(seen, 4, distance))

    assert one.most == pytest.approx(optimize.brentq(lambda t: chance(t) - 0.05, 1e-6, 1), abs=1e-6)
    assert one.within(one.most + 1e-4)
    assert not one.within(one.most - 1e-4)
    # As many samples as leave 90 % of calibrated models below the bound.
    for power in (0.9, 0.5):
        limit = stats.chi2.ppf(power, 4)
        distance = optimize.brentq(lambda d: stats.ncx2.cdf(limit, 4, d) - 0.05, 0.1, 500)  # noqa: B023
        noise = one.noise + one.count * (0.02 * np.abs(2 * mean - 1) - 0.02**2)
        wanted = distance / ((N * 0.02) ** 2 / noise.sum() / effect)
        assert one.needed(0.02, power=power) == pytest.approx(wanted, rel=1e-6)
    assert one.needed(0.02) == one.needed(0.02, power=0.9)


def test_nothing_bounds_an_error_where_samples_are_few() -> None:
    one = Cells(np.array([1.0]), np.array([0.5]), np.array([1.0]), np.array([0.25]))
    assert one.most == 1.0
    assert not one.within(0.999)


def test_groups_count_as_the_largest_variance_of_any_mix_of_cells() -> None:
    found = Cells.of(P, CAME, CELL, GROUPS)
    totals = np.zeros((150, 4))
    for k in range(4):
        errors = (P - CAME)[k == CELL]
        for g in range(150):
            inside = GROUPS[k == CELL] == g
            totals[g, k] = errors[inside].sum() - inside.sum() * errors.mean()
    scaled = totals / np.sqrt(WHOLE.noise + 1)
    largest = np.linalg.svd(scaled, compute_uv=False)[0] ** 2 * 150 / 149
    few = stats.t.ppf(0.975, 149) / stats.norm.ppf(0.975)
    assert found.effect == pytest.approx(max(largest, 1) * few**2, rel=1e-6)
    assert largest > 1
    # More cells than groups: the same by the other product.
    some = np.arange(N) % 3
    many = Cells.of(P, CAME, CELL, some)
    assert len(many.count) > 3
    totals = np.array([[((P - CAME) * (some == g) * (k == CELL)).sum() for k in range(4)] for g in range(3)])
    size = np.array([[((some == g) & (k == CELL)).sum() for k in range(4)] for g in range(3)])
    scaled = (totals - size * totals.sum(axis=0) / size.sum(axis=0)) / np.sqrt(WHOLE.noise + 1)
    largest = np.linalg.svd(scaled, compute_uv=False)[0] ** 2 * 3 / 2
    few = stats.t.ppf(0.975, 2) / stats.norm.ppf(0.975)
    assert many.effect == pytest.approx(max(largest, 1) * few**2, rel=1e-6)
    # Groups that even one another out make nothing smaller.
    calm = Cells.of(np.full(4, 0.5), np.array([0.0, 1.0, 0.0, 1.0]), np.zeros(4, int), np.array([0, 0, 1, 1]))
    assert calm.effect == pytest.approx((stats.t.ppf(0.975, 1) / stats.norm.ppf(0.975)) ** 2, rel=1e-6)


def test_cells_of_equal_mass_share_values_at_their_edges() -> None:
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert equal_mass(values, 1).tolist() == [0] * 8
    assert equal_mass(values, 2).tolist() == [0] * 4 + [1] * 4
    assert equal_mass(values, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert equal_mass(np.array([0.5] * 6), 3).tolist() == [0] * 6
    assert equal_mass(np.array([1.0, 2.0, 3.0]), 2).tolist() == [0, 0, 1]  # the median belongs below


@pytest.mark.parametrize("tolerance", [0.01, 0.03, 0.05, 0.1, 0.3])
def test_as_many_cells_are_made_as_leave_a_calibrated_model_its_power(tolerance: float) -> None:
    splits = {few: Cells.of(P, CAME, equal_mass(P, few)) for few in (2, 3, 4, 6, 8, 12, 16)}
    enough = [few for few, cells in splits.items() if cells.needed(tolerance) <= 1]
    found = finest(splits.__getitem__, tolerance)
    assert len(found.count) == max(enough, default=2)


# Classes


def test_classes_with_enough_predictions_are_judged_alone_and_the_rest_as_one() -> None:
    predicted = np.repeat([0, 1, 2, 3], [600, 500, 499, 12_000])
    n = len(predicted)
    p = RNG.uniform(0.5, 1, n)
    right = (RNG.random(n) < p).astype(float)
    found, small = class_gaps(p, right, predicted, ["a", "b", "c", "d", "none"], None)
    assert [one.name for one in found] == ["a", "b", "d"]
    assert small == 2  # "c", and the one that nothing names
    for one, k in zip(found, (0, 1, 3), strict=True):
        inside = predicted == k
        assert one.cells.count.tolist() == [inside.sum()]
        assert one.cells.gaps[0] == pytest.approx(p[inside].mean() - right[inside].mean())
        assert one.cells.effect == 1.0
    # One in twenty of all is enough as well: 499 of 9,980 is, of 9,981 is not.
    for last, names in ((9980 - 1099, ["a", "c", "d"]), (9981 - 1099, ["a", "d"])):
        some = np.concatenate([np.repeat([0, 2], [600, 499]), np.full(last, 3)])
        found, _ = class_gaps(np.full(len(some), 0.8), np.ones(len(some)), some, ["a", "b", "c", "d"], None)
        assert [one.name for one in found] == names


def test_the_rest_is_judged_as_one_where_it_is_many_or_one_in_twenty() -> None:
    def rest(each: int, classes: int, whole: int) -> list[str | None]:
        predicted = np.concatenate([np.repeat(np.arange(1, classes + 1), each), np.zeros(whole, int)])
        p, right = np.full(len(predicted), 0.8), np.ones(len(predicted))
        return [
            one.name for one in class_gaps(p, right, predicted, [str(k) for k in range(classes + 1)], None)[0]
        ]

    assert rest(100, 5, 20_000) == ["0", None]  # 500
    assert rest(100, 4, 20_000) == ["0"]  # 400, and one in fifty
    assert rest(10, 6, 1139) == ["0", None]  # 60 of 1,199 is one in twenty
    assert rest(10, 6, 1140) == ["0", None]  # and this exactly
    assert rest(10, 6, 1141) == ["0"]
    assert rest(1, 30, 0) == [None]


def test_groups_inside_a_class_are_its_own() -> None:
    predicted = np.repeat([0, 1, 2, 3], 600)
    p = np.full(2400, 0.8)
    right = (RNG.random(2400) < 0.7).astype(float)
    # Class 0 is of one group, each of class 1 is a group, class 2 is of groups of six, class 3 of two.
    groups = np.concatenate([np.zeros(600, int), np.arange(1, 601), 601 + np.arange(600) // 6])
    groups = np.concatenate([groups, 701 + np.arange(600) // 300])
    zero, one, two, three = class_gaps(p, right, predicted, ["0", "1", "2", "3"], groups)[0]
    assert zero.cells.effect == 600.0
    assert (zero.cells.said[0], zero.cells.came[0]) == (pytest.approx(480), right[:600].sum())
    assert zero.cells.noise[0] == pytest.approx(600 * 0.16)
    assert one.cells.effect == 1.0
    assert (
        two.cells.effect
        == Cells.of(p[1200:1800], right[1200:1800], np.zeros(600, int), np.arange(600) // 6).effect
        > 1
    )
    pair = Cells.of(p[1800:], right[1800:], np.zeros(600, int), np.arange(600) // 300)
    assert three.cells.effect == pair.effect != 600


@pytest.mark.parametrize("grouped", [False, True])
def test_totals_are_of_all_samples_and_the_gap_of_those_that_concern_the_class(grouped: bool) -> None:
    rng = np.random.default_rng(9)
    p = rng.dirichlet([2, 2, 1], 700)
    y = np.where(rng.random(700) < 0.2, 2, p.argmax(axis=1))
    predicted = p.argmax(axis=1)
    groups = rng.integers(0, 90, 700) if grouped else None
    found = class_totals(p, y, predicted, groups)
    noise = 1 + (p * (1 - p)).sum(axis=0)
    if groups is not None:
        for k in range(3):
            error = p[:, k] - (y == k)
            sums = np.array([(error - error.mean())[groups == g].sum() for g in np.unique(groups)])
            robust = len(sums) / (len(sums) - 1) * (sums**2).sum() / 700**2
            noise[k] *= max(robust / (error.var(ddof=1) / 700), 1)
    expected, occurs = p.sum(axis=0), np.array([(y == k).sum() for k in range(3)])
    z = (expected - occurs) / np.sqrt(noise)
    k = int(np.abs(z).argmax())
    stake = sum(1 for a, b in zip(y, predicted, strict=True) if k in (a, b))
    assert stake > expected[k]
    gap = (expected[k] - occurs[k]) / stake
    assert (found.k, found.occurs) == (k, occurs[k])
    assert found.expected == pytest.approx(expected[k])
    assert found.gap == pytest.approx(gap)
    assert found.p == pytest.approx(min(3 * stats.chi2.sf(z[k] ** 2, 1), 1), rel=1e-6)
    assert found.most == pytest.approx(abs(gap) + 1.645 * math.sqrt(noise[k]) / stake)


def test_a_class_that_nothing_concerns_does_not_divide_by_zero() -> None:
    p = np.array([[0.0, 0.5, 0.5]] * 4)
    found = class_totals(p, np.array([1, 2, 1, 2]), np.ones(4, int), None)
    assert (found.k, found.gap, found.p) == (0, 0.0, 1.0)
    alone = class_totals(np.array([[0.9, 0.1]]), np.array([0]), np.array([0]), None)
    assert abs(alone.gap) == pytest.approx(0.1)


def test_a_class_that_is_expected_and_never_comes_is_off_by_all_of_it() -> None:
    p = np.array([[0.35, 0.33, 0.32]] * 100)
    found = class_totals(p, np.arange(100) % 2, np.zeros(100, int), None)
    assert (found.k, found.occurs) == (2, 0)
    assert found.gap == pytest.approx(1.0)
    assert found.most == pytest.approx(1 + 1.645 * math.sqrt(1 + 32 * 0.68) / 32)


# Shape


def by_hand(streams, weights, crossed, groups=None):
    """p, size and bound by loops over features: ``streams`` of (features, probs, came)."""
    owner = [s for s, (f, _, _) in enumerate(streams) for _ in range(f.shape[1])]
    column = [f[:, j] for f, _, _ in streams for j in range(f.shape[1])]
    m = len(column)
    scores = np.array([(column[a] * (streams[owner[a]][1] - streams[owner[a]][2])).sum() for a in range(m)])
    cov = np.empty((m, m))
    for a in range(m):
        for b in range(m):
            q = streams[owner[a]][1]
            factor = q * (1 - q) if owner[a] == owner[b] else -crossed
            cov[a, b] = (column[a] * column[b] * factor).sum()
    cov += np.diag([(c**2).max() for c in column])
    effects = [1.0]
    if groups is not None:
        for f, q, came in streams:
            for c in (np.ones(len(q)), *f.T):
                v = c * (q - came)
                sums = np.array([(v - v.mean())[groups == g].sum() for g in np.unique(groups)])
                robust = len(sums) / (len(sums) - 1) * (sums**2).sum() / len(v) ** 2
                effects.append(robust / (v.var(ddof=1) / len(v)))
    cov *= max(effects)
    z = scores / np.sqrt(np.diag(cov))
    corr = cov / np.sqrt(np.outer(np.diag(cov), np.diag(cov)))
    law = np.linalg.eigvals(np.diag(weights) @ corr).real
    c1, c2, c3 = law.sum(), (law**2).sum(), (law**3).sum()
    freedom = c2**3 / c3**2
    smooth = stats.chi2.sf(((weights * z**2).sum() - c1) * math.sqrt(freedom / c2) + freedom, freedom)
    sharp = m * stats.chi2.sf((z**2).max(), 1)
    f, q, came = streams[0]
    n, k = len(crossed), f.shape[1]
    around = f - f.mean(0)
    inverse = np.linalg.pinv(around.T @ around / n, rcond=1e-6)
    mean = np.array([(around[:, j] * (q - came)).mean() for j in range(k)])
    noise = max(effects) * (around * (q * (1 - q))[:, None]).T @ around / n**2
    square = mean @ inverse @ mean - np.trace(inverse @ noise)
    error = math.sqrt(
        2 * np.trace(inverse @ noise @ inverse @ noise) + 4 * mean @ inverse @ noise @ inverse @ mean
    )
    high = square + 1.6448536269514722 * error
    return min(2 * smooth, 2 * sharp, 1), math.sqrt(max(square, 0)), math.sqrt(max(high, 0))


def ranks(values: np.ndarray) -> np.ndarray:
    return (stats.rankdata(values) - 0.5) / len(values)


def waves(rank: np.ndarray, count: int) -> np.ndarray:
    return np.stack([math.sqrt(2) * np.cos(math.pi * j * rank) for j in range(1, count + 1)], axis=1)


WOBBLES = {
    "none": lambda p, rank: np.zeros(len(p)),
    "squares": lambda p, rank: 0.15 * np.sign(np.sin(12 * p)),
    "of many features": lambda p, rank: 0.04 * np.sin(9 * p) + 0.04 * np.sign(p - 0.5),  # none stands out
    "one wave": lambda p, rank: 0.1 * np.cos(np.pi * 30 * rank),
}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("error", WOBBLES)
def test_the_shape_of_an_event_is_as_it_is_written_out(error: str, grouped: bool) -> None:
    rng = np.random.default_rng(10)
    p = np.round(rng.uniform(0.02, 0.98, 2000), 2)  # with ties
    rank, side = ranks(np.abs(p - 0.5)), np.where(p > 0.5, 1.0, -1.0)
    came = (rng.random(2000) < np.clip(p + WOBBLES[error](p, rank), 0, 1)).astype(float)
    groups = np.arange(2000) // 4 if grouped else None
    first = waves(rank, 32)
    features = np.column_stack([first, first * side[:, None], side])
    weights = np.array([*(1 / np.arange(1, 33)), *(1 / np.arange(1, 33)), 1.0])
    wanted = by_hand([(features, p, came)], weights, np.zeros(2000), groups)
    found = shape_of_event(p, came, groups)
    assert (found.p, found.size, found.most) == pytest.approx(wanted, rel=1e-4, abs=1e-9)
    if error != "none":
        assert found.p < 0.1


@pytest.mark.parametrize(
    ("error", "grouped", "classes"),
    [*itertools.product(["none", "by share", "of many features"], [False, True], [3]), ("none", False, 70)],
)
def test_the_shape_of_the_two_largest_is_as_it_is_written_out(
    error: str, grouped: bool, classes: int
) -> None:
    rng = np.random.default_rng(11)
    n = 1500
    first = rng.uniform(0.5, 0.9, n)
    second = (1 - first) * rng.uniform(0.4, 0.9, n)
    predicted = rng.integers(0, classes, n)
    u = rng.random(n)
    rank, share = ranks(first), ranks(second / (1 - first))
    off = {
        "none": np.zeros(n),
        "by share": np.where(second / (1 - first) > 0.65, -0.12, 0.12),
        "of many features": 0.06 * np.cos(np.pi * rank) + 0.06 * np.cos(np.pi * share),  # none stands out
    }[error]
    right = (u < first + off).astype(float)
    was_second = ((u >= first + off) & (u < first + off + second)).astype(float)
    groups = np.arange(n) // 3 if grouped else None
    a, b = waves(rank, 32), waves(share, 4)
    products = [math.sqrt(2) * a[:, i] * b[:, j] for i in range(3) for j in range(3)]
    # Lines over the rank of the 64 classes that are predicted most, most first.
    common = sorted(range(classes), key=lambda k: -(predicted == k).sum())[:64]
    slopes = [np.where(predicted == k, rank - 0.5, 0) for k in common]
    top = np.column_stack([a, b, *products, *slopes])
    below = np.column_stack([np.ones(n), b])
    quarter = 1 / np.arange(1, 5)
    weights = np.array(
        [*(1 / np.arange(1, 33)), *quarter, *[0.5] * 9, *[len(common) ** -0.5] * len(common), 1.0, *quarter]
    )
    streams = [(top, first, right), (below, second, was_second)]
    wanted = by_hand(streams, weights, first * second, groups)
    found = shape_of_top_two(Pair(first, right), Pair(second, was_second), predicted, groups)
    assert (found.p, found.size, found.most) == pytest.approx(wanted, rel=1e-5, abs=1e-9)
    if error != "none":
        assert found.p < 0.1


# Whole verdicts have these numbers in them


def _positive(p: np.ndarray, y: np.ndarray, tolerance: float) -> tuple[float, float]:
    """P(y = 1) in cells of either side of a half, as many as either has of all."""
    up = p > 0.5
    for few in (2, 3, 4, 6, 8, 12, 16):
        above = max(round(few * up.mean()), 1)
        cell = np.empty(len(p), int)
        for side, cells_there, first in ((up, above, 0), (~up, max(few - above, 1), 100)):
            if side.any():
                cell[side] = first + equal_mass(p[side], cells_there)
        cells = Cells.of(p, (y == 1).astype(float), cell)
        if few > 2 and cells.needed(tolerance) > 1:
            break
        chosen = cells
    return pytest.approx(chosen.error), pytest.approx(chosen.most)  # type: ignore[return-value]


@pytest.mark.parametrize("classes", [2, 5])
def test_a_verdict_holds_the_numbers_of_its_tests(classes: int) -> None:
    rng = np.random.default_rng(12)
    n = 3000
    p = rng.dirichlet(np.full(classes, 0.6), n)
    y = (p.cumsum(axis=1) > rng.random(n)[:, None]).argmax(axis=1)
    predicted, top = p.argmax(axis=1), p.max(axis=1)
    right = (y == predicted).astype(float)
    tests = judge(p, y, tolerance=0.03).tests
    names = ["positive", "shape", "confidence", "classes"] if classes == 2 else ["confidence", "classes"]
    after = [] if classes == 2 else ["totals", "shape"]
    assert [test.name for test in tests] == [*names, *["class"] * classes, *after]
    found = {test.name: test for test in tests}
    wanted = {"confidence", "classes", "class", "shape"} | ({"positive"} if classes == 2 else {"totals"})
    assert {*found} == wanted
    assert {name: test.tolerance for name, test in found.items()} == {
        name: 0.045 if name in ("class", "totals") else 0.03 for name in wanted
    }
    required = {"positive", "class"} if classes == 2 else {"confidence", "class"}
    assert {name for name, test in found.items() if test.required} == required
    by_class = Cells.of(top, right, predicted)
    assert (found["classes"].error, found["classes"].most) == (by_class.error, by_class.most)
    if classes == 2:
        assert (found["positive"].error, found["positive"].most) == _positive(p[:, 1], y, 0.03)
        one = shape_of_event(p[:, 1], (y == 1).astype(float))
    else:
        second = np.argsort(-p, axis=1)[:, 1]
        pair = Pair(p[np.arange(n), second], (y == second).astype(float))
        one = shape_of_top_two(Pair(top, right), pair, predicted, None)
        totals = class_totals(p, y, predicted, None)
        assert (found["totals"].error, found["totals"].most) == (abs(totals.gap), totals.most)
    assert (found["shape"].error, found["shape"].most) == pytest.approx((one.size, one.most), rel=1e-9)
    for few in (2, 3, 4, 6, 8, 12, 16):
        cells = Cells.of(top, right, equal_mass(top, few))
        if few > 2 and cells.needed(0.03) > 1:
            break
        chosen = cells
    assert (found["confidence"].error, found["confidence"].most) == (chosen.error, chosen.most)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.8, 1.0])
def test_both_sides_of_a_half_have_cells_by_their_share(share: float) -> None:
    rng = np.random.default_rng(13)
    n = 30_000
    far = rng.uniform(0.5, 1, n)
    p = np.where(np.arange(n) < n * share, far, 1 - far)
    y = (rng.random(n) < p).astype(int)
    found = {test.name: test for test in judge(np.stack([1 - p, p], axis=1), y, tolerance=0.03).tests}
    assert (found["positive"].error, found["positive"].most) == _positive(p, y, 0.03)


def _of(p: np.ndarray, y: np.ndarray, names: tuple[str, ...]) -> _Sample:
    return _Sample.of(p, y, groups=None, names=names, asked=VerdictOptions(tolerance=0.03))


def test_of_two_that_are_equal_the_first_is_predicted_and_the_other_is_the_second() -> None:
    for p in ([0.4, 0.4, 0.2], [0.2, 0.4, 0.4], [0.4, 0.2, 0.4]):
        one, other = np.flatnonzero(np.array(p) == 0.4)
        sample = _of(np.array([p, p]), np.array([one, other]), ("a", "b", "c"))
        assert sample.predicted.tolist() == [one, one]
        assert (sample.right.tolist(), sample.was_second.tolist()) == ([1, 0], [0, 1])
        assert sample.first.tolist() == sample.second.tolist() == [0.4, 0.4]
    # Rounded probabilities may add up to more than 1; two events that exclude each other do not.
    assert _of(np.array([[0.7, 0.3001, 0.0]]), np.array([0]), ("a", "b", "c")).second[0] == pytest.approx(0.3)


def test_the_lines_of_classes_are_those_alone_and_the_rest_and_the_worst_is_named() -> None:
    """Classes a and b have many predictions, of which b's are far too sure; 30 others have few."""
    rng = np.random.default_rng(0)
    predicted = np.repeat(np.arange(32), [700, 700, *[20] * 30])
    p = np.full((len(predicted), 32), 0.2 / 31)
    p[np.arange(len(p)), predicted] = 0.8 + 0.2 / 31
    right = rng.random(len(p)) < np.where(predicted == 1, 0.5, 0.8)
    y = np.where(right, predicted, (predicted + 1) % 32)
    names = ("a", "b", *(f"c{k}" for k in range(30)))
    sample = _of(p, y, names)
    gaps, few = class_gaps(sample.first, sample.right, sample.predicted, names, None)
    assert ([gap.name for gap in gaps], few) == (["a", "b", None], 30)
    whole, a, b, rest = _of_classes(sample, gaps)
    assert [line.tested.name for line in (whole, a, b, rest)] == ["classes", "class", "class", "rest"]
    assert whole.says == b.says
    assert "class “b”" in b.says
    for line, gap in zip((a, b, rest), gaps, strict=True):
        assert line.tested.p == gap.cells.p  # all tests are corrected together
        assert line.cells is gap.cells
    # Where no class stands out the sentence is of all of them.
    calm = _of(p, np.where(rng.random(len(p)) < 0.8, predicted, (predicted + 1) % 32), names)
    gaps, _ = class_gaps(calm.first, calm.right, calm.predicted, names, None)
    off = sum(abs((calm.first - calm.right)[predicted == k].sum()) for k in range(32)) / len(p)
    says = _of_classes(calm, gaps)[0].says.replace("\xa0", " ")
    assert says == f"of the 32 classes, predictions are on average {100 * off:.1f} points off"


@pytest.mark.parametrize(
    ("each", "off", "named"), [(200_000, 0.01, False), (60, 0.0, False), (2000, 0.1, True)]
)
def test_the_worst_class_is_named_where_it_is_proven_to_be_off_and_may_be_beyond(
    each: int, off: float, named: bool
) -> None:
    predicted = np.repeat([0, 1], each)
    p = np.where(np.arange(2)[None] == predicted[:, None], 0.8, 0.2)
    right = np.arange(2 * each) * 37 % 100 < np.where(predicted == 1, 80 - 100 * off, 80)
    sample = _of(p, np.where(right, predicted, 1 - predicted), ("a", "b"))
    gaps, _ = class_gaps(sample.first, sample.right, sample.predicted, sample.names, None)
    says = _of_classes(sample, gaps)[0].says
    assert says == gaps[1].says if named else says.startswith("of the 2 classes")


def test_one_sample_of_several_labels_proves_nothing() -> None:
    assert judge([[0.2, 0.7, 0.9]], [[0, 1, 1]], outputs="label_probabilities").level == "too_little"


@pytest.mark.parametrize("labels", [1, 3])
def test_labels_are_judged_together_with_their_samples_as_groups_and_alone(labels: int) -> None:
    rng = np.random.default_rng(5)
    p = rng.uniform(0.02, 0.98, (800, labels))
    y = (rng.random((800, labels)) < p).astype(np.intp)
    cell = np.column_stack([2 * k + (p[:, k] > np.median(p[:, k])) for k in range(labels)])
    groups = np.repeat(np.arange(800), labels) if labels > 1 else None
    together = Cells.of(p.ravel(), y.ravel().astype(float), cell.ravel(), groups)
    line = _of_all(p, y, 0.03, None)
    assert (line.tested.p, line.tested.error, line.tested.most) == pytest.approx(
        (together.p, together.error, together.most)
    )
    assert line.times == pytest.approx(together.needed(0.03))
    assert line.tested.required
    verdict = judge(p, y, tolerance=0.03, outputs="label_probabilities")
    assert [test.name for test in verdict.tests] == ["labels", *["label"] * labels]
    assert len(verdict.reasons) == 1  # no label is left out
    for k in range(labels):
        alone = finest(lambda b, k=k: Cells.of(p[:, k], y[:, k].astype(float), equal_mass(p[:, k], b)), 0.045)
        (line,) = _of_label(p[:, k], y[:, k], "x", None, tolerance=0.045)
        assert (line.tested.what, line.tested.required) == ("P(“x”)", True)
        assert line.tested.p == alone.p
        assert (line.tested.error, line.tested.most) == (alone.error, alone.most)
        assert line.times == alone.needed(0.045)


def test_groups_whose_errors_are_alike_count_though_every_feature_cancels_in_them() -> None:
    rng = np.random.default_rng(14)
    came, groups = np.repeat(rng.integers(0, 2, 100), 4).astype(float), np.arange(400) // 4
    alternating = np.tile([1.0, -1.0, 1.0, -1.0], 100)[:, None]
    error = 0.5 - came
    sums = np.array([(error - error.mean())[groups == g].sum() for g in range(100)])
    wanted = 100 / 99 * (sums**2).sum() / 400**2 / (error.var(ddof=1) / 400)
    features = np.column_stack([alternating, np.ones(400)])
    assert _effect_of_features([(features, np.full(400, 0.5), came)], groups) == pytest.approx(wanted)
    assert wanted > 3.9


def test_the_test_of_shape_converges_where_many_eigenvalues_are_equal() -> None:
    # The waves of 50 distinct probabilities alias; numpy's eigh does not converge in this order of them.
    ranks = (
        "35 31 13 8 9 40 10 23 25 14 37 26 7 38 49 42 17 12 22 15 30 36 46 5 1 2 20 24 19 28 48 34 43 27 0 3 "
        "39 41 32 11 16 21 33 45 6 29 4 44 18 47"
    )
    sides = "+-++---++-++-+--++++--++-++++-+++-+++++-+---++-+-+"
    away = (np.array(ranks.split(), float) + 1) / 110
    p = np.where(np.array([*sides]) == "+", 0.5 + away, 0.5 - away)
    assert 0 <= shape_of_event(p, (p > 0.5).astype(float)).p <= 1
