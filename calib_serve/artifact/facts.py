"""Facts of a fit: the model, the selection of the method, and metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from calib_serve.artifact.decisions import DecisionFacts
from calib_serve.artifact.manifest import plain
from calib_serve.artifact.preprocessing import Preprocessing
from calib_serve.core.errors import InputError
from calib_serve.metrics import Estimate
from calib_serve.scores import Outputs, check_outputs


@dataclass(frozen=True)
class ModelFacts:
    """The model that an artifact was fitted on; None where unknown.

    Args:
        sha256: Of its file's bytes.
        source: The file's name or the factory.
        input_shape: Shape of one input; -1 for any size.
        input_dtype: numpy's name of it.
        outputs: Kind of the scores that the calibration was fitted on: what the model itself returns, or what
            passes ``seam``.
        last_linear: Name of the layer that makes its logits.
        archive: SHA-256 of all files of an archive whose handler gave them.
        seam: Where an archive's handler passes its scores on, as in ``pack_around``.
        output: Which output of the seam holds them.
        pictures: How pictures became the inputs that it was fitted on, or a mapping of that.
        scale: How its scores were written, where not as ``outputs``, such as "percent".
        columns: Columns or the array of a table that its scores were read from, in order.
        class_axis: Axis of the classes in scores of more axes than (n, K): 1, or -1 for the last.

    Raises:
        InputError: For a fact of another type.

    >>> ModelFacts(outputs="logits", input_shape=[3, 8, 8]).as_dict()
    {'input_shape': [3, 8, 8], 'outputs': 'logits'}
    """

    sha256: str | None = None
    source: str | None = None
    input_shape: tuple[int | None, ...] | None = None
    input_dtype: str | None = None
    outputs: Outputs | None = None
    last_linear: str | None = None
    archive: str | None = None
    seam: str | None = None
    output: str | None = None
    pictures: Preprocessing | None = None
    scale: str | None = None
    columns: tuple[str, ...] = ()
    class_axis: int | None = None
    _held: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("sha256", "source", "input_dtype", "last_linear", "archive", "seam", "output", "scale"):
            _check(name, getattr(self, name), isinstance(getattr(self, name), str), "a text")
        _check("class_axis", self.class_axis, self.class_axis in (1, -1), "1 or -1")
        named = isinstance(self.columns, Sequence) and all(isinstance(name, str) for name in self.columns)
        _check("columns", self.columns, named, "a list of texts")
        object.__setattr__(self, "columns", tuple(self.columns or ()))
        try:
            check_outputs(self.outputs)
        except InputError as error:
            raise InputError(f"what the model returns: {error}") from error
        shape = self.input_shape
        sizes = isinstance(shape, Sequence) and all(size is None or type(size) is int for size in shape)
        _check("input_shape", shape, sizes, "a list of whole numbers")
        object.__setattr__(self, "input_shape", None if shape is None else tuple(shape))
        if self.pictures is not None:
            try:
                object.__setattr__(self, "pictures", Preprocessing.of(self.pictures))
            except InputError as error:
                raise InputError(f"pictures of the model: {error}") from error

    @classmethod
    def of(cls, known: ModelFacts | Mapping[str, Any]) -> ModelFacts:
        """Return the facts in a mapping, such as a manifest's.

        Args:
            known: Mapping of the facts, which is kept for ``as_dict``, or ModelFacts, which are returned.
        """
        if isinstance(known, ModelFacts):
            return known
        if not isinstance(known, Mapping):
            raise InputError(f"what is known of the model must be a mapping, got {type(known).__name__}")
        held = plain(known, "model")
        facts = cls(**{f.name: held.get(f.name) for f in fields(cls) if f.init})
        object.__setattr__(facts, "_held", held)
        return facts

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest's entry: the original mapping unchanged, else all known facts."""
        if self._held:
            return dict(self._held)
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        known["pictures"] = None if self.pictures is None else self.pictures.as_dict()
        return {name: plain(value, name) for name, value in known.items() if value not in (None, ())}

    def returned(self, told: Outputs | None) -> Outputs:
        """The kind of scores that the model itself returns: as told, else as recorded, else logits.

        Args:
            told: Kind of the scores, or None.

        Raises:
            InputError: Where only the kind at a handler's seam is known, which may be another.
        """
        if told is None and self.seam is not None:
            raise InputError(
                f"the artifact was fitted on what passes {self.seam!r} in {self.source}, not on what the "
                "model file itself returns; say with --outputs (outputs=) what that is"
            )
        return told or self.outputs or "logits"


def _check(name: str, value: object, right: bool, wanted: str) -> None:
    if value is not None and not right:
        raise InputError(f"{name} of the model must be {wanted}, got {repr(value)[:80]}")


@dataclass(frozen=True)
class Score:
    """A candidate on held-out folds.

    Args:
        method: Name of the method.
        score: Mean of the criterion.
        above_best: How far that is above the best.
        standard_error: Of that difference.
        refused: Why it was refused; None where it was not.
    """

    method: str
    score: float = math.nan
    above_best: float = math.nan
    standard_error: float = math.nan
    refused: str | None = None


@dataclass(frozen=True)
class Selection:
    """Choice of a method by cross-validation.

    Args:
        criterion: "nll", "brier" or "ece".
        rule: Rule by which it was chosen.
        folds: Number of folds.
        seed: Seed by which they were drawn.
        tolerance: How much accuracy or refinement may fall.
        level: Coverage of the interval that must show it, for a candidate to be refused.
        best: Method of the best score.
        chosen: Simplest method close enough to the best.
        scores: Of every candidate, in the order in which they were tried.
    """

    criterion: str
    rule: str
    folds: int
    seed: int
    tolerance: float
    level: float
    best: str
    chosen: str
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class PriorCorrection:
    """Class shares that probabilities were corrected from and to.

    Args:
        old: (K,), of the calibration set.
        new: (K,).
        how: How the new ones are known, in words.
        shift: Of two classes, what it adds to the log-odds of class 1 (King and Zeng 2001, eq. 7).
        shift_error: Its standard error, by the old shares alone: new ones count as known.
    """

    old: tuple[float, ...]
    new: tuple[float, ...]
    how: str
    shift: float | None = None
    shift_error: float | None = None


@dataclass(frozen=True)
class FitRecord:
    """The record of a fit: a method's own facts by item, as ``record["temperature"]``, all else by attribute.

    Args:
        facts: Facts that the method states of itself, as plain values by name.
        selection: Choice of the method among others; None without one.
        prior: Correction of class shares; None without one.
        decisions: Samples that sets and abstention were found on.
        remarks: Sentences for the user.

    Raises:
        InputError: Where a fact has the name of a part.

    >>> import numpy as np
    >>> record = FitRecord({"temperature": np.float64(2)}, remarks=("10 samples are few",))
    >>> record["temperature"], record.remarks
    (2.0, ('10 samples are few',))
    >>> record.as_dict()
    {'temperature': 2.0, 'remarks': ['10 samples are few']}
    >>> FitRecord.of(record.as_dict()) == record
    True
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    selection: Selection | None = None
    prior: PriorCorrection | None = None
    decisions: DecisionFacts = field(default_factory=DecisionFacts)
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if taken := sorted(_PARTS & set(self.facts)):
            raise InputError(f"a method's own fact cannot be called {taken[0]!r}: it is a part of the record")
        object.__setattr__(self, "facts", plain(self.facts, "fit"))

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    __iter__ = None  # else Python would iterate by numbered items, also for "in"

    @classmethod
    def of(cls, known: FitRecord | Mapping[str, Any]) -> FitRecord:
        """Return a manifest's entry, where the parts are beside the method's facts, as a record."""
        if isinstance(known, FitRecord):
            return known
        facts = plain(known, "fit")
        if not isinstance(facts, dict):
            raise InputError(f"the record of a fit must be a mapping, got {type(known).__name__}")
        parts = {name: facts.pop(name) for name in _PARTS & set(facts)}
        try:
            record: FitRecord = _as_declared(cls, {"facts": facts, **parts})
        except TypeError as error:
            raise InputError(f"the record of the fit is not one we read ({error}); fit again") from error
        return record

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest's entry: the method's facts, and beside them the parts that there are."""
        parts = asdict(self, dict_factory=_known)
        return {**parts.pop("facts"), **{name: part for name, part in parts.items() if part}}


_PARTS = {part.name for part in fields(FitRecord)} - {"facts"}


def _known(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return plain values of the fields, without None and NaN."""
    values = {name: plain(value, name) for name, value in items}
    return {name: value for name, value in values.items() if value is not None}


def _as_declared(kind: Any, value: Any) -> Any:
    """Return a manifest's value as the type that a field declares; TypeError where it is of another."""
    if isinstance(kind, UnionType):  # with None, of which nothing is written
        kind = get_args(kind)[0]
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping):
        kinds = get_type_hints(kind)
        # A name that is not declared is left to the constructor, which refuses it.
        return kind(**{name: _as_declared(kinds.get(name, object), item) for name, item in value.items()})
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_as_declared(get_args(kind)[0], item) for item in value)
    if isinstance(value, (int, float) if kind is float else get_origin(kind) or kind):
        return value
    raise TypeError(f"{repr(value)[:80]} is not {getattr(kind, '__name__', kind)}")


def read_metrics(facts: Mapping[str, Any]) -> dict[str, Estimate]:
    """Metrics by name from a manifest's values; an unknown number is NaN.

    >>> read_metrics({"ece": {"value": 0.1, "low": None}})
    {'ece': 0.1000}
    >>> read_metrics({"ece": {"value": 0.1, "low": 0.0, "high": 0.09, "debiased": 0.05}})
    {'ece': 0.1000 (debiased 0.0500) [0.0000, 0.0900]}
    """
    found = {}
    for name, fact in facts.items():
        held = fact if isinstance(fact, Mapping) else {"value": fact}
        numbers = [held.get(end) for end in ("value", "low", "high", "debiased")]
        if all(number is None or isinstance(number, (int, float)) for number in numbers):
            found[name] = Estimate(*(math.nan if number is None else float(number) for number in numbers))
    return found
