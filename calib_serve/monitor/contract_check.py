"""Whether a contract can be kept, by held-out samples, before it is served."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, Clause, Contract
from calib_serve.core.arrays import Floats, finite
from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import ContractOptions
from calib_serve.core.text import percent
from calib_serve.metrics import (
    Estimate,
    abstention,
    beta_below,
    beta_binomial_at_most,
    checked,
    effective_count,
    evaluate_probs,
    exact_interval,
    group_codes,
    quantile_of,
)
from calib_serve.receipts import DAY

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ContractKeywords


Found = Literal["can be kept", "cannot be kept", "not enough samples", "not checked"]
"""By the interval: it lies on the promise's good side, on its bad side, on both, or there is none."""

_ECE = 50  # samples below which an ECE says nothing


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
        content = read_whole(path, limit=1 << 20)
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
            return ClauseCheck(clause, "not checked", note=note)
        rows = np.ones(len(self.labels), np.bool_)
        if clause.segment and self.segments is not None:
            rows &= self.segments == clause.segment
        if clause.predicted is not None:
            rows &= self.predicted == clause.predicted
        at = np.flatnonzero(rows)
        if not len(at):
            note = "None of the samples falls under it."
            return ClauseCheck(clause, "not enough samples", note=note)
        if clause.kind == "coverage":
            return self._share(clause, self.confidence[at] >= clause.above, at, len(at))
        return self._act(clause, at) if clause.kind == "act" else self._calibration(clause, at)

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
            return ClauseCheck(clause, "not enough samples", len(at), **told)
        return self._share(clause, right[acted], acted, len(at), **told)

    def _share(
        self, clause: Clause, hits: NDArray[np.bool_], rows: NDArray[np.intp], samples: int, **told: Any
    ) -> ClauseCheck:
        """Check the share of ``hits`` among ``rows`` by its interval and Jeffreys' posterior."""
        codes, share = None if self.codes is None else self.codes[rows], float(hits.mean())
        n = effective_count(hits, codes)
        value = exact_interval(share * n, n, level=self.asked.level)
        window = None
        if self.asked.predictions_per_day is not None:
            window = self.asked.predictions_per_day * clause.per / DAY * len(rows) / len(self.labels)
        probability = _kept(share * n, n, clause.promise, window)
        found: Found = "not enough samples"
        if value.low >= clause.promise or value.high < clause.promise:
            found = "can be kept" if value.low >= clause.promise else "cannot be kept"
        return ClauseCheck(clause, found, samples, len(rows), value, probability, **told)

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
            return ClauseCheck(clause, "not enough samples", len(at), len(at), note=note)
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
    if window is None or window > 100_000:
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
    samples: int = 0
    counted: int = 0
    value: Estimate = Estimate(math.nan)  # noqa: RUF009 - it does not change
    probability: float = math.nan
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
        return {
            "clause": self.clause.name,
            "id": self.clause.id,
            "promise": self.clause.promise,
            "found": self.found,
            "samples": self.samples,
            "counted": self.counted,
            "value": self.value.as_dict(),
            "probability": finite(self.probability),
            "threshold": finite(self.threshold),
            "acted": finite(self.acted),
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
    if 0.001 <= probability <= 0.999:
        return f"of {probability:.3f}"
    return "above 0.999" if probability > 0.001 else "below 0.001"
