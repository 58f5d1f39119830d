"""After as many samples as a verdict asks for, calibrated models are called calibrated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sizes import sized

from calib_serve import judge
from calib_serve.metrics.conclusion import Verdict
from calib_serve.monitor.estimates import estimate
from calib_serve.monitor.live_verdict import judge_estimates
from calib_serve.receipts.sums import Sums

FIRST = 1000
Judge = Callable[[np.random.Generator, int], Verdict]


def drawn(rng: np.random.Generator, p: Any) -> Verdict:
    """The verdict on exactly calibrated probabilities (n, K)."""
    labels = (p.cumsum(axis=1) > rng.random((len(p), 1))).argmax(axis=1)
    return judge(p, labels, outputs="probabilities")


def sharp(rng: np.random.Generator, n: int) -> Verdict:
    return drawn(rng, rng.dirichlet(np.full(10, 0.05), n))


def soft(rng: np.random.Generator, n: int) -> Verdict:
    return drawn(rng, rng.dirichlet(np.full(3, 1.0), n))


def binary(rng: np.random.Generator, n: int) -> Verdict:
    p = rng.beta(0.5, 0.8, n)
    return drawn(rng, np.stack([1 - p, p], axis=1))


def live(rng: np.random.Generator, n: int) -> Verdict:
    c = 1 - 0.75 * rng.beta(1, 4, n)
    return judge_estimates(estimate(Sums.served(c) + Sums.labelled(c, rng.random(n) < c)))


def asked(found: Verdict) -> int:
    """The number of samples that a verdict asks for; 0 where it asks for none."""
    number = re.search(r"About ([\d,]+) ", " ".join(found.do))
    return int(number[1].replace(",", "")) if number else 0


@pytest.mark.parametrize("kind", sized([soft, binary, live], [sharp, soft, binary, live]))
def test_what_a_verdict_asks_for_is_enough_and_at_most_twice_what_is(kind: Judge) -> None:
    streams = sized(24, 200)
    rng = np.random.default_rng(7)
    numbers = [n for _ in range(streams) if (n := asked(kind(rng, FIRST)))]
    assert len(numbers) > 0.8 * streams
    enough = np.mean([kind(rng, n).level == "calibrated" for n in numbers])
    too_few = np.mean([kind(rng, max(n // 2 - 1, 1)).level == "calibrated" for n in numbers])
    # By chance 24 streams show .75 of a true .8 less two standard errors.
    assert enough >= 0.75 - (0 if streams == 200 else 0.17), (enough, sorted(numbers)[len(numbers) // 2])
    assert too_few < 0.75, (too_few, sorted(numbers)[len(numbers) // 2])
