"""Contracts: the accuracy, calibration error and coverage that an artifact promises in production.

A contract is a small YAML file::

    contract: 1
    per: 30d
    act: {above: 0.90, accuracy: 0.98}
    calibration: {error: 0.03}
    coverage: {above: 0.90, at_least: 0.70}
    segments:
      de: {act: {above: 0.95, accuracy: 0.99}}
    classes:
      cat: {act: {above: 0.95, accuracy: 0.99}}

``act``: of the predictions that may be acted on, those of a confidence of at least ``above``, at least the
share ``accuracy`` is right. ``calibration``: the expected calibration error is at most ``error``.
``coverage``: at least the share ``at_least`` of predictions has a confidence of at least ``above``. ``per``:
the time over which a promise is settled. A segment or a predicted class may have clauses of its own; what is
acted on there meets the thresholds of all clauses that it falls under.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact.contract_text import (
    MOST_CLASSES,
    PROMISES,
    Scope,
    clause_facts,
    parse_contract,
    scopes_of,
    written,
)
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.names import as_duration, is_plain, shown

ClauseKind = Literal["act", "calibration", "coverage"]
"""What a clause promises: accuracy of predictions acted on, calibration error, share of confident ones."""

_MOST_CLAUSES = 64  # each has its own series
_LONGEST_NAME = 63  # characters of a segment's name, as in receipts
_SHORTEST_PER, _LONGEST_PER = 3600.0, 3650 * 86_400.0


@dataclass(frozen=True)
class Clause:
    """One promise: an accuracy or a share of at least a number, or an error of at most it.

    Args:
        kind: "act", "calibration" or "coverage".
        promise: Least accuracy, largest calibration error, or least share.
        above: Confidence from which predictions count; 0 for a calibration.
        per: Seconds over which it is settled; 30 days by default.
        segment: Segment that it is of; "" of all.
        predicted: Predicted class that it is of, where it is of no segment; None of all.
    """

    kind: ClauseKind
    promise: float
    above: float = 0.0
    per: float = 2_592_000.0
    segment: str = ""
    predicted: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(ClauseKind):
            raise InputError(f"a clause is one of {', '.join(PROMISES)}, got {shown(self.kind)}")
        for name in ("promise", "above", "per"):
            object.__setattr__(self, name, _number(getattr(self, name), f"{name} of {self.kind}"))
        if not 0 < self.promise < 1:
            raise InputError(
                f"{self.kind} promises {PROMISES[self.kind]} between 0 and 1, and not the ends: 0.98 means "
                f"98 %; got {self.promise:g}"
            )
        if not 0 <= self.above <= 1 or (self.kind == "calibration" and self.above):
            raise InputError(
                f"above of {self.kind} must lie in [0, 1], and a calibration has none; got {self.above:g}"
            )
        if not _SHORTEST_PER <= self.per <= _LONGEST_PER or self.per % 1:
            raise InputError(
                f"per of {self.kind} must be whole seconds from an hour to {as_duration(_LONGEST_PER)}, got "
                f"{self.per:g} s"
            )
        self._check_scope()

    def _check_scope(self) -> None:
        name, predicted = self.segment, self.predicted
        plain = isinstance(name, str) and is_plain(name) and not {"\t", "\n"} & set(name)
        if not plain or len(name) > _LONGEST_NAME:
            raise InputError(
                f"a segment is a text of 1 to {_LONGEST_NAME} characters without control characters, got "
                f"{shown(name)}"
            )
        if predicted is None:
            return
        if isinstance(predicted, bool) or not isinstance(predicted, (int, np.integer)) or predicted < 0:
            raise InputError(f"predicted is the id of a class, got {shown(predicted)}")
        object.__setattr__(self, "predicted", int(predicted))
        if predicted >= MOST_CLASSES or name:
            raise InputError(f"a clause is of a segment, or of a class below {MOST_CLASSES}, not of both")

    @property
    def name(self) -> str:
        """The clause's name for people, unique in a contract.

        >>> Clause("act", 0.98, above=0.9, segment="de").name
        'act, segment de'
        """
        where = f", segment {self.segment}" if self.segment else ""
        return self.kind + where + (f", class {self.predicted}" if self.predicted is not None else "")

    @property
    def id(self) -> str:
        """The clause's name and eight letters of a hash of its terms: a changed clause is another one."""
        # Sums of evidence are kept by this id: under other terms they would prove nothing.
        text = json.dumps([self.kind, self.promise, self.above, self.per, self.segment, self.predicted])
        return f"{self.name} #{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def is_scoped(self) -> bool:
        """Whether the clause is of a segment or a class, and not of all predictions."""
        return bool(self.segment) or self.predicted is not None

    def concerns(self, predicted: int, segment: str) -> bool:
        """Whether the clause is of predictions of a class in a segment.

        Args:
            predicted: Class id.
            segment: Name of the segment.
        """
        return (not self.segment or self.segment == segment) and self.predicted in (None, predicted)

    def says(self, class_names: Sequence[str] = ()) -> str:
        """The promise in a sentence.

        >>> Clause("act", 0.98, above=0.9).says()
        'Of predictions acted on (confidence 0.9 or more), 98 % or more are right, over 30d.'
        """
        of = "" if self.predicted is None else f" of class {_called(self.predicted, class_names)}"
        of += f" in segment {self.segment}" if self.segment else ""
        share, least = f"{100 * self.promise:.10g} %", f"{self.above:.10g}"
        if self.kind == "act":
            told = f"Of predictions{of} acted on (confidence {least} or more), {share} or more are right"
        elif self.kind == "calibration":
            told = f"The expected calibration error of predictions{of} is {share} or less"
        else:
            told = f"Of predictions{of}, {share} or more have a confidence of {least} or more"
        return f"{told}, over {as_duration(self.per)}."


@dataclass(frozen=True)
class Contract:
    r"""The clauses of a contract.

    Args:
        clauses: In their order.

    Raises:
        InputError: For none, or two of the same name.

    >>> contract = Contract.read("contract: 1\nact: {above: 0.9, accuracy: 0.98}")
    >>> contract.acts([0.85, 0.95], [0, 0]).tolist()
    [False, True]
    """

    clauses: tuple[Clause, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "clauses", tuple(self.clauses))
        names = [one.name for one in self.clauses]
        if not names:
            raise InputError(f"a contract promises something: give it one of {', '.join(PROMISES)}")
        if len(names) > _MOST_CLAUSES:
            raise InputError(
                f"a contract has {_MOST_CLAUSES} clauses at most, each with its own series; got {len(names)}"
            )
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"a contract says {shown(twice)} twice; leave one of them out")

    @classmethod
    def read(cls, text: str | bytes, class_names: Sequence[str] = ()) -> Contract:
        """Read a contract from a YAML document.

        Args:
            text: YAML; a class is its name, or its id; in quotes, a text that is both is the name.
            class_names: Names of the classes (K,).

        Raises:
            InputError: For an invalid document; it says what is wrong.
        """
        return cls.of(parse_contract(text), class_names)

    @classmethod
    def of(cls, content: Any, class_names: Sequence[str] = ()) -> Contract:
        """Make a contract from the content of a YAML document, or of a manifest's entry.

        Args:
            content: Content of the document.
            class_names: Names of the classes (K,).
        """
        return cls(tuple(Clause(**one) for one in scopes_of(content, class_names)))

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's entry, which ``of`` reads back."""
        return clause_facts(map(vars, self.clauses))

    def text(self, class_names: Sequence[str] = ()) -> str:
        """"A YAML document, which ``read`` with the same names reads back.

        >>> print(Contract((Clause("act", 0.98, above=0.9, predicted=1),)).text(["cat", "dog"]), end="")
        contract: 1
        classes:
          dog:
            act: {above: 0.9, accuracy: 0.98, per: 30d}
        """
        return written(map(vars, self.clauses), class_names)

    @property
    def has_acts(self) -> bool:
        """Whether an act clause says which predictions may be acted on."""
        return any(one.kind == "act" for one in self.clauses)

    @property
    def segments(self) -> tuple[str, ...]:
        """Segments with an act clause of their own: which predictions may be acted on depends on them."""
        return tuple(dict.fromkeys(one.segment for one in self.clauses if one.kind == "act" and one.segment))

    @cached_property
    def _above(self) -> dict[Scope, float]:
        """Thresholds of the act clauses, by segment and predicted class."""
        return {(one.segment, one.predicted): one.above for one in self.clauses if one.kind == "act"}

    def bound(self, predicted: int, segment: str = "") -> float:
        """The least confidence at which a prediction may be acted on; infinite without an act clause of it.

        Args:
            predicted: Class id.
            segment: Its segment.

        >>> Contract((Clause("act", 0.98, above=0.9, segment="de"),)).bound(0, "de")
        0.9
        """
        found = [
            self._above[place]
            for place in {("", None), ("", predicted), (segment, None)}
            if place in self._above
        ]
        return max(found, default=math.inf)

    def acts(
        self, confidence: ArrayLike, predicted: ArrayLike, segments: str | Sequence[str] = ""
    ) -> NDArray[np.bool_]:
        """Whether each prediction may be acted on (n,); not where no act clause concerns it.

        Args:
            confidence: (n,); NaN is never acted on.
            predicted: Class ids (n,).
            segments: Of each, or of all.
        """
        c, k = np.asarray(confidence, np.float64), np.asarray(predicted)
        of = [segments] * len(k) if isinstance(segments, str) and k.ndim == 1 else list(segments)
        if c.ndim != 1 or k.shape != c.shape or len(of) != len(c):
            raise ShapeError(
                f"confidences, predicted classes and segments must be (n,), got {c.shape}, {k.shape} and "
                f"{len(of)}"
            )
        pairs = list(zip(k.tolist(), of, strict=True))
        # Pairs repeat over a batch: each bound is looked up once.
        bounds = {pair: self.bound(*pair) for pair in set(pairs)}
        return np.asarray(c >= np.array([bounds[pair] for pair in pairs], np.float64))

    def acts_on(self, confidence: float, predicted: int, segment: str = "") -> bool:
        """Whether one prediction may be acted on.

        Args:
            confidence: Its confidence.
            predicted: Class id.
            segment: Its segment.
        """
        return bool(confidence >= self.bound(predicted, segment))

    def counts(self, confidence: float, predicted: int, segment: str = "") -> tuple[Clause, ...]:
        """The clauses that count this prediction apart.

        Act clauses count predictions acted on, coverage clauses the confident ones, and calibration clauses
        of a segment or class the predictions in it.

        Args:
            confidence: Its confidence.
            predicted: Class id.
            segment: Its segment.
        """
        acted = self.acts_on(confidence, predicted, segment)
        return tuple(
            one
            for one in self.clauses
            if one.concerns(predicted, segment)
            and (acted if one.kind == "act" else confidence >= one.above)
            and (one.kind != "calibration" or one.is_scoped)
        )

    def check_classes(self, count: int) -> None:
        """Raise InputError where a clause is of a class beyond the number of classes."""
        for one in self.clauses:
            if one.predicted is not None and not one.predicted < count:
                raise InputError(
                    f"the contract is of class {one.predicted}, and there are {count}: 0 to {count - 1}"
                )

    def says(self, class_names: Sequence[str] = ()) -> list[str]:
        """The promises in sentences, one a clause."""
        return [one.says(class_names) for one in self.clauses]


def _number(value: Any, what: str) -> float:
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{what} must be a number, got {shown(value)}")


def _called(predicted: int, class_names: Sequence[str]) -> str:
    return class_names[predicted] if predicted < len(class_names) else str(predicted)
