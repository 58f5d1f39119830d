"""What the columns of the logs are called, and what they must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from calib_serve.errors import InputError

__all__ = ["Columns", "check_alike", "check_columns", "number", "seconds"]

_KINDS = {"integer": "is_integer", "text": "is_string", "boolean": "is_boolean"}
_LATEST = 1e11  # seconds, in the year 5138; milliseconds since 1970 are beyond it


@dataclass(frozen=True)
class Columns:
    """The name of each column in the user's tables.

    Of predictions: ``id``, ``predicted`` and ``confidence`` must be there; ``model``, ``version``, ``time``
    and ``weight`` may be. Of labels: ``id`` and ``label``. The weight is one over the chance with which the
    label was asked for, at least 1.

    >>> Columns(confidence="score").confidence, Columns().label
    ('score', 'label')
    """

    id: str = "id"
    predicted: str = "predicted"
    confidence: str = "confidence"
    label: str = "label"
    model: str = "model"
    version: str = "version"
    time: str = "time"
    weight: str = "weight"

    def __post_init__(self) -> None:
        for one in fields(self):
            if not isinstance(getattr(self, one.name), str) or not getattr(self, one.name):
                raise InputError(
                    f"the column of the {one.name} must have a name, got {getattr(self, one.name)!r}"
                )


def check_columns(table: Any, names: Sequence[str], *, what: str, where: str) -> None:
    """InputError unless the table has all these columns."""
    if missing := [name for name in names if name not in table.columns]:
        have = ", ".join(table.columns[:20])
        raise InputError(
            f"{what} {where}: no column {', '.join(missing)}; it has {have}. If it is called otherwise, say "
            f"--column {missing[0]}=NAME, or --on NAME for ids"
        )


def check_alike(one: Any, other: Any, *, what: str) -> None:
    """InputError where two columns hold values of kinds that are never equal, such as text and numbers."""
    if _kind(one) != _kind(other):
        raise InputError(
            f"{what} cannot be compared: {one.get_name()} is {one.type()}, {other.get_name()} is "
            f"{other.type()}; cast one of them to the type of the other"
        )
    if "float" in _kind(one):
        raise InputError(f"{what} must be integers, text or booleans, got {one.type()}; cast them")


def _kind(column: Any) -> str:
    kind = column.type()
    if kind.is_decimal() and not kind.scale:  # how some warehouses call integers
        return "integer"
    return next((name for name, is_it in _KINDS.items() if getattr(kind, is_it)()), str(kind))


def number(column: Any, *, what: str) -> Any:
    """The column in float64; InputError where it holds no numbers."""
    kind = column.type()
    if not kind.is_numeric() or kind.is_boolean():
        raise InputError(f"{what} must be numbers, got {column.get_name()} of type {kind}")
    return column if kind.is_float64() and kind.nullable else column.cast("float64")


def seconds(column: Any) -> Any:
    """Whole seconds since 1970 in UTC: of a time with its zone, or of a number of seconds, rounded down.

    InputError for a time without a zone: which moment it was is not known.
    """
    kind = column.type()
    if kind.is_numeric() and not kind.is_boolean():
        moment = column.cast("float64")
        known = ((moment > -_LATEST) & (moment < _LATEST) & ~moment.isnan()).fill_null(False)
        return known.ifelse(moment, None).floor().cast("int64")
    if not kind.is_timestamp():
        raise InputError(
            f"the time of predictions must be a timestamp with a zone, or seconds since 1970, got "
            f"{column.get_name()} of type {kind}"
        )
    if kind.timezone is None:
        raise InputError(
            f"the times in {column.get_name()} have no zone, so which moment they are is not known; write "
            "them as UTC (timestamp with time zone), or as seconds since 1970"
        )
    return column.epoch_seconds().cast("float64").floor().cast("int64")
