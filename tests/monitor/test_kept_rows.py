"""What is made of each version is renewed first where its sums changed, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from calib_serve.monitor import Kept
from calib_serve.receipts import Sums, Version

VERSIONS = [("m", str(v)) for v in range(40)]


class Slow:
    """A clock, and a ``make`` that takes so many seconds of it."""

    def __init__(self, takes: float) -> None:
        self.now, self.takes, self.made = 0.0, takes, list[Version]()

    def make(self, version: Version) -> float:
        self.now += self.takes
        self.made.append(version)
        return self.now


def sums(served: Callable[[int], int]) -> dict[Version, Sums]:
    return {version: Sums.served([0.5] * served(i)) for i, version in enumerate(VERSIONS)}


@pytest.mark.parametrize("takes", [0.001, 0.15, 3.0])
def test_a_version_whose_sums_changed_is_renewed_at_once_however_many_are_due(takes: float) -> None:
    slow = Slow(takes)
    kept = Kept(slow.make, clock=lambda: slow.now)
    for _ in range(len(VERSIONS)):
        kept.of(sums(lambda _: 1))
    slow.now += 20.0  # all of them have moved by time
    slow.made.clear()
    kept.of(sums(lambda i: 2 if i == 7 else 1))
    assert slow.made[0] == VERSIONS[7]


def test_one_that_only_moves_by_time_is_renewed_though_others_always_change() -> None:
    slow = Slow(0.15)
    kept = Kept(slow.make, clock=lambda: slow.now)
    for _ in range(len(VERSIONS)):
        kept.of(sums(lambda _: 1))
    slow.made.clear()
    for turn in range(200):
        slow.now += 1.0
        kept.of(sums(lambda i, more=turn + 2: 1 if i == 7 else more))
    assert slow.made.count(VERSIONS[7]) >= 2
