"""How many labels reveal that a contract is broken, and how soon, before it is served."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calib_serve.artifact import Clause, Contract
from calib_serve.core.errors import InputError
from calib_serve.core.names import as_duration
from calib_serve.core.options.base import changed, check, check_positive
from calib_serve.core.options.evaluate import PlanOptions
from calib_serve.metrics import binomial_at_most
from calib_serve.monitor.bets import Evidence, share_bets
from calib_serve.monitor.clause_evidence import ALPHA
from calib_serve.receipts import DAY, LEAST_CHANCE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import PlanKeywords


_MOST = 2_000_000  # labels that are drawn of a stream
_STREAMS = 200  # streams that are drawn of a breach
_WINDOW = 0.04  # of the number, in which the power of a test may fall back


@dataclass(frozen=True)
class ClausePlan:
    """The labels needed to notice an act clause ``breach`` below its promise, with ``power``.

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
        """The plan in sentences."""
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


def plan_contract(
    contract: Contract,
    options: PlanOptions | None = None,
    *,
    breach: float,
    within: float,
    acted: Mapping[str, float] | None = None,
    streams: int = _STREAMS,
    **keywords: Unpack[PlanKeywords],
) -> list[ClausePlan]:
    """Plan, by act clause, the labels that notice a breach in time.

    Args:
        contract: What is promised.
        options: A ``PlanOptions``; keywords replace its fields.
        breach: By how much the share of right acts falls, a fraction.
        within: Seconds in which that is to be noticed.
        acted: By a clause's name, the share of all predictions that is acted on and falls under it.
        streams: Streams of labels that are simulated for each promise.
        **keywords: Fields of ``PlanOptions``: ``kept``, ``power``, ``predictions_per_day``, ``seed``.

    Raises:
        InputError: For options that cannot be right, and where no clause says what may be acted on.
    """
    asked = changed(options or PlanOptions(), keywords, plan_contract)
    check_positive("within", within)
    if not contract.has_acts:
        raise InputError("only act clauses are planned, and the contract has none")
    clauses = [one for one in contract.clauses if one.kind == "act"]
    shares = {one.name: (acted or {}).get(one.name, math.nan) for one in clauses}
    if strange := sorted(set(acted or ()) - set(shares)):
        raise InputError(f"there is no act clause {strange[0]}, there are {', '.join(shares)}")
    check(
        asked.predictions_per_day is None or not all(map(math.isnan, shares.values())),
        "predictions_per_day",
        "needs a share that is acted on, above 0: acted= (--acted-share, or DATA)",
    )
    if wrong := [name for name, share in shares.items() if not (math.isnan(share) or 0 < share <= 1)]:
        raise InputError(
            f"the share of {wrong[0]} that is acted on must lie in (0, 1], got {shares[wrong[0]]}"
        )
    how = {"kept": asked.kept, "streams": streams, "seed": asked.seed}
    needed = {
        promise: labels_until_broken(promise, breach, power=(0.5, asked.power), **how)
        for promise in sorted({one.promise for one in clauses})
    }
    found = []
    for one in clauses:
        median, labels = needed[one.promise]
        per_day = labels / (within / DAY)
        all_per_day = per_day / shares[one.name]
        found.append(
            ClausePlan(
                one,
                breach,
                asked.power,
                within,
                labels,
                median,
                fixed_labels(one.promise, breach, power=asked.power),
                per_day,
                all_per_day,
                all_per_day / (asked.predictions_per_day or math.nan),
            )
        )
    return found


def labels_until_broken(
    promise: float,
    breach: float,
    *,
    power: Sequence[float] = (PlanOptions.power,),
    kept: int = PlanOptions.kept,
    streams: int = _STREAMS,
    seed: int = PlanOptions.seed,
) -> list[float]:
    """Simulate the number of labels by which the served test says "broken" in shares ``power`` of cases.

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
        # What is said before the breach is a false alarm, and no sign of power.
        if not _broken(start):
            found.append(_stop(start, rng, promise, breach))
    return [float(np.quantile(found, share, method="higher")) for share in power]


def _stop(evidence: Evidence, rng: np.random.Generator, promise: float, breach: float) -> int:
    """The number of labels after which a stream is said to be broken."""
    done, block = 0, 256  # labels fed at once, at first
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
    """Feed labels as the watch does."""
    return evidence.after(*share_bets(~wrong, promise))


def _broken(evidence: Evidence) -> bool:
    return evidence.peak >= -math.log(ALPHA)


def fixed_labels(
    promise: float, breach: float, *, power: float = PlanOptions.power, alpha: float = ALPHA
) -> int:
    """The labels of a binomial test at level ``alpha``, looked at once, with ``power`` at the breach.

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
    step = max((high - first) // 1000, 1)
    tried = range(first, high + step, step)
    return next((m for m in tried if _power(m, promise, breach, alpha) >= power), high)


def _power(n: int, promise: float, breach: float, alpha: float) -> float:
    """P(rejected) at ``promise - breach``, by the test that rejects a kept promise with ``alpha``."""
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
    """Round a rate up to two digits; at least to a policy's smallest chance."""
    rate = max(rate, LEAST_CHANCE)
    digits = 1 - math.floor(math.log10(rate))
    return f"{math.ceil(rate * 10**digits) / 10**digits:.{max(digits, 0)}f}"
