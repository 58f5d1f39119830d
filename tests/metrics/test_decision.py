"""Verdicts on whole models: what is off is found, what is calibrated passes, rare events are held to less."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from sizes import sized

from calib_serve import judge
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.text import points
from calib_serve.metrics import judging
from calib_serve.metrics.conclusion import CALIBRATE
from calib_serve.metrics.gaps import Cells
from calib_serve.metrics.judging import judge_probs

MODELS = sized(ci=16, nightly=400)

Array = np.ndarray


def scores(rng: np.random.Generator, n: int, classes: int, low: float = 0.5, high: float = 1.0) -> Array:
    """Probabilities (n, K): the top one even in [low, high], the rest uneven."""
    top, named = rng.uniform(low, high, n), rng.integers(classes, size=n)
    rest = rng.dirichlet(np.full(classes - 1, 2.0), n) * (1 - top)[:, None]
    p = np.zeros((n, classes))
    p[np.arange(classes) != named[:, None]] = rest.ravel()
    p[np.arange(n), named] = top
    return p


def drawn(rng: np.random.Generator, p: Array) -> Array:
    return (p.cumsum(axis=1) > rng.random(len(p))[:, None] * p.sum(axis=1, keepdims=True)).argmax(axis=1)


def moved(p: Array, by: Array) -> Array:
    """The top probability (n,) larger by ``by``, the others smaller in proportion."""
    rows, named = np.arange(len(p)), p.argmax(axis=1)
    new = np.clip(p[rows, named] + by, 0, 1)
    q = p * ((1 - new) / np.maximum(1 - p[rows, named], 1e-12))[:, None]
    q[rows, named] = new
    return q


def levels(n, classes, truth=lambda p: p, *, models=MODELS, low=0.5, high=1.0, **options) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in range(models):
        rng = np.random.default_rng([seed, classes])
        p = scores(rng, n, classes, low, high)
        found[judge(p, drawn(rng, truth(p)), **options).level] += 1
    return found


@pytest.mark.parametrize(("classes", "n"), [(2, 5000), (10, 40_000), (100, 5000)])
def test_a_calibrated_model_is_rarely_called_off(classes: int, n: int) -> None:
    found = levels(n, classes, models=MODELS if n < 10_000 else MODELS // 4)
    assert found["off"] <= 0.05 * MODELS + 3 * np.sqrt(0.05 * MODELS)
    assert found["calibrated"] >= 0.6 * found.total()


def test_classes_of_500_at_mid_confidence_are_not_called_calibrated_nor_off() -> None:
    """Their gap has a standard error of two points: no test can tell 0 from 3."""
    found = levels(5000, 10, low=0.55, high=0.95, models=8)
    assert found["no_error_found"] >= 6
    # Who can live with more in a class says so.
    assert levels(5000, 10, low=0.55, high=0.95, models=8, class_tolerance=0.1)["calibrated"] >= 5


@pytest.mark.parametrize(
    "truth",
    [
        lambda p: moved(p, np.full(len(p), -0.03)),
        lambda p: moved(p, np.full(len(p), 0.03)),
        lambda p: moved(p, np.where(p.argmax(axis=1) == 0, -0.03, 0)),
        lambda p: moved(p, np.where((p.max(axis=1) * 45).astype(int) % 2, -0.06, 0.06)),
    ],
    ids=["over", "under", "one class", "inside bins"],
)
def test_a_model_that_is_off_is_not_called_calibrated(truth) -> None:
    found = levels(5000, 2, truth, low=0.55, high=0.95)
    assert found["calibrated"] <= 0.05 * MODELS + 3 * np.sqrt(0.05 * MODELS)


def test_errors_that_cancel_in_the_top_class_are_named_by_what_they_are() -> None:
    """Class 1 came to be more frequent: over- and underconfident by as much, and nothing over all."""
    rng = np.random.default_rng(0)
    p = scores(rng, 5000, 2, 0.55, 0.95)
    truth = moved(p, np.where(p.argmax(axis=1) == 0, -0.11, 0.11).clip(max=0.99 - p.max(axis=1)))
    found = judge(p, drawn(rng, truth))
    assert found.level == "off"
    assert found.headline.startswith("Not calibrated: P(y = 1) is too low, on average 1")
    assert any("Fit platt, beta or isotonic" in line for line in found.do)
    assert {"class", "positive"} <= {test.name for test in found.tests if test.finding == "off"}


def test_the_class_that_vetoes_is_named_with_way_and_size() -> None:
    rng = np.random.default_rng(1)
    p = scores(rng, 20_000, 10)
    truth = moved(p, np.where(p.argmax(axis=1) == 3, -0.1, 0))
    names = ["a", "b", "c", "cat", *"efghij"]
    found = judge(p, drawn(rng, truth), class_names=names)
    assert found.level == "off"
    assert found.headline.replace("\xa0", " ").startswith(
        "Not calibrated: predictions of class “cat” are overconfident by "
    )
    assert any("number per class" in line for line in found.do)


def test_a_class_that_comes_more_often_than_expected_vetoes_though_no_prediction_names_it() -> None:
    rng = np.random.default_rng(2)
    p = np.tile([0.6, 0.3, 0.1], (5000, 1))
    y = drawn(rng, np.tile([0.6, 0.1, 0.3], (5000, 1)))  # the top class is right as often as it says
    found = judge(p, y, class_names=["x", "y", "z"])
    assert found.level == "off"
    rare, came = int((y == 1).sum()), int((y == 2).sum())
    assert (
        f"class “z” is expected 500 times and occurs {came:,} times" in found.headline
        or f"class “y” is expected 1,500 times and occurs {rare:,} times" in found.headline
    )


def test_errors_by_the_second_probability_are_seen_although_every_bin_is_right() -> None:
    rng = np.random.default_rng(3)
    p = scores(rng, 10_000, 10, 0.5, 0.9)
    ordered = np.sort(p, axis=1)
    sure = ordered[:, -2] / (1 - ordered[:, -1])
    found = judge(p, drawn(rng, moved(p, np.where(sure > np.median(sure), -0.08, 0.08))))
    assert found.level == "off"
    (shape,) = (test for test in found.tests if test.finding == "off")
    assert shape.name == "shape"
    assert f"cancel over its ranges or classes are about {points(shape.error)}" in found.headline


def test_a_small_proven_error_is_within_the_tolerance() -> None:
    rng = np.random.default_rng(4)
    p = scores(rng, 60_000, 2, 0.55, 0.95)
    y = drawn(rng, moved(p, np.full(len(p), -0.01)))
    found = judge(p, y)
    assert found.level == "calibrated"
    assert min(test.p for test in found.tests) < 0.001  # it is there, and small
    assert judge(p, y, tolerance=0.005).level == "off"


def _calibrated(n: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    p = scores(rng, n, 2, 0.6, 0.95)
    return p, drawn(rng, p)


def test_small_classes_are_left_out_aloud() -> None:
    rng = np.random.default_rng(6)
    p = scores(rng, 8000, 100)
    found = judge(p, drawn(rng, p))
    assert found.level == "calibrated"
    assert "to judge 100 of 100 classes alone" in found.headline


def test_repeated_samples_prove_nothing_new() -> None:
    """Each of 300 patients ten times: with groups it is as of 300 samples, and exact copies are known."""
    said = Counter()
    for seed in range(12):
        p, y = _calibrated(300, seed)
        p, y, groups = np.repeat(p, 10, axis=0), np.repeat(y, 10), np.repeat(np.arange(300), 10)
        said["alone", judge(p, y).level] += 1
        said["grouped", judge(p, y, groups=groups).level] += 1
        # Each visit's scores differ a little, as of one patient's pictures: only groups say what they are.
        near = p[:, 1] + 1e-5 * np.random.default_rng(seed).random(len(p))
        said["near", judge(np.stack([1 - near, near], axis=1), y).level] += 1
    assert said["grouped", "off"] <= 3
    assert said["grouped", "calibrated"] <= 1
    assert said["alone", "off"] == said["grouped", "off"]
    assert said["near", "off"] >= 4


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.999999, 1.0])
def test_extreme_samples_are_judged(confidence: float) -> None:
    for n in (1, 2, 7):
        p = np.tile([confidence, 1 - confidence], (n, 1))
        assert judge(p, np.zeros(n, int), outputs="probabilities").level == "too_little"
        assert np.isfinite(
            [test.most for test in judge(p, np.zeros(n, int), outputs="probabilities").tests]
        ).all()
    sure = np.tile([1.0, 0.0, 0.0], (4000, 1))
    assert judge(sure, np.zeros(4000, int)).level == "calibrated"
    assert judge(sure, np.ones(4000, int)).level == "off"


def test_wrong_input_is_refused() -> None:
    p, y = _calibrated(10, 0)
    for tolerance in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(InputError, match="tolerance"):
            judge(p, y, tolerance=tolerance)
        with pytest.raises(InputError, match="tolerance"):
            judge(p, y, class_tolerance=tolerance)
        with pytest.raises(InputError, match="tolerance"):
            judge(p, y, tolerance=tolerance, class_tolerance=0.03)
    with pytest.raises(InputError):
        judge(np.where(p > 0, np.nan, p), y)
    with pytest.raises(InputError):
        judge(p * 1.7e308, y)
    with pytest.raises(ShapeError, match="class names"):
        judge(p, y, class_names=["one"])
    with pytest.raises(ShapeError, match="2 classes but 3 class names"):
        judge(p, np.stack([1 - y, y], axis=1), class_names=["a", "b", "c"])
    with pytest.raises((InputError, ShapeError)):
        judge(p[:0], y[:0])
    with pytest.raises(ShapeError, match="groups"):
        judge(p, y, groups=np.arange(3))
    with pytest.raises(InputError, match="groups"):
        judge(p, np.stack([y, y], axis=1), groups=np.arange(10), outputs="label_probabilities")


def test_a_class_may_be_off_by_half_as_much_again_and_never_by_all() -> None:
    p, y = _calibrated(500, 0)
    for tolerance, single in ((0.02, 0.03), (0.6, 0.9), (0.9, 0.999)):
        found = {test.name: test.tolerance for test in judge(p, y, tolerance=tolerance).tests}
        assert found["class"] == pytest.approx(single)


def test_labels_are_judged_one_by_one() -> None:
    rng = np.random.default_rng(7)
    p = rng.uniform(0, 0.6, (5000, 6))
    y = (rng.random(p.shape) < p).astype(int)
    assert judge(p, y, outputs="label_probabilities").level == "calibrated"
    off = p.copy()
    off[:, 2] += 0.1
    found = judge(off, y, class_names=[f"l{k}" for k in range(6)], outputs="label_probabilities")
    assert found.level == "off"
    assert "“l2” is too high" in found.headline
    assert found.reasons[0].startswith("Of 5,000 samples with 6 labels each, ")


def stream(seed: int, n: int, *, ratio: float = 1.0, share: float = 0.005) -> tuple[np.ndarray, np.ndarray]:
    """P(y = 1) of an event of this share, which happens ``ratio`` times as often as it says."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 0.5 / share, n)
    return p, rng.random(n) < ratio * p


# The nearer to 1 the harder: an event that happens half or twice as often is found more often than these.
@pytest.mark.parametrize("ratio", sized([1.25], [0.5, 0.75, 1.25, 2.0]))
def test_an_event_that_happens_otherwise_is_hardly_ever_called_calibrated(ratio: float) -> None:
    levels = [
        judge(*stream(seed, 20_000, ratio=ratio), outputs="probability").level
        for seed in range(sized(40, 200))
    ]
    assert levels.count("calibrated") <= 0.05 * len(levels)
    assert {
        judge(*stream(seed, 200_000, ratio=ratio), outputs="probability").level
        for seed in range(sized(2, 10))
    } == {"off"}


def test_one_that_happens_as_often_as_it_says_is_rarely_off_and_proven_by_enough() -> None:
    levels = [judge(*stream(seed, 20_000), outputs="probability").level for seed in range(sized(24, 300))]
    assert levels.count("off") <= 0.05 * len(levels) + 3 * np.sqrt(0.05 * len(levels))
    assert judge(*stream(1, 1_000_000), outputs="probability").level == "calibrated"


def test_the_tolerance_of_a_rare_event_is_a_fifth_of_its_share() -> None:
    found = {test.name: test for test in judge(*stream(2, 100_000), outputs="probability").tests}
    assert found["positive"].tolerance == pytest.approx(0.001, rel=0.15)
    assert found["confidence"].tolerance == 0.02
    usual = {test.name: test for test in judge(*stream(2, 100_000, share=0.2), outputs="probability").tests}
    assert usual["positive"].tolerance == 0.02
    assert "events" not in usual


@pytest.mark.parametrize(("events", "relative"), [(100, False), (99, True), (0, True)])
def test_an_event_is_rare_below_one_in_ten(events: int, relative: bool) -> None:
    p, came = np.full(1000, 0.1), (np.arange(1000) < events).astype(int)
    tests = {one.name: one for one in judge(np.c_[1 - p, p], came).tests}
    assert ({"events", "highest"} <= set(tests)) is relative
    if relative:  # 100 are expected
        assert tests["events"].error == pytest.approx(1 - events / 100)


@pytest.mark.parametrize(
    ("came", "finding"), [(100, "off"), (152, "off"), (153, "open"), (186, "open"), (190, "within")]
)
def test_rare_events_are_off_where_a_tenth_of_them_surely_is(came: int, finding: str) -> None:
    """Of 200 that are expected, with a standard error of the root of 4000 x 0.05 x 0.95 + 1."""
    p = np.full(4000, 0.05)
    tests = {one.name: one for one in judge(np.c_[1 - p, p], (np.arange(4000) < came).astype(int)).tests}
    of_events = tests["events"]
    assert of_events.finding == finding
    assert (of_events.p < 0.01) is (finding == "off")
    assert of_events.error == pytest.approx(1 - came / 200)
    assert of_events.most == pytest.approx((200 - came + 1.96 * np.sqrt(191)) / 200)


def test_rare_events_that_come_in_groups_prove_less() -> None:
    p, groups = np.full(4000, 0.05), np.arange(4000) // 10
    came = np.isin(groups, np.arange(12)).astype(float)  # 120 of 200, in twelve groups
    alone, grouped = (
        {one.name: one for one in judge(np.c_[1 - p, p], came.astype(int), groups=g).tests}["events"]
        for g in (None, groups)
    )
    effect = Cells.of(p, came, np.zeros(4000, int), groups).effect
    assert effect > 5
    assert grouped.most == pytest.approx((80 + 1.96 * np.sqrt(effect * 190 + 1)) / 200)
    assert alone.most == pytest.approx((80 + 1.96 * np.sqrt(191)) / 200)
    assert alone.p < 1e-3 < 0.05 < grouped.p


@pytest.mark.parametrize("absent", [False, True], ids=["a rare label", "a label that is rarely absent"])
def test_a_rare_label_is_held_to_its_expected_events(absent: bool) -> None:
    off = calibrated = 0
    for seed in range(sized(20, 100)):
        rng = np.random.default_rng(seed)
        p = np.column_stack([rng.beta(2, 3, (2000, 5)), np.clip(rng.gamma(0.8, 0.0125, 2000), 1e-6, 0.4)])
        y = (rng.random(p.shape) < p).astype(int)
        calibrated += judge(p, y, outputs="label_probabilities").level != "off"
        p[:, 5] *= 2.4
        if absent:
            p[:, 5], y[:, 5] = 1 - p[:, 5], 1 - y[:, 5]
        found = judge(p, y, outputs="label_probabilities", class_names=list("abcdef"))
        named = f"expected events {'without' if absent else 'of'} label “f”"
        off += any(test.what == named and test.finding == "off" for test in found.tests)
    assert off >= 0.85 * sized(20, 100)
    assert calibrated >= 0.9 * sized(20, 100)


def test_of_very_many_samples_those_that_are_judged_are_spread_over_all(monkeypatch) -> None:
    monkeypatch.setattr(judging, "MOST_SAMPLES_JUDGED", 2000)
    opening = judge_probs(np.tile([0.8, 0.2], (4000, 1)), np.repeat([0, 1], 2000)).reasons[0]
    assert opening.startswith("It is right in 50.0")
    assert "of 2,000 predictions (spread over all 4,000)" in opening


def test_each_class_and_each_label_has_a_name() -> None:
    p = np.full((50, 3), 0.5)
    with pytest.raises(ShapeError, match="3 classes but 2 class names"):
        judge_probs(p / 1.5, np.arange(50) % 3, class_names=("a", "b"))
    with pytest.raises(ShapeError, match="3 labels but 2 class names"):
        judge_probs(p, (p > 1).astype(int), class_names=("a", "b"))


def test_a_model_that_is_read_upside_down_is_not_to_be_calibrated() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(3000)
    came = (rng.random(3000) < p).astype(int)
    found = judge(np.c_[p, 1 - p], came)
    assert "rarer where" in found.do[0]
    assert CALIBRATE not in found.do
    assert CALIBRATE in judge(np.c_[1 - p**3, p**3], came).do
