"""Contracts before serving: whether one can be kept, and how many labels reveal that it is broken."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, Clause, Contract
from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole
from calib_serve.core.names import as_duration
from calib_serve.core.options.base import changed, check, check_positive
from calib_serve.core.options.evaluate import ContractOptions, PlanOptions
from calib_serve.core.text import percent
from calib_serve.metrics import (
    Estimate,
    abstention,
    beta_below,
    beta_binomial_at_most,
    binomial_at_most,
    checked,
    design_effect,
    evaluate_probs,
    exact_interval,
    group_codes,
    quantile_of,
)
from calib_serve.monitor.bets import Evidence, share_bets
from calib_serve.receipts import LEAST_CHANCE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ContractKeywords, PlanKeywords

__all__ = [
    "ClauseCheck",
    "ClausePlan",
    "ContractCheck",
    "Found",
    "check_contract",
    "fixed_labels",
    "labels_until_broken",
    "plan_contract",
    "read_contract",
]

ALPHA = 0.05
"""The chance that a promise which is kept is ever said to be broken."""

_EXACT = 100_000  # predictions of a window, beyond which their chance adds nothing to what is not known
_LARGEST = 1 << 20  # bytes of a contract
_ECE = 50  # samples below which an ECE says nothing
_NOTHING = Estimate(math.nan)
_SURE = 0.001
_DAY = 86_400.0
_MOST = 2_000_000  # labels that are drawn of a stream
_STREAMS = 200  # streams that are drawn of a breach
_WINDOW = 0.04  # of the number, in which the power of a test may fall back
_TRIED = 1000
_BLOCK = 256  # labels fed at once, at first

Floats = NDArray[np.float64]


def read_contract(path: Path, artifact: Artifact | None = None) -> Contract:
    """Read the contract in a YAML file.

    Args:
        path: File of at most 1 MiB.
        artifact: Artifact whose class names it may use; None: classes are ids.

    Raises:
        InputError: Where the file cannot be read, or its classes are not the artifact's.
    """
    if artifact is not None and artifact.is_multilabel:
        raise InputError(
            "a contract is for one class a sample; this artifact is of labels, of which any number may be "
            "true"
        )
    try:
        content = read_whole(path, limit=_LARGEST)
        found = Contract.read(content, () if artifact is None else artifact.class_names)
    except OSError as error:
        more = ", and a contract is a page" if error.errno == errno.EFBIG else ""
        raise InputError(f"cannot read the contract {path}: {error.strerror or error}{more}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if artifact is not None:
        found.check_classes(artifact.classes)
    return found


def check_contract(
    contract: Contract,
    probs: ArrayLike,
    labels: ArrayLike,
    options: ContractOptions | None = None,
    *,
    groups: ArrayLike | None = None,
    **keywords: Unpack[ContractKeywords],
) -> ContractCheck:
    """Say whether each clause can be kept, by samples that are drawn as those that are served.

    Without ``segments`` (n,) clauses of segments are not checked. Intervals are exact (Clopper and Pearson
    1934), that of a calibration error is of ``replicates`` draws.

    The probability of an act or a coverage clause is by Jeffreys' posterior: of k right among n, the true
    share is Beta(k + 1/2, n - k + 1/2), and the probability is that of a share of at least the promise. With
    ``predictions_per_day``, it is that of the m predictions that one window will hold: the right ones among
    them are beta-binomial, and at least the promised share of m is right. Of a calibration, it is normal with
    the interval's own width. Thresholds are those of ``calib_serve.metrics.abstention``, at ``level``.

    Args:
        contract: What is promised.
        probs: Calibrated probabilities (n, K), which must not have been fitted on these samples.
        labels: Class ids (n,).
        options: A ``ContractOptions``; keywords replace its fields.
        groups: Which samples (n,) belong together.
        **keywords: Fields of ``ContractOptions``: ``level``, ``predictions_per_day``, ``replicates``,
            ``seed``, ``segments``.

    Raises:
        InputError: For arrays and options that cannot be right.

    >>> found = check_contract(
    ...     Contract((Clause("act", 0.9, above=0.8),)), [[0.9, 0.1], [0.6, 0.4]] * 100, [0, 1] * 100
    ... )
    >>> found.clauses[0].found, found.clauses[0].counted, found.clauses[0].value.value
    ('can be kept', 100, 1.0)
    """
    asked = changed(options or ContractOptions(), keywords, check_contract)
    p, y = checked(probs, labels)
    contract.check_classes(p.shape[1])
    named = _segments(asked.segments, len(y))
    samples = _Samples(
        np.asarray(p, np.float64),
        y,
        None if named is None else np.array(named, object),
        group_codes(groups, len(y)),
        contract=contract,
        asked=asked,
    )
    return ContractCheck(len(y), asked.level, tuple(samples.check(one) for one in contract.clauses))


def _segments(segments: ArrayLike | None, n: int) -> list[str] | None:
    if segments is None:
        return None
    given = np.asarray(segments)
    if given.shape != (n,) or given.dtype.kind not in "Uiu":
        raise InputError(f"segments must be ({n},) texts, one a sample, got {given.shape} {given.dtype}")
    return [str(one) for one in given.tolist()]


class _Samples:
    """Held-out samples, and the judgement of clauses on them."""

    def __init__(
        self,
        probs: Floats,
        labels: NDArray[np.intp],
        segments: NDArray[np.object_] | None,
        codes: NDArray[np.intp] | None,
        *,
        contract: Contract,
        asked: ContractOptions,
    ) -> None:
        self.probs, self.labels, self.segments, self.codes = probs, labels, segments, codes
        self.contract, self.asked = contract, asked
        self.predicted = probs.argmax(axis=1)
        # Shares that were rounded may exceed 1 by a hair.
        self.confidence = np.minimum(probs[np.arange(len(probs)), self.predicted], 1.0)
        of = "" if segments is None else [str(one) for one in segments]
        self.acted = contract.acts(self.confidence, self.predicted, of)

    def check(self, clause: Clause) -> ClauseCheck:
        if clause.segment and self.segments is None:
            note = "Of which segment the samples are was not given."
            return ClauseCheck(clause, "not checked", 0, 0, _NOTHING, math.nan, note=note)
        rows = np.ones(len(self.labels), np.bool_)
        if clause.segment and self.segments is not None:
            rows &= self.segments == clause.segment
        if clause.predicted is not None:
            rows &= self.predicted == clause.predicted
        at = np.flatnonzero(rows)
        if not len(at):
            note = "None of the samples falls under it."
            return ClauseCheck(clause, "not enough samples", 0, 0, _NOTHING, math.nan, note=note)
        judge = {"act": self._act, "calibration": self._calibration, "coverage": self._coverage}
        return judge[clause.kind](clause, at)

    def _act(self, clause: Clause, at: NDArray[np.intp]) -> ClauseCheck:
        right = self.predicted == self.labels
        acted = at[self.acted[at]]
        least = self._least(clause, at)
        told: dict[str, Any] = {"threshold": least[0], "acted": least[1], "note": ""}
        if self.segments is None and self.contract.segments:
            told["note"] = (
                "Measured as if no sample were of the segments "
                f"{', '.join(self.contract.segments)}, which act from other thresholds."
            )
        if not len(acted):
            told["note"] = "None of the samples would be acted on. " + told["note"]
            return ClauseCheck(clause, "not enough samples", len(at), 0, _NOTHING, math.nan, **told)
        return self._share(clause, right[acted], acted, len(at), **told)

    def _coverage(self, clause: Clause, at: NDArray[np.intp]) -> ClauseCheck:
        return self._share(clause, self.confidence[at] >= clause.above, at, len(at))

    def _share(
        self, clause: Clause, hits: NDArray[np.bool_], rows: NDArray[np.intp], samples: int, **told: Any
    ) -> ClauseCheck:
        """Check the share of ``hits`` among ``rows`` by its interval and Jeffreys' posterior."""
        n, share = self._worth(hits, rows), float(hits.mean())
        value = exact_interval(share * n, n, level=self.asked.level)
        window = None
        if self.asked.predictions_per_day is not None:
            window = self.asked.predictions_per_day * clause.per / _DAY * len(rows) / len(self.labels)
        probability = _kept(share * n, n, clause.promise, window)
        found: Found = "not enough samples"
        if value.low >= clause.promise or value.high < clause.promise:
            found = "can be kept" if value.low >= clause.promise else "cannot be kept"
        return ClauseCheck(clause, found, samples, len(rows), value, probability, **told)

    def _worth(self, hits: NDArray[np.bool_], rows: NDArray[np.intp]) -> float:
        """The number of independent samples that these are worth."""
        if self.codes is None:
            return float(len(hits))
        codes = np.unique(self.codes[rows], return_inverse=True)[1]
        groups = int(codes.max()) + 1
        # Where all are alike, or of one group, nothing tells how groups vary: each counts once.
        alike = groups == 1 or hits.all() or not hits.any()
        return float(groups) if alike else len(hits) / design_effect(hits.astype(np.float64), codes)

    def _least(self, clause: Clause, at: NDArray[np.intp]) -> tuple[float, float]:
        """Find the smallest threshold with the guarantee, and the share acted on; NaN if there is none."""
        groups = None if self.codes is None else self.codes[at]
        if groups is not None and len(np.unique(groups)) < 2:
            return math.nan, math.nan
        found = abstention(
            self.probs[at],
            self.labels[at],
            risk=1 - clause.promise,
            level=self.asked.level,
            groups=groups,
            seed=self.asked.seed,
        )
        return (found.threshold, found.answered) if math.isfinite(found.threshold) else (math.nan, math.nan)

    def _calibration(self, clause: Clause, at: NDArray[np.intp]) -> ClauseCheck:
        groups = None if self.codes is None else self.codes[at]
        if len(at) < _ECE or (groups is not None and len(np.unique(groups)) < 2):
            note = f"A calibration error needs {_ECE} samples or more, of several groups."
            return ClauseCheck(clause, "not enough samples", len(at), len(at), _NOTHING, math.nan, note=note)
        how = {name: getattr(self.asked, name) for name in ("level", "replicates", "seed")}
        ece = evaluate_probs(self.probs[at], self.labels[at], groups=groups, **how).ece
        centre = ece.value if math.isnan(ece.debiased) else max(ece.debiased, 0.0)
        value = Estimate(centre, ece.low, ece.high)
        found: Found = "not enough samples"
        if value.high <= clause.promise or value.low > clause.promise:
            found = "can be kept" if value.high <= clause.promise else "cannot be kept"
        probability = _normal(value, clause.promise, self.asked.level)
        return ClauseCheck(clause, found, len(at), len(at), value, probability)


def _kept(hits: float, n: float, promise: float, window: float | None) -> float:
    """P(share >= promise) of Beta(hits + 1/2, n - hits + 1/2), or of ``window`` draws by it."""
    a, b = hits + 0.5, n - hits + 0.5
    # Beyond, the draws of a window vary less than the share itself is known.
    if window is None or window > _EXACT:
        return 1 - beta_below(promise, a, b)
    m = max(round(window), 1)
    return 1 - beta_binomial_at_most(math.ceil(m * promise - 1e-9) - 1, m, a, b)


def _normal(value: Estimate, promise: float, level: float) -> float:
    """P(error <= promise), normal around the value, as wide as the interval on the promise's side."""
    end = value.high if promise >= value.value else value.low
    if math.isnan(end) or math.isnan(value.value):
        return math.nan
    width = abs(end - value.value) / quantile_of(level)
    if not width:
        return float(promise >= value.value)
    return NormalDist().cdf((promise - value.value) / width)


Found = Literal["can be kept", "cannot be kept", "not enough samples", "not checked"]
"""By the interval: it lies on the promise's good side, on its bad side, on both, or there is none."""


@dataclass(frozen=True)
class ClauseCheck:
    """The result of a clause on its ``samples``; ``counted``: the samples behind its ``value``.

    ``value``: the share of right ones among those acted on, the calibration error (debiased), or the share of
    sure ones, with its interval. ``probability`` that the promise is kept, NaN where nothing is known.
    ``threshold``: the smallest that keeps an act clause's promise with the guarantee, and the share ``acted``
    on from there; NaN where none does. ``note``: what to know of it.
    """

    clause: Clause
    found: Found
    samples: int
    counted: int
    value: Estimate
    probability: float
    threshold: float = math.nan
    acted: float = math.nan
    note: str = ""

    @property
    def line(self) -> str:
        """The YAML of the clause with the threshold that keeps it; "" without one."""
        if math.isnan(self.threshold):
            return ""
        return f"act: {{above: {self.threshold!r}, accuracy: {self.clause.promise!r}}}"

    def says(self, class_names: Sequence[str] = ()) -> list[str]:
        """The promise, the result, and the threshold that would keep it, in sentences."""
        said = [f"{self.clause.name}: {self.found}", self.clause.says(class_names)]
        if not math.isnan(self.value.value):
            said.append(self._measured())
        if self.note:
            said.append(self.note)
        if self.line:
            said.append(f"Kept with the guarantee, and {percent(self.acted)} acted on, by {self.line}")
        elif self.clause.kind == "act" and self.found != "not checked":
            said.append("No threshold keeps it with the guarantee on these samples.")
        return said

    def _measured(self) -> str:
        value, clause = self.value, self.clause
        ends = "" if math.isnan(value.low) else f" [{100 * value.low:.2f}, {100 * value.high:.2f}]"
        of = {
            "act": f"of {self.counted:,} acted on ({percent(self.counted / self.samples)}) are right",
            "calibration": f"is the error of {self.samples:,}",
            "coverage": f"of {self.samples:,} are as sure",
        }[clause.kind]
        chance = _chance(self.probability)
        kept = "" if math.isnan(self.probability) else f"; kept with a probability {chance}"
        return f"{100 * value.value:.2f} %{ends} {of}{kept}."

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON; null where unknown."""
        known = {
            name: None if math.isnan(number) else number
            for name, number in (
                ("probability", self.probability),
                ("threshold", self.threshold),
                ("acted", self.acted),
            )
        }
        return {
            "clause": self.clause.name,
            "id": self.clause.id,
            "promise": self.clause.promise,
            "found": self.found,
            "samples": self.samples,
            "counted": self.counted,
            "value": self.value.as_dict(),
            **known,
            "line": self.line,
            "note": self.note,
        }


@dataclass(frozen=True)
class ContractCheck:
    """The result of each clause of a contract on test samples.

    Args:
        samples: Number of samples.
        level: Coverage of the intervals, a fraction.
        clauses: Result of each.
    """

    samples: int
    level: float
    clauses: tuple[ClauseCheck, ...]

    @property
    def broken(self) -> bool:
        """Whether a clause cannot be kept."""
        return any(one.found == "cannot be kept" for one in self.clauses)

    @property
    def proven(self) -> bool:
        """Whether every clause can be kept."""
        return all(one.found == "can be kept" for one in self.clauses)

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "samples": self.samples,
            "level": self.level,
            "broken": self.broken,
            "proven": self.proven,
            "clauses": [one.as_dict() for one in self.clauses],
        }


def _chance(probability: float) -> str:
    """Write a probability for a person, never rounded to 0 or 1."""
    if _SURE <= probability <= 1 - _SURE:
        return f"of {probability:.3f}"
    return f"above {1 - _SURE}" if probability > _SURE else f"below {_SURE}"


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

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON; null where unknown."""
        told = {name: value for name, value in asdict(self).items() if name != "clause"}
        return {
            "clause": self.clause.name,
            **{k: None if math.isnan(value) else value for k, value in told.items()},
        }


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
        per_day = labels / (within / _DAY)
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
    step = max((high - first) // _TRIED, 1)
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
