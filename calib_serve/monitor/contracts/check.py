"""Whether a contract can be kept, by held-out samples, before it is served."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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
    checked,
    effective_count,
    exact_interval,
    group_codes,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ContractKeywords


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
    options: ContractOptions | None = None,
    *,
    groups: ArrayLike | None = None,
    **keywords: Unpack[ContractKeywords],
) -> ContractCheck:
    """Say whether each clause can be kept, by samples that are drawn as those that are served.

    Without ``segments`` (n,) clauses of segments are not checked. Intervals are exact (Clopper and Pearson
    1934). Thresholds are those of ``calib_serve.metrics.abstention``, at ``level``.

    Args:
        contract: What is promised.
        probs: Calibrated probabilities (n, K), which must not have been fitted on these samples.
        labels: Class ids (n,).
        options: A ``ContractOptions``; keywords replace its fields.
        groups: Which samples (n,) belong together.
        **keywords: Fields of ``ContractOptions``: ``level``, ``seed``, ``segments``.

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
    samples = _Samples(
        np.asarray(p, np.float64), y, _segments(asked.segments, len(y)), group_codes(groups, len(y)), contract
    )
    clauses = tuple(_check(one, samples, asked) for one in contract.clauses)
    return ContractCheck(len(y), asked.level, clauses)


def _segments(segments: ArrayLike | None, n: int) -> NDArray[np.object_] | None:
    if segments is None:
        return None
    given = np.asarray(segments)
    if given.shape != (n,) or given.dtype.kind not in "Uiu":
        raise InputError(f"segments must be ({n},) texts, one a sample, got {given.shape} {given.dtype}")
    return np.array([str(one) for one in given.tolist()], object)


class _Samples:
    """Held-out samples (n, K), and which of them are right and acted on."""

    def __init__(
        self,
        probs: Floats,
        labels: NDArray[np.intp],
        segments: NDArray[np.object_] | None,
        codes: NDArray[np.intp] | None,
        contract: Contract,
    ) -> None:
        self.probs, self.labels, self.segments, self.codes = probs, labels, segments, codes
        self.predicted = probs.argmax(axis=1)
        self.right = self.predicted == labels
        # Shares that were rounded may exceed 1 by a hair.
        confidence = np.minimum(probs[np.arange(len(probs)), self.predicted], 1.0)
        self.acted = contract.acts(confidence, self.predicted, "" if segments is None else segments.tolist())
        self.left_out = "" if segments is not None else ", ".join(contract.segments)

    def under(self, clause: Clause) -> NDArray[np.intp]:
        """The rows under a clause."""
        rows = np.ones(len(self.labels), np.bool_)
        if clause.segment:
            rows &= self.segments == clause.segment
        if clause.predicted is not None:
            rows &= self.predicted == clause.predicted
        return np.flatnonzero(rows)


def _check(clause: Clause, samples: _Samples, asked: ContractOptions) -> ClauseCheck:
    if not clause.is_watched:
        return ClauseCheck(clause, "not checked", note="It is of an earlier version.")
    if clause.segment and samples.segments is None:
        return ClauseCheck(clause, "not checked", note="Of which segment the samples are was not given.")
    at = samples.under(clause)
    if not len(at):
        return ClauseCheck(clause, "not enough samples", note="None of the samples falls under it.")
    threshold, answered = _least(clause, samples, at, asked)
    note = ""
    if samples.left_out:
        note = (
            f"Measured as if no sample were of the segments {samples.left_out}, which act from other "
            "thresholds."
        )
    acted = at[samples.acted[at]]
    told: dict[str, Any] = {"samples": len(at), "threshold": threshold, "acted": answered, "note": note}
    if not len(acted):
        told["note"] = f"None of the samples would be acted on. {note}"
        return ClauseCheck(clause, "not enough samples", **told)
    right = samples.right[acted]
    n = effective_count(right, None if samples.codes is None else samples.codes[acted])
    value = exact_interval(float(right.mean()) * n, n, level=asked.level)
    found: Found = "not enough samples"
    if value.low >= clause.promise or value.high < clause.promise:
        found = "can be kept" if value.low >= clause.promise else "cannot be kept"
    return ClauseCheck(clause, found, counted=len(acted), value=value, **told)


def _least(
    clause: Clause, samples: _Samples, at: NDArray[np.intp], asked: ContractOptions
) -> tuple[float, float]:
    """Find the smallest threshold with the guarantee, and the share acted on; NaN if there is none."""
    groups = None if samples.codes is None else samples.codes[at]
    if groups is not None and len(np.unique(groups)) < 2:
        return math.nan, math.nan
    found = abstention(
        samples.probs[at],
        samples.labels[at],
        risk=1 - clause.promise,
        level=asked.level,
        groups=groups,
        seed=asked.seed,
    )
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
