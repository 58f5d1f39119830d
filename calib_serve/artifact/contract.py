"""What an artifact's confidence promises in production: which predictions may be acted on, and how right.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact.manifest import read_yaml
from calib_serve.durations import as_duration, parse_duration
from calib_serve.errors import InputError

__all__ = ["Clause", "ClauseKind", "Contract"]

ClauseKind = Literal["act", "calibration", "coverage"]
"""What a clause promises: of what is acted on, of the calibration error, of the share that is sure enough."""

FORMAT = 1
_PER = "30d"
_MOST = 64  # clauses of a contract: each has its own series
_LONGEST = 63  # characters of a segment's name, as in receipts
_PROMISES: Mapping[str, str] = {"act": "accuracy", "calibration": "error", "coverage": "at_least"}


@dataclass(frozen=True)
class Clause:
    """One promise: accuracy at least ``promise``, an error of at most it, or a share of at least it.

    ``above``: the confidence from which predictions count, 0 for a calibration. ``per``: seconds over which
    it is settled. ``segment`` and ``predicted``: the segment, or the predicted class, that it is of; "" and
    None: of all.
    """

    kind: ClauseKind
    promise: float
    above: float = 0.0
    per: float = 2_592_000.0
    segment: str = ""
    predicted: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(ClauseKind):
            raise InputError(f"a clause is one of {', '.join(_PROMISES)}, got {self.kind!r}")
        if not 0 < self.promise < 1:
            raise InputError(
                f"{self.kind} promises {_PROMISES[self.kind]} between 0 and 1, not at the ends; "
                f"got {self.promise}"
            )
        if not 0 <= self.above <= 1 or (self.kind == "calibration" and self.above):
            raise InputError(f"above of {self.kind} must lie in [0, 1], and a calibration has none")
        if not 3600 <= self.per < math.inf:
            raise InputError(f"per must be an hour or more, got {as_duration(self.per)}")

    @property
    def name(self) -> str:
        """For people, and unique in a contract.

        >>> Clause("act", 0.98, above=0.9, segment="de").name
        'act, segment de'
        """
        where = f", segment {self.segment}" if self.segment else ""
        return self.kind + where + (f", class {self.predicted}" if self.predicted is not None else "")

    @property
    def id(self) -> str:
        """Its name, and eight letters of a hash of all that it says: a changed clause is another one."""
        text = json.dumps([self.kind, self.promise, self.above, self.per, self.segment, self.predicted])
        return f"{self.name} #{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def concerns(self, predicted: int, segment: str) -> bool:
        """Whether it is of predictions of this class in this segment."""
        return (not self.segment or self.segment == segment) and self.predicted in (None, predicted)

    def says(self, class_names: Sequence[str] = ()) -> str:
        """In a sentence.

        >>> Clause("act", 0.98, above=0.9).says()
        'Of predictions acted on (confidence 0.9 or more), 98 % or more are right, over 30d.'
        """
        name = "" if self.predicted is None else _name(self.predicted, class_names)
        of = f" of class {name}" if name else ""
        of += f" in segment {self.segment}" if self.segment else ""
        share = f"{100 * self.promise:.4g} %"
        if self.kind == "act":
            told = (
                f"Of predictions{of} acted on (confidence {self.above:g} or more), {share} or more are right"
            )
        elif self.kind == "calibration":
            told = f"The expected calibration error of predictions{of} is {share} or less"
        else:
            told = f"Of predictions{of}, {share} or more have a confidence of {self.above:g} or more"
        return f"{told}, over {as_duration(self.per)}."


@dataclass(frozen=True)
class Contract:
    r"""The clauses of a contract, in their order; InputError for none, or two of the same name.

    >>> contract = Contract.read("contract: 1\nact: {above: 0.9, accuracy: 0.98}")
    >>> contract.acts([0.85, 0.95], [0, 0]).tolist()
    [False, True]
    """

    clauses: tuple[Clause, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "clauses", tuple(self.clauses))
        names = [one.name for one in self.clauses]
        if not names or len(names) > _MOST or len(set(names)) < len(names):
            raise InputError(f"a contract has 1 to {_MOST} clauses of different names, got {names}")

    @classmethod
    def read(cls, text: str | bytes, class_names: Sequence[str] = ()) -> Contract:
        """The contract in a YAML document; classes by name or id. InputError says what is wrong in it."""
        try:
            content = read_yaml(text.encode() if isinstance(text, str) else text)
        except ValueError as error:
            raise InputError(f"the contract cannot be read: {error}") from error
        return cls.of(content, class_names)

    @classmethod
    def of(cls, content: Any, class_names: Sequence[str] = ()) -> Contract:
        """Of what a YAML document holds, or a manifest's entry."""
        top = _mapping(content, "the contract", {"contract", "per", *_PROMISES, "segments", "classes"})
        if top.get("contract") != FORMAT or isinstance(top.get("contract"), bool):
            raise InputError(f"a contract begins with 'contract: {FORMAT}', got {top.get('contract')!r}")
        per = top.get("per", _PER)
        clauses = _clauses(top, "the contract", per=per)
        for name, entry in _mapping(top.get("segments", {}), "segments").items():
            if not isinstance(name, str) or not 0 < len(name) <= _LONGEST:
                raise InputError(f"a segment is a text of 1 to {_LONGEST} characters, got {name!r}")
            clauses += _clauses(
                _mapping(entry, f"segment {name}", set(_PROMISES)), f"segment {name}", per=per, segment=name
            )
        for name, entry in _mapping(top.get("classes", {}), "classes").items():
            clauses += _clauses(
                _mapping(entry, f"class {name}", set(_PROMISES)),
                f"class {name}",
                per=per,
                predicted=_class_id(name, class_names),
            )
        return cls(tuple(clauses))

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's entry, of which ``of`` makes the contract again."""
        found: dict[str, Any] = {"contract": FORMAT}
        for one in self.clauses:
            place = found
            if one.segment:
                place = found.setdefault("segments", {}).setdefault(one.segment, {})
            elif one.predicted is not None:
                place = found.setdefault("classes", {}).setdefault(str(one.predicted), {})
            place[one.kind] = {_PROMISES[one.kind]: one.promise, "per": as_duration(one.per)}
            if one.kind != "calibration":
                place[one.kind]["above"] = one.above
        return found

    @property
    def decides(self) -> bool:
        """Whether it says what may be acted on."""
        return any(one.kind == "act" for one in self.clauses)

    def acts(
        self, confidence: ArrayLike, predicted: ArrayLike, segments: str | Sequence[str] = ""
    ) -> NDArray[np.bool_]:
        """Whether each prediction may be acted on (n,), of confidences (n,) and predicted class ids (n,).

        ``segments``: of each, or of all. None where a confidence is NaN, or no act clause concerns it.
        """
        c, k = np.asarray(confidence, np.float64), np.asarray(predicted)
        of = [segments] * len(c) if isinstance(segments, str) else segments
        return np.array(
            [self.acts_on(*one) for one in zip(c.tolist(), k.tolist(), of, strict=True)], np.bool_
        )

    def acts_on(self, confidence: float, predicted: int, segment: str = "") -> bool:
        """Whether one prediction may be acted on."""
        bound = [one.above for one in self.clauses if one.kind == "act" and one.concerns(predicted, segment)]
        return bool(bound) and confidence >= max(bound)

    def counts(self, confidence: float, predicted: int, segment: str = "") -> tuple[Clause, ...]:
        """The act clauses whose promise this prediction is part of, and the coverage clauses it fulfils."""
        acted = self.acts_on(confidence, predicted, segment)
        return tuple(
            one
            for one in self.clauses
            if one.concerns(predicted, segment)
            and (acted if one.kind == "act" else one.kind == "coverage" and confidence >= one.above)
        )

    def check_classes(self, count: int) -> None:
        """InputError where a clause is of a class beyond ``count``."""
        for one in self.clauses:
            if one.predicted is not None and not 0 <= one.predicted < count:
                raise InputError(f"there is no class {one.predicted} among {count} classes")

    def says(self, class_names: Sequence[str] = ()) -> list[str]:
        """In sentences."""
        return [one.says(class_names) for one in self.clauses]


def _clauses(entry: Mapping[str, Any], where: str, *, per: Any, **scope: Any) -> list[Clause]:
    found = []
    for kind, promise in _PROMISES.items():
        if kind not in entry:
            continue
        allowed = {promise, "per"} | ({"above"} if kind != "calibration" else set())
        given = _mapping(entry[kind], f"{kind} of {where}", allowed)
        missing = sorted(allowed - {"per"} - given.keys())
        if missing:
            raise InputError(f"{kind} of {where} has no {' and no '.join(missing)}")
        numbers = {name: _number(given[name], f"{name} of {kind} of {where}") for name in allowed - {"per"}}
        seconds = parse_duration(str(given.get("per", per)), what=f"per of {kind} of {where}")
        found.append(Clause(kind, numbers.pop(promise), per=seconds, **numbers, **scope))  # type: ignore[arg-type]
    return found


def _mapping(value: Any, what: str, allowed: set[str] | None = None) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{what} must be a mapping of names to values, got {value!r}")
    unknown = [] if allowed is None else [str(key) for key in value if key not in allowed]
    if unknown:
        raise InputError(
            f"{what} does not know {', '.join(unknown)}; it may have {', '.join(sorted(allowed or ()))}"
        )
    return value


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{what} must be a number, got {value!r}")
    return float(value)


def _class_id(name: Any, class_names: Sequence[str]) -> int:
    text = str(name)
    if text in class_names:
        return list(class_names).index(text)
    if text.isdecimal() and (not class_names or int(text) < len(class_names)):
        return int(text)
    raise InputError(f"there is no class {text!r}; give a name of the artifact's classes, or an id")


def _name(predicted: int, class_names: Sequence[str]) -> str:
    return class_names[predicted] if predicted < len(class_names) else str(predicted)
