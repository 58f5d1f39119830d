"""How many labels it takes to notice that a contract is broken, and which share of predictions to label."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calib_serve.artifact import Clause, Contract
from calib_serve.errors import InputError
from calib_serve.judgement import Evidence, share_bets
from calib_serve.metrics.tails import binomial_at_most
from calib_serve.names import as_duration
from calib_serve.watch.policy import LEAST_CHANCE

__all__ = ["ClausePlan", "fixed_labels", "labels_until_broken", "plan_contract"]

ALPHA = 0.05
"""The chance that a promise which is kept is ever said to be broken."""

_DAY = 86_400.0
_MOST = 2_000_000  # labels that are drawn of a stream
_WINDOW = 0.04  # of the number, in which the power of a test may fall back
_TRIED = 1000
_BLOCK = 256  # labels fed at once, at first


@dataclass(frozen=True)
class ClausePlan:
    """What it takes to say that an act clause is broken, ``breach`` below its promise, with ``power``.

    ``labels`` of acted predictions, after so many of which the served test has said it in the share ``power``
    of cases, and ``median``; ``fixed``: those of a binomial test that is looked at once. ``per_day``: so many
    labels of acted predictions a day say it ``within`` seconds. ``all_per_day``: of any predictions, and
    ``rate``: which share of them, where it is known how many are acted on and predicted; NaN where not.
    """

    clause: Clause
    breach: float
    power: float
    within: float
    labels: float
    median: float
    fixed: int
    per_day: float
    all_per_day: float = math.nan
    rate: float = math.nan

    def says(self) -> list[str]:
        """In sentences."""
        said = [
            f"{self.clause.name}: {self.labels:,.0f} labels of predictions acted on say that it is broken, "
            f"{100 * self.breach:.10g} points below {100 * self.clause.promise:.10g} %, in "
            f"{100 * self.power:g} % of cases, and {self.median:,.0f} in half of them.",
            f"A binomial test that is looked at once, after a number fixed beforehand, needs {self.fixed:,}.",
            f"Within {as_duration(self.within)}: {math.ceil(self.per_day):,} labels a day of predictions "
            "acted on, beside the time that labels take to come.",
        ]
        if not math.isnan(self.all_per_day):
            asked = math.ceil(self.all_per_day)
            said.append(
                f"Where labels are asked for with one chance, whatever the confidence: {asked:,} a day."
            )
        if self.rate > 1:
            said.append("There are not so many predictions: allow more time, or plan for a larger breach.")
        elif not math.isnan(self.rate):
            said.append(f"That is the share {self.rate:.3g} of predictions: --label-budget {_up(self.rate)}")
        return said

    def as_dict(self) -> dict[str, Any]:
        """For JSON; null where not known."""
        told = {name: value for name, value in asdict(self).items() if name != "clause"}
        return {
            "clause": self.clause.name,
            **{k: None if math.isnan(value) else value for k, value in told.items()},
        }


def plan_contract(
    contract: Contract,
    *,
    breach: float,
    within: float,
    power: float = 0.9,
    kept: int = 10_000,
    acted: Mapping[str, float] | None = None,
    predictions_per_day: float | None = None,
    streams: int = 200,
    seed: int = 0,
) -> list[ClausePlan]:
    """For each act clause, the labels it takes to notice a breach of ``breach``, a fraction, in ``within`` s.

    ``kept``: labels of a kept promise that came before. ``acted``: by a clause's name, the share of all
    predictions that is acted on and falls under it. ``streams`` are drawn of each, by ``seed``. Raises
    InputError for options that cannot be right, and where no clause says what may be acted on.
    """
    for name, value in (("within", within), ("predictions a day", predictions_per_day)):
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{name} must be above 0, got {value:g}")
    if not contract.decides:
        raise InputError("only act clauses are planned, and the contract has none")
    clauses = [one for one in contract.clauses if one.kind == "act"]
    shares = {one.name: (acted or {}).get(one.name, math.nan) for one in clauses}
    if wrong := [name for name, share in shares.items() if not (math.isnan(share) or 0 < share <= 1)]:
        raise InputError(
            f"the share of {wrong[0]} that is acted on must lie in (0, 1], got {shares[wrong[0]]}"
        )
    how = {"kept": kept, "streams": streams, "seed": seed}
    needed = {
        promise: labels_until_broken(promise, breach, power=(0.5, power), **how)
        for promise in sorted({one.promise for one in clauses})
    }
    found = []
    for one in clauses:
        median, labels = needed[one.promise]
        per_day = labels / (within / _DAY)
        all_per_day = per_day / shares[one.name]
        found.append(
            ClausePlan(
                one,
                breach,
                power,
                within,
                labels,
                median,
                fixed_labels(one.promise, breach, power=power),
                per_day,
                all_per_day,
                math.nan if predictions_per_day is None else all_per_day / predictions_per_day,
            )
        )
    return found


def labels_until_broken(
    promise: float,
    breach: float,
    *,
    power: Sequence[float] = (0.9,),
    kept: int = 10_000,
    streams: int = 200,
    seed: int = 0,
) -> list[float]:
    """After how many labels the served test says "broken" in shares ``power`` of cases, by simulation.

    Labels are right with the probability ``promise`` until ``kept`` of them, then ``breach`` below. Cases in
    which it is said before the breach, at most 5 %, are left out.
    """
    _check(promise, breach, power)
    if kept < 0 or streams < 1:
        raise InputError(f"kept labels must be 0 or more and streams 1 or more, got {kept} and {streams}")
    rng = np.random.default_rng(seed)
    found: list[int] = []
    while len(found) < streams:
        start = _fed(Evidence.none(), rng.random(kept) >= promise, promise)
        if not _broken(start):
            found.append(_stop(start, rng, promise, breach))
    return [float(np.quantile(found, share, method="higher")) for share in power]


def _stop(evidence: Evidence, rng: np.random.Generator, promise: float, breach: float) -> int:
    """The label after which it is said."""
    done, block = 0, _BLOCK
    while done < _MOST:
        wrong = rng.random(block) >= promise - breach
        after = _fed(evidence, wrong, promise)
        if _broken(after):
            low, high = 0, block
            while high - low > 1:  # the peak only rises
                middle = (low + high) // 2
                low, high = (
                    (low, middle) if _broken(_fed(evidence, wrong[:middle], promise)) else (middle, high)
                )
            return done + high
        evidence, done, block = after, done + block, min(2 * block, 4096)
    raise InputError(
        f"a breach of {100 * breach:g} points is not noticed within {_MOST:,} labels; plan for a larger one"
    )


def _fed(evidence: Evidence, wrong: np.ndarray[Any, Any], promise: float) -> Evidence:
    """As the watch feeds it."""
    return evidence.after(*share_bets(~wrong, promise))


def _broken(evidence: Evidence) -> bool:
    return evidence.peak >= -math.log(ALPHA)


def fixed_labels(promise: float, breach: float, *, power: float = 0.9, alpha: float = ALPHA) -> int:
    """The labels of a binomial test at level ``alpha`` that finds the breach with ``power``, looked at once.

    The smallest number at which the exact test has that power; of ten thousands, one that is hardly larger.

    >>> fixed_labels(0.5, 0.5)  # none right of 5, as (1 / 2)^5 < 0.05
    5
    """
    _check(promise, breach, (power,))
    n = 1
    while _power(n, promise, breach, alpha) < power:
        n = math.ceil(n * 1.2)
        if n > _MOST:
            raise InputError(f"a breach of {100 * breach:g} points takes more than {_MOST:,} labels to find")
    low, high = max(int(n / 1.45), 1), n
    while high - low > max(_WINDOW * high, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, promise, breach, alpha) >= power else (middle, high)
    # The power is not monotone: it falls back a little wherever one more right label is allowed.
    first = max(int(low * (1 - _WINDOW)), 1)
    step = max((high - first) // _TRIED, 1)
    tried = range(first, high + step, step)
    return next((m for m in tried if _power(m, promise, breach, alpha) >= power), high)


def _power(n: int, promise: float, breach: float, alpha: float) -> float:
    """P(rejected) at ``promise - breach``: at most so many are right that this has a chance of ``alpha``."""
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if binomial_at_most(middle, n, promise) <= alpha else (low, middle)
    return 0.0 if low < 0 else binomial_at_most(low, n, promise - breach)


def _check(promise: float, breach: float, power: Sequence[float]) -> None:
    if not 0 < promise < 1 or not 0 < breach <= promise:
        raise InputError(
            f"a breach lies between 0 and the promise of {100 * promise:g} %, got {100 * breach:g} points"
        )
    if any(not 0 < one < 1 for one in power):
        raise InputError(f"power must lie between 0 and 1, got {power}; 0.9 means 90 %")


def _up(rate: float) -> str:
    """Two digits, rounded up; at least what a policy may ask with."""
    rate = max(rate, LEAST_CHANCE)
    digits = 1 - math.floor(math.log10(rate))
    return f"{math.ceil(rate * 10**digits) / 10**digits:.{max(digits, 0)}f}"
