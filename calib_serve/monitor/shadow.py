"""An artifact that runs in the shadow of the served one: whether it is better, by a paired sequential test.

Receipts carry what the shadow said of the same input (``receipts.Shadow``), so one label counts for both.

For each label, d is how much better the log score of the shadow's confidence is than that of the served one,
each about its own prediction being right, with confidences cut off at 1 % and 99 %: a proper score, and
bounded. Where the two confidences are known, so is the most that |d| can be; a prediction where that is more
than one nat counts for one nat, so that no rare label decides alone, and bets may be as large as differences
of a usual size ask for. Of the scores tried on real recalibrations that gain 1 % of their NLL, this one
found most of them within 20,000 labels (``benchmarks/shadow.py``).

Three means are bet on (``MeanBets``), each statement with its own evidence, valid at every moment:

- ``gain``, of d: above 0 "better", below 0 "worse";
- ``margin``, of d + ``MARGIN`` times the served score: above 0, the shadow loses less than that share;
- ``right``, of right (shadow) - right (served) + ``LESS_RIGHT``: above 0, the shadow is less often right by
  fewer points than that; below 0, by more.

"Better" and "no worse" need the accuracy as well, so both bets must be won, each at ``ALPHA``; "worse" has
two ways, each at half of that. A label that was asked for with the chance pi counts 1 / pi, scaled by the
smallest chance seen before it, and at most 1; a group's labels count as one, their mean.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import Floats, finite
from calib_serve.core.errors import InputError
from calib_serve.core.text import signed_points
from calib_serve.ledger import LabelRecord, Ledger, note_recovery, read_kept
from calib_serve.monitor.bets import ALPHA, MeanBets, units
from calib_serve.monitor.state_format import FORMAT, check_state
from calib_serve.receipts import Version

log = logging.getLogger(__name__)


MARGIN = 0.01
"""The share of the served log score that a shadow which is "no worse" may lose."""

LESS_RIGHT = 0.005
"""By how much a shadow that is "better" or "no worse" may be less accurate."""

_CUT = 0.01  # confidences nearer to 0 or 1 count as this near
_MOST_SCORE = -math.log(_CUT)
_KIND = "shadow"
_NUMBERS = ("labels", "weight", "gained", "righter", "units", "unit_weight", "chance")
_BETS = ("gain", "margin", "right")
Verdict = Literal["better", "no worse", "worse", "unknown"]


@dataclass(frozen=True, eq=False)
class ShadowTest:
    """The state of a shadow's test.

    ``weight``: the sum of their weights, ``gained`` and ``righter`` the weighted sums of d and of the
    difference in being right; ``chance``: the smallest of being asked for that was seen; ``since``: the time
    of the first prediction.
    """

    labels: float = 0.0
    weight: float = 0.0
    gained: float = 0.0
    righter: float = 0.0
    units: float = 0.0
    unit_weight: float = 0.0
    chance: float = 1.0
    since: float = math.nan
    gain: MeanBets = MeanBets()  # noqa: RUF009 - frozen
    margin: MeanBets = MeanBets()  # noqa: RUF009
    right: MeanBets = MeanBets()  # noqa: RUF009

    def fed(self, rows: Sequence[LabelRecord]) -> ShadowTest:
        """The test after these labels; predictions without a shadow are skipped."""
        told = np.array(
            [
                (row.confidence, row.correct, *row.shadow[:3], row.inclusion)
                for row in rows
                if row.shadow is not None
            ],
            np.float64,
        ).reshape(-1, 6)
        if not len(told):
            return self
        served, right, shadow, shadow_right, same, chance = told.T
        # Labels that are asked for less often than 1 % count like these.
        before = np.minimum.accumulate(np.concatenate([[self.chance], chance]).clip(min=0.01))
        weight = np.minimum(1.0, before[:-1] / chance)
        served_score = _score(served, right)
        d = (served_score - _score(shadow, shadow_right)) * _limit(served, shadow, same=same > 0)
        differ = shadow_right - right
        groups = np.array([row.group for row in rows if row.shadow is not None], np.int64)

        def weighed(numbers: Floats) -> Floats:
            means, bounds = units(numbers, weight, groups)
            return (means * bounds).clip(-1, 1)  # sums round

        weights = weighed(np.ones(len(d)))
        return ShadowTest(
            self.labels + len(told),
            self.weight + float(weight.sum()),
            self.gained + float(weight @ d),
            self.righter + float(weight @ differ),
            self.units + len(weights),
            self.unit_weight + float(weights.sum()),
            float(before[-1]),
            rows[0].time if math.isnan(self.since) else self.since,
            self.gain.seen(weighed(d)),
            self.margin.seen(weighed((d + MARGIN * served_score) / (1 + MARGIN * _MOST_SCORE))),
            self.right.seen(weighed((differ + LESS_RIGHT) / (1 + LESS_RIGHT))),
        )

    @property
    def log_evidence(self) -> dict[str, float]:
        """The natural log of the evidence of each statement, by its name."""
        return {
            "better": self.gain.above(),
            "worse": self.gain.below(),
            "no worse": self.margin.above(),
            "no less accurate": self.right.above(),
            "less accurate": self.right.below(),
        }

    @property
    def verdict(self) -> Verdict:
        """The strongest verdict shown so far."""
        found, enough = self.log_evidence, -math.log(ALPHA)
        if max(found["worse"], found["less accurate"]) >= enough + math.log(2):
            return "worse"
        if found["no less accurate"] < enough:
            return "unknown"
        if found["better"] >= enough:
            return "better"
        return "no worse" if found["no worse"] >= enough else "unknown"

    def state(self, tag: str) -> ShadowState:
        """The state of the shadow as the test knows it by now."""
        low, high = self.gain.interval()
        # Bets are on weighted numbers, whose mean weight takes them back to a prediction.
        scale = self.unit_weight / self.units if self.units else 1.0
        return ShadowState(
            tag=tag,
            labels=self.labels,
            verdict=self.verdict,
            gain=self.gained / self.weight if self.weight else math.nan,
            low=max(low / scale, -1.0),
            high=min(high / scale, 1.0),
            accuracy_difference=self.righter / self.weight if self.weight else math.nan,
            log_evidence=self.log_evidence,
            since=self.since,
        )

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "format": FORMAT,
            **{name: getattr(self, name) for name in _NUMBERS},
            "since": finite(self.since),
            **{name: getattr(self, name).flat() for name in _BETS},
        }

    @classmethod
    def of(cls, told: Any) -> ShadowTest:
        """Rebuild a test from ``as_dict``; InputError for anything else, or an unknown format.

        LedgerError where a newer program wrote it, which goes on with it after an upgrade.
        """
        try:
            check_state(told, "a shadow's test")
            numbers = {name: float(told[name]) for name in _NUMBERS}
            bets = {name: MeanBets.from_flat(told[name]) for name in _BETS}
            since = math.nan if told["since"] is None else float(told["since"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the state of a shadow's test is damaged: {error}") from error
        if not all(map(math.isfinite, numbers.values())) or not 0 < numbers["chance"] <= 1:
            raise InputError("the state of a shadow's test is damaged: its sums are no numbers")
        return cls(since=since, **{**numbers, **bets})  # type: ignore[arg-type]


def _score(confidence: Floats, right: Floats) -> Floats:
    """The log score, in nats: less is better."""
    c = confidence.clip(_CUT, 1 - _CUT)
    return np.asarray(-np.where(right > 0, np.log(c), np.log1p(-c)), np.float64)


def _limit(served: Floats, shadow: Floats, *, same: NDArray[np.bool_]) -> Floats:
    """Factors that keep |d| within a nat under any outcome, and are known before it.

    Of the same prediction either both are right or both wrong; of two, at most one is right.
    """
    a, b = served.clip(_CUT, 1 - _CUT), shadow.clip(_CUT, 1 - _CUT)
    right, wrong = np.abs(np.log(a / b)), np.abs(np.log1p(-a) - np.log1p(-b))
    one = np.maximum(np.abs(np.log(a) - np.log1p(-b)), np.abs(np.log1p(-a) - np.log(b)))
    most = np.maximum(np.where(same, right, one), wrong)
    return np.asarray(1 / np.maximum(most, 1.0), np.float64)


@dataclass(frozen=True)
class ShadowState:
    """The verdict on a shadow, from labels.

    Args:
        tag: Tag of the shadow (``shadow_tag``), in hex.
        labels: Number of labels.
        verdict: "better", "no worse", "worse" or "unknown".
        gain: How much better the log score of its confidence is than that of the served one, in nats a
            prediction, in mean (``ShadowTest``); NaN without labels.
        low: Lower bound of the gain; both hold at all times at once, with a chance of 95 %.
        high: Upper bound of the gain.
        accuracy_difference: Share of right predictions less that of the served one; NaN without labels.
        log_evidence: Natural log of the evidence of each statement.
        since: Time of the first prediction, in seconds since 1970.
    """

    tag: str
    labels: float
    verdict: Verdict
    gain: float
    low: float
    high: float
    accuracy_difference: float
    log_evidence: Mapping[str, float]
    since: float

    def says(self) -> str:
        """The verdict in a sentence."""
        if not self.labels:
            return f"Shadow {self.tag}: no label yet."
        words = {
            "better": "is better",
            "no worse": "is no worse",
            "worse": "is worse",
            "unknown": "is not yet known to be better, no worse or worse",
        }
        return (
            f"Shadow {self.tag} {words[self.verdict]} after {self.labels:,.0f} labels: its log score is"
            f" {self.gain:.5f} nats better ({self.low:.5f} to {self.high:.5f}), its accuracy"
            f" {signed_points(self.accuracy_difference)} points."
        )


class ShadowFollower:
    """Follows a ``DriftFeed``: each label counts once in the test of the shadow that its receipt names."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def feed(self, version: Version, rows: Sequence[LabelRecord], *, now: float) -> None:
        """Count labels in the order of their predictions, see ``feed.Follower``."""
        by_tag: dict[str, list[LabelRecord]] = {}
        for row in rows:
            if row.shadow is not None:
                by_tag.setdefault(row.shadow.tag, []).append(row)
        if not by_tag:
            return
        tests, damaged = read_kept(self._ledger, _KIND, version, _read)
        for tag, error in damaged.items():
            note_recovery(self._ledger, version, f"the test of shadow {tag}", error, now=now)
        for tag, of_tag in by_tag.items():
            tests[tag] = tests.pop(tag, ShadowTest()).fed(of_tag)  # the latest one is the last
            told = json.dumps(tests[tag].as_dict()).encode()
            self._ledger.followers.keep(_KIND, version, tag, told, now=now)
        # The tests of eight shadows are kept: those that had a label last.
        for tag in list(tests)[:-8]:
            log.warning("%s %s: the test of shadow %s is dropped, there are others", *version, tag)
            self._ledger.followers.discard(_KIND, version, tag)


def shadow_states(ledger: Ledger, version: Version) -> list[ShadowState]:
    """The state of each shadow of a version, by tag.

    Args:
        ledger: Ledger that keeps their tests.
        version: Model and version.

    Raises:
        LedgerError: Where the ledger cannot be read.
    """
    tests, damaged = read_kept(ledger, _KIND, version, _read)
    for tag, error in damaged.items():
        log.warning("%s %s: the test of shadow %s begins anew with the next labels: %s", *version, tag, error)
    return [test.state(tag) for tag, test in sorted(tests.items())]


def _read(value: bytes) -> ShadowTest:
    return ShadowTest.of(json.loads(value))
