"""Whether a contract can be kept, by held-out samples, before it is served."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact, Clause, Contract
from calib_serve.core.arrays import Floats, finite
from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole
from calib_serve.core.options.evaluate import ContractOptions
from calib_serve.core.text import percent
from calib_serve.metrics import (
    Estimate,
    abstention,
    checked,
    effective_count,
    exact_interval,
    group_codes,
)

Found = Literal["can be kept", "cannot be kept", "not enough samples", "not checked"]
"""By the interval: it lies on the promise's good side, on its bad side, on both, or there is none."""


def read_contract(path: Path, artifact: Artifact) -> Contract:
    """Read the contract of an artifact in a YAML file.

    Args:
        path: File of at most 1 MiB.
        artifact: Artifact whose class names it may use.

    Raises:
        InputError: Where the file cannot be read, or its classes are not the artifact's.
    """
    if artifact.is_multilabel:
        raise InputError(
            "a contract is for one class a sample; this artifact is of labels, of which any number may be "
            "true"
        )
    try:
        found = Contract.read(read_whole(path, limit=1 << 20), artifact.class_names)
    except OSError as error:
        more = ", and a contract is a page" if error.errno == errno.EFBIG else ""
        raise InputError(f"cannot read the contract {path}: {error.strerror or error}{more}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    found.check_classes(artifact.classes)
    return found


def check_contract(
    contract: Contract,
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    segments: ArrayLike | None = None,
    level: float = ContractOptions.level,
    seed: int = ContractOptions.seed,
) -> ContractCheck:
    """Say whether each clause can be kept, by samples that are drawn as those that are served.

    Intervals are exact (Clopper and Pearson 1934). Thresholds are those of
    ``calib_serve.metrics.abstention``.

    Args:
        contract: What is promised.
        probs: Calibrated probabilities (n, K), which must not have been fitted on these samples.
        labels: Class ids (n,).
        groups: Which samples (n,) belong together.
        segments: Segment of each (n,), as text; without, clauses of segments are not checked.
        level: Coverage of the intervals, and probability of the guarantee.
        seed: Seed by which one sample of each group is drawn.

    Raises:
        InputError: For arrays and options that cannot be right.

    >>> found = check_contract(
    ...     Contract((Clause(0.9, above=0.8),)), [[0.9, 0.1], [0.6, 0.4]] * 100, [0, 1] * 100
    ... )
    >>> found.clauses[0].found, found.clauses[0].counted, found.clauses[0].value.value
    ('can be kept', 100, 1.0)
    """
    options = ContractOptions(level=level, seed=seed, segments=segments)
    p, y = checked(probs, labels)
    contract.check_classes(p.shape[1])
    of = _segments(segments, len(y))
    predicted = p.argmax(axis=1)
    # Shares that were rounded may exceed 1 by a hair.
    acted = contract.acts(np.minimum(p.max(axis=1), 1.0), predicted, "" if of is None else of.tolist())
    samples = _Samples(np.asarray(p, np.float64), y, predicted == y, acted, group_codes(groups, len(y)))
    note, clauses = "", []
    if of is None and contract.segments:
        note = (
            f"Measured as if no sample were of the segments {', '.join(contract.segments)}, which act from "
            "other thresholds."
        )
    for clause in contract.clauses:
        if clause.segment and of is None:
            told = "Of which segment the samples are was not given."
            clauses.append(ClauseCheck(clause, "not checked", note=told))
            continue
        rows = np.ones(len(y), np.bool_) if clause.predicted is None else predicted == clause.predicted
        if clause.segment:
            rows &= of == clause.segment
        clauses.append(_check(clause, samples.part(rows), options, note))
    return ContractCheck(len(y), level, tuple(clauses))


def _segments(segments: ArrayLike | None, n: int) -> NDArray[np.object_] | None:
    if segments is None:
        return None
    given = np.asarray(segments)
    if given.shape != (n,) or given.dtype.kind not in "Uiu":
        raise InputError(f"segments must be ({n},) texts, one a sample, got {given.shape} {given.dtype}")
    return np.array([str(one) for one in given.tolist()], object)


class _Samples(NamedTuple):
    """Held-out samples: probabilities (n, K), class ids, right or not, acted on or not, and groups (n,)."""

    probs: Floats
    labels: NDArray[np.intp]
    right: NDArray[np.bool_]
    acted: NDArray[np.bool_]
    codes: NDArray[np.intp] | None

    def part(self, rows: NDArray[np.bool_]) -> _Samples:
        """The samples that ``rows`` (n,) says."""
        codes = None if self.codes is None else self.codes[rows]
        return _Samples(self.probs[rows], self.labels[rows], self.right[rows], self.acted[rows], codes)


def _check(clause: Clause, samples: _Samples, options: ContractOptions, note: str) -> ClauseCheck:
    """Check a clause on the samples that fall under it."""
    n = len(samples.labels)
    if not n:
        return ClauseCheck(clause, "not enough samples", note="None of the samples falls under it.")
    threshold, answered = _least(clause, samples, options)
    acted = samples.part(samples.acted)
    told = ClauseCheck(clause, "not enough samples", n, threshold=threshold, acted=answered, note=note)
    if not len(acted.right):
        return replace(told, note=f"None of the samples would be acted on. {note}")
    counted = effective_count(acted.right, acted.codes)
    value = exact_interval(float(acted.right.mean()) * counted, counted, level=options.level)
    told = replace(told, counted=len(acted.right), value=value)
    if value.low >= clause.promise:
        return replace(told, found="can be kept")
    return replace(told, found="cannot be kept") if value.high < clause.promise else told


def _least(clause: Clause, samples: _Samples, options: ContractOptions) -> tuple[float, float]:
    """Find the smallest threshold with the guarantee, and the share acted on; NaN if there is none."""
    groups = samples.codes
    if groups is not None and len(np.unique(groups)) < 2:
        return math.nan, math.nan
    risk, level, seed = 1 - clause.promise, options.level, options.seed
    found = abstention(samples.probs, samples.labels, risk=risk, level=level, groups=groups, seed=seed)
    return (found.threshold, found.answered) if math.isfinite(found.threshold) else (math.nan, math.nan)


@dataclass(frozen=True)
class ClauseCheck:
    """The result of a clause on its ``samples``; ``counted``: the samples behind its ``value``.

    ``value``: the share of right ones among those acted on, with its interval. ``threshold``: the smallest
    that keeps the promise with the guarantee, and the share ``acted`` on from there; NaN where none does.
    ``note``: what to know of it.
    """

    clause: Clause
    found: Found
    samples: int = 0
    counted: int = 0
    value: Estimate = Estimate(math.nan)  # noqa: RUF009 - it does not change
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
            share, low, high = (100 * end for end in (self.value.value, self.value.low, self.value.high))
            said.append(
                f"{share:.2f} % [{low:.2f}, {high:.2f}] of {self.counted:,} acted on "
                f"({percent(self.counted / self.samples)}) are right."
            )
        if self.note:
            said.append(self.note)
        if self.line:
            said.append(f"Kept with the guarantee, and {percent(self.acted)} acted on, by {self.line}")
        elif self.found != "not checked":
            said.append("No threshold keeps it with the guarantee on these samples.")
        return said

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON; null where unknown."""
        clause, value = self.clause, self.value.as_dict()
        numbers = {name: finite(number) for name, number in vars(self).items()}
        of = {"clause": clause.name, "id": clause.id, "promise": clause.promise, "value": value}
        return {**numbers, **of, "line": self.line}


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
