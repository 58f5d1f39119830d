"""Labels in a row of a table, or in a message of JSON; bad ones become dead letters, each alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from calib_serve.core.errors import InputError, Refused
from calib_serve.core.names import By, shown
from calib_serve.core.options.label import LabelColumns
from calib_serve.integrations.collect.source import DeadLetter
from calib_serve.receipts import read_json

_LONGEST = 10_000  # characters of a text: a receipt has a tenth of that


@dataclass(frozen=True)
class LabelFields:
    """Names of columns, or fields, of labels.

    ``model`` and ``segment`` are read where they are there.

    Args:
        receipt: Receipt of the prediction; without it and ``id`` both names are looked for.
        id: The user's own name of the prediction.
        label: True class.
        by: "id" or "name": what labels are; None: what a column ``by`` says, and the watch refuses labels
            that may be both.

    Raises:
        InputError: Where a column has two roles.

    >>> LabelFields(id="order_id", label="outcome").names
    {'id': 'order_id', 'label': 'outcome', 'model': 'model', 'by': 'by', 'segment': 'segment'}
    """

    receipt: str | None = None
    id: str | None = None
    label: str = "label"
    by: By | None = None

    def __post_init__(self) -> None:
        if len(set(self._asked)) < len(self._asked) or "" in self._asked:
            raise InputError(f"receipt, id and label are columns of their own, got {self._asked}")

    @classmethod
    def of(cls, options: LabelColumns) -> LabelFields:
        """Read the names of columns in the options."""
        return cls(
            receipt=options.receipt_column,
            id=options.id_column,
            label=options.label_column,
            by=options.by,
        )

    @property
    def _asked(self) -> list[str]:
        return [one for one in (self.receipt, self.id, self.label) if one is not None]

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """The column of each field."""
        of = {"receipt": self.receipt, "id": self.id}
        if self.receipt is self.id is None:
            of = {name: name for name in ("receipt", "id") if name != self.label}
        found = {name: column for name, column in of.items() if column} | {"label": self.label}
        return found | {name: name for name in ("model", "by", "segment") if name not in found.values()}

    def check(self, there: Sequence[str], name: str) -> None:
        """Check that a table has these columns.

        Args:
            there: Names of its columns.
            name: Name of the table, for errors.

        Raises:
            InputError: Where it lacks one.
        """
        lack = [one for one in self._asked if one not in there]
        either = [self.names[one] for one in ("receipt", "id") if one in self.names]
        if not set(either) & set(there):
            lack = [" or ".join(either), *(one for one in lack if one not in either)]
        if lack:
            raise InputError(
                f"{name} has no column {', '.join(lack)}, it has {', '.join(map(shown, there))}"[:400]
                + "; name yours: --column id=NAME (id_column=), receipt=NAME, label=NAME"
            )


USUAL = LabelFields()
"""receipt or id, and label."""


class LabelRow(NamedTuple):
    """The labels of a row or a message, as the watch takes them, and its dead letters."""

    where: str
    labels: list[dict[str, Any]]
    dead: list[DeadLetter]


def read_label_message(content: bytes | None, where: str, columns: LabelFields = USUAL) -> LabelRow:
    """Read a label, or a list of them, of JSON.

    >>> read_label_message(b'[{"id": "order-17", "label": 3.0, "at": "noon"}, 7]', "t/0@9").labels
    [{'id': 'order-17', 'label': 3}]
    """
    try:
        found = read_json((content or b"").decode())
    except ValueError:
        return LabelRow(where, [], [DeadLetter("malformed", "it is no JSON", where, content=content or b"")])
    rows = [read_label(one, where, columns) for one in (found if isinstance(found, list) else [found])]
    return LabelRow(
        where, [one for row in rows for one in row.labels], [one for row in rows for one in row.dead]
    )


def read_label(item: Any, where: str, columns: LabelFields = USUAL) -> LabelRow:
    """Read one label; an invalid one is not sent, as its whole batch would be refused for it."""
    if not isinstance(item, Mapping):
        told = 'a label is an object, such as {"id": "order-17", "label": 3}'
        return LabelRow(where, [], [DeadLetter("malformed", told, where, item=item)])
    found = {field: item[name] for field, name in columns.names.items() if not _missing(item.get(name))}
    if columns.by:
        found["by"] = columns.by
    try:
        return LabelRow(where, [_label(found)], [])
    except Refused as refusal:
        return LabelRow(
            where, [], [DeadLetter(refusal.reason, str(refusal), where, item=found or dict(item))]
        )


def _missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _label(found: Mapping[str, Any]) -> dict[str, Any]:
    """The label to send, from these fields; Refused for invalid ones."""
    for value in found.values():
        if isinstance(value, str):
            _check_text(value)
    sent: dict[str, Any] = {}
    if "receipt" in found:
        sent["receipt"] = _text(found["receipt"], "receipt")
    elif "id" in found:
        sent |= {one: _text(found[one], one) for one in ("id", "model") if one in found}
    else:
        raise Refused("malformed", "it has neither a receipt nor an id")
    if "label" not in found:
        raise Refused("bad_label", "it has no label")
    by = found.get("by")  # a column of that name may also say who labelled
    sent["label"] = _class(found["label"], by)
    if by in ("id", "name"):
        sent["by"] = by
    if "segment" in found:
        sent["segment"] = _text(found["segment"], "segment")
    return sent


def _check_text(text: str) -> None:
    if len(text) > _LONGEST:
        raise Refused("malformed", f"a text has {len(text)} characters, of which it may have {_LONGEST}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused("malformed", f"the text {shown(text)} is not UTF-8") from error


def _whole(value: Any) -> Any:
    """A whole number from the float or decimal in which pandas or a database wrote it.

    >>> _whole(3.0), _whole(3.5), _whole(Decimal("7.00")), _whole(1e300), _whole("3.0")
    (3, 3.5, 7, 1e+300, '3.0')
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    return value


def _text(value: Any, what: str) -> str:
    whole = _whole(value)
    if isinstance(whole, int) and not isinstance(whole, bool):
        return str(whole)
    if not isinstance(value, str):
        raise Refused("malformed", f"its {what} is neither a text nor a whole number: {shown(value)}")
    return value


def _class(value: Any, by: Any) -> Any:
    if not isinstance(value, (str, bool, int, float, Decimal)):
        raise Refused("malformed", f"its label is neither a text nor a number: {shown(value)}")
    if by == "name":
        return str(value)
    whole = _whole(value)
    if isinstance(whole, (float, Decimal)):
        raise Refused("bad_label", f"a label is a class id or a class name, got {str(value)[:40]}")
    return whole
