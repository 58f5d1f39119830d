"""Contracts: the accuracy that an artifact promises, in production, of what is acted on.

A contract is a small YAML file::

    contract: 1
    per: 30d
    act: {above: 0.90, accuracy: 0.98}
    segments:
      de: {act: {above: 0.95, accuracy: 0.99}}
    classes:
      cat: {act: {above: 0.95, accuracy: 0.99}}

``act``: of the predictions that may be acted on, those of a confidence of at least ``above``, at least the
share ``accuracy`` is right. ``per``: the time over which a promise is settled. A segment or a predicted class
may have a clause of its own; what is acted on there meets the thresholds of all clauses that it falls under.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.names import Naming, as_duration, is_plain, parse_duration, shown
from calib_serve.scores import few, read_yaml

_MOST_CLASSES = 2**32  # ids are below, as receipts hold them in 32 bits
_SHORTEST_PER, _LONGEST_PER = 3600.0, 3650 * 86_400.0
_Scope = tuple[str, Union[int, None]]


@dataclass(frozen=True)
class Clause:
    """One promise: of what is acted on, a share that is right.

    Args:
        promise: Least accuracy.
        above: Confidence from which predictions are acted on.
        per: Seconds over which it is settled; 30 days by default.
        segment: Segment that it is of; "" of all.
        predicted: Predicted class that it is of, where it is of no segment; None of all.
    """

    promise: float
    above: float = 0.0
    per: float = 2_592_000.0
    segment: str = ""
    predicted: int | None = None

    def __post_init__(self) -> None:
        self._check_scope()
        for name in ("promise", "above", "per"):
            object.__setattr__(self, name, _number(getattr(self, name), f"{name} of {self.name}"))
        if not 0 < self.promise < 1:
            raise InputError(
                f"{self.name} promises an accuracy between 0 and 1, and not the ends: 0.98 means 98 %; got "
                f"{self.promise:g}"
            )
        if not 0 <= self.above <= 1:
            raise InputError(f"above of {self.name} must lie in [0, 1], got {self.above:g}")
        if not _SHORTEST_PER <= self.per <= _LONGEST_PER or self.per % 1:
            raise InputError(
                f"per of {self.name} must be whole seconds from an hour to {as_duration(_LONGEST_PER)}, got "
                f"{self.per:g} s"
            )

    def _check_scope(self) -> None:
        name, predicted = self.segment, self.predicted
        plain = isinstance(name, str) and is_plain(name) and not {"\t", "\n"} & set(name)
        if not plain or len(name) > 63:  # as in receipts
            raise InputError(
                f"a segment is a text of 1 to 63 characters without control characters, got {shown(name)}"
            )
        if predicted is None:
            return
        if isinstance(predicted, bool) or not isinstance(predicted, (int, np.integer)) or predicted < 0:
            raise InputError(f"predicted is the id of a class, got {shown(predicted)}")
        object.__setattr__(self, "predicted", int(predicted))
        if predicted >= _MOST_CLASSES or name:
            raise InputError(f"a clause is of a segment, or of a class below {_MOST_CLASSES}, not of both")

    @property
    def name(self) -> str:
        """The clause's name for people, unique in a contract.

        >>> Clause(0.98, above=0.9, segment="de").name
        'act, segment de'
        """
        where = f", segment {self.segment}" if self.segment else ""
        return f"act{where}" + (f", class {self.predicted}" if self.predicted is not None else "")

    @property
    def id(self) -> str:
        """The clause's name and eight letters of a hash of its terms: a changed clause is another one."""
        # Sums of evidence are kept by this id: under other terms they would prove nothing.
        text = json.dumps(["act", self.promise, self.above, self.per, self.segment, self.predicted])
        return f"{self.name} #{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def says(self, class_names: Sequence[str] = ()) -> str:
        """The promise in a sentence.

        >>> Clause(0.98, above=0.9).says()
        'Of predictions acted on (confidence 0.9 or more), 98 % or more are right, over 30d.'
        """
        called = dict(enumerate(class_names))
        of = "" if self.predicted is None else f" of class {called.get(self.predicted, self.predicted)}"
        of += f" in segment {self.segment}" if self.segment else ""
        share, least = f"{100 * self.promise:.10g} %", f"{self.above:.10g}"
        return (
            f"Of predictions{of} acted on (confidence {least} or more), {share} or more are right, over "
            f"{as_duration(self.per)}."
        )


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
            raise InputError("a contract promises something: give it an act clause")
        if len(names) > 64:
            raise InputError(f"a contract has 64 clauses at most, each with its own series; got {len(names)}")
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"a contract says {shown(twice)} twice; leave one of them out")

    @classmethod
    def read(cls, text: str | bytes, class_names: Sequence[str] = ()) -> Contract:
        """Read a contract from a YAML document.

        Args:
            text: YAML; a class is its name, or its id; in quotes, a text that is both is the name.
            class_names: Names of the classes (K,).

        Raises:
            InputError: For an invalid document.
        """
        try:
            content = read_yaml(text.encode() if isinstance(text, str) else text)
        except ValueError as error:
            raise InputError(f"the contract cannot be read: {error}") from error
        return cls.of(content, class_names)

    @classmethod
    def of(cls, content: Any, class_names: Sequence[str] = ()) -> Contract:
        """Make a contract from the content of a YAML document, or of a manifest's entry.

        Args:
            content: Content of the document.
            class_names: Names of the classes (K,).
        """
        return cls(tuple(_clauses_of(content, class_names)))

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's entry, which ``of`` reads back."""
        found: dict[str, Any] = {"contract": 1}
        for one in self.clauses:
            place = found
            if one.segment:
                place = found.setdefault("segments", {}).setdefault(one.segment, {})
            elif one.predicted is not None:
                place = found.setdefault("classes", {}).setdefault(str(one.predicted), {})
            place["act"] = {"above": one.above, "accuracy": one.promise, "per": as_duration(one.per)}
        return found

    @property
    def segments(self) -> tuple[str, ...]:
        """Segments with a clause of their own: which predictions may be acted on depends on them."""
        return tuple(one.segment for one in self.clauses if one.segment)

    @cached_property
    def _above(self) -> dict[_Scope, float]:
        """Thresholds by segment and predicted class."""
        return {(one.segment, one.predicted): one.above for one in self.clauses}

    def bound(self, predicted: int, segment: str = "") -> float:
        """The least confidence at which a prediction may be acted on; infinite where no clause concerns it.

        Args:
            predicted: Class id.
            segment: Its segment.

        >>> Contract((Clause(0.98, above=0.9, segment="de"),)).bound(0, "de")
        0.9
        """
        places: set[_Scope] = {("", None), ("", predicted), (segment, None)}
        return max((self._above[place] for place in places if place in self._above), default=math.inf)

    def acts(
        self, confidence: ArrayLike, predicted: ArrayLike, segments: str | Sequence[str] = ""
    ) -> NDArray[np.bool_]:
        """Whether each prediction may be acted on (n,); not where no clause concerns it.

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
        """The clauses that a prediction acted on falls under; none if it is not acted on.

        Args:
            confidence: Its confidence.
            predicted: Class id.
            segment: Its segment.
        """
        if not self.acts_on(confidence, predicted, segment):
            return ()
        return tuple(
            one for one in self.clauses if one.segment in ("", segment) and one.predicted in (None, predicted)
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
        if not isinstance(value, (bool, str)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{what} must be a number, got {shown(value)}")


def _clauses_of(content: Any, class_names: Sequence[str]) -> Iterator[Clause]:
    """The clauses in a contract's content, read strictly."""
    top = _mapping(content, "the contract", {"contract", "per", "act", "segments", "classes"})
    if type(top.get("contract")) is not int or top["contract"] != 1:
        raise InputError(f"a contract begins with 'contract: 1', got {shown(top.get('contract'))}")
    per = top.get("per", "30d")
    _seconds(per, "per of the contract")
    if "act" in top:
        yield _clause({"act": top["act"]}, "the contract", per=per)
    for name, entry in _mapping(top.get("segments", {}), "segments").items():
        if not isinstance(name, str) or not name:
            raise InputError(f"a segment is a text, and YAML reads one as {shown(name)}; put it in quotes")
        yield _clause(entry, f"segment {shown(name)}", per=per, segment=name)
    for name, entry in _mapping(top.get("classes", {}), "classes").items():
        predicted = _class_id(name, class_names)
        yield _clause(entry, f"class {shown(name)}", per=per, predicted=predicted)


def _clause(entry: Any, where: str, *, per: Any, **scope: Any) -> Clause:
    """The clause of all, of a segment or of a class."""
    given = _mapping(entry, where, {"act"})
    if not given:
        raise InputError(f"{where} promises nothing; give it an act clause, or leave it out")
    fields = _mapping(given["act"], f"act of {where}", {"above", "accuracy", "per"})
    if missing := [name for name in ("above", "accuracy") if name not in fields]:
        raise InputError(f"act of {where} has no {' and no '.join(missing)}")
    seconds = _seconds(fields.get("per", per), f"per of act of {where}")
    return Clause(fields["accuracy"], fields["above"], seconds, **scope)


def _seconds(value: Any, what: str) -> float:
    if not isinstance(value, str):
        raise InputError(f"{what} is a time with its unit, such as 30d or 12h; got {shown(value)}")
    return parse_duration(value, what=what)


def _mapping(value: Any, what: str, allowed: set[str] | None = None) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{what} must be a mapping of names to values, got {shown(value)}")
    unknown = [] if allowed is None else [key for key in value if key not in allowed]
    if unknown:
        raise InputError(
            f"{what} does not know {few(unknown)}; it may have {', '.join(sorted(allowed or ()))}"
        )
    return value


def _class_id(name: Any, class_names: Sequence[str]) -> int:
    if isinstance(name, bool) or not isinstance(name, (int, str)):
        raise InputError(f"a class is its name or id, and YAML reads one as {shown(name)}; put it in quotes")
    classes = Naming(len(class_names) or _MOST_CLASSES, class_names)
    try:
        if isinstance(name, str) and name in class_names:
            return classes.find(name, by="name")
        return classes.find(str(name))
    except InputError as error:
        quotes = "" if isinstance(name, str) else "; in quotes it is the name"
        raise InputError(f"classes of the contract: {error}{quotes}") from error
