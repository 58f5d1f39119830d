"""Events rarer than the tolerance: held to a fifth of their share, and expected against observed ones."""

from __future__ import annotations

import numpy as np
import pytest
from sizes import sized

from calib_serve.judgement import judge


def stream(seed: int, n: int, *, ratio: float = 1.0, share: float = 0.005) -> tuple[np.ndarray, np.ndarray]:
    """P(y = 1) of an event of this share, which happens ``ratio`` times as often as it says."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 0.5 / share, n)
    return p, rng.random(n) < ratio * p


@pytest.mark.parametrize("ratio", [0.5, 0.75, 1.25, 2.0])
def test_an_event_that_happens_otherwise_is_hardly_ever_called_calibrated(ratio: float) -> None:
    runs = sized(40, 200)
    for n in (20_000, 200_000):
        levels = [judge(*stream(seed, n, ratio=ratio)).level for seed in range(runs if n < 10**5 else 10)]
        assert levels.count("calibrated") <= max(0.05 * len(levels), 1)
    assert judge(*stream(0, 200_000, ratio=ratio)).level == "off"


def test_one_that_happens_as_often_as_it_says_is_rarely_off_and_proven_by_enough() -> None:
    levels = [judge(*stream(seed, 20_000)).level for seed in range(sized(60, 300))]
    assert levels.count("off") <= 0.05 * len(levels) + 3 * np.sqrt(0.05 * len(levels))
    assert judge(*stream(1, 1_000_000)).level == "calibrated"


def test_the_tolerance_of_a_rare_event_is_a_fifth_of_its_share() -> None:
    found = {test.name: test for test in judge(*stream(2, 100_000)).tests}
    assert found["positive"].tolerance == pytest.approx(0.001, rel=0.15)
    assert found["confidence"].tolerance == 0.02
    usual = {test.name: test for test in judge(*stream(2, 100_000, share=0.2)).tests}
    assert usual["positive"].tolerance == 0.02
    assert "events" not in usual
