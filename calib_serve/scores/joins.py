"""Labels in a file of their own, which belong to scores by an id that both name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError
from calib_serve.core.names import shown
from calib_serve.scores.classes import plain_label


@dataclass(frozen=True, eq=False)
class LabelsById:
    """Labels by id; ``called``: their column and file; ``typed``: ids 1 and "1" are two, not as in CSV."""

    on: str
    called: str
    labels: Mapping[Any, Any]
    typed: bool

    @classmethod
    def of(cls, on: str, called: str, ids: NDArray[Any], labels: NDArray[Any], *, typed: bool) -> LabelsById:
        """Take columns (n,) of ids and labels; InputError where an id has two labels, or is none."""
        found: dict[Any, Any] = {}
        for row, (key, label) in enumerate(zip(_ids(ids, on), labels.tolist(), strict=True), 1):
            first = found.setdefault(key, label)
            if first is not label and str(plain_label(first)) != str(plain_label(label)):
                raise InputError(
                    f"row {row} says {shown(label)} of the id {shown(key)}, and a row before says "
                    f"{shown(first)}: leave one label an id"
                )
        return cls(on, called, found, typed)

    def join(self, ids: NDArray[Any], *, typed: bool) -> tuple[NDArray[np.bool_], NDArray[Any], str]:
        """Which ids (n,) of scores have a label, the labels (n,), and a remark; InputError for hardly any."""
        keys, labels = _ids(ids, self.on), self.labels
        if not (typed and self.typed):
            keys, labels = [*map(str, keys)], {str(key): label for key, label in labels.items()}
        own, theirs = {*keys}, labels.keys()
        alike = {_plain(key): key for key in own - theirs}
        near = min((key for key in theirs - own if _plain(key) in alike), default=None)
        both = len(own & theirs)
        # With less than a tenth in common they hardly name the same things.
        if near is not None or both == 0 or both < 0.1 * min(len(own), len(theirs)):
            one, other = (min(own), min(theirs)) if near is None else (alike[_plain(near)], near)
            raise InputError(
                f"of {len(own):,} ids of scores, such as the {_described(one)}, {both:,} are among the "
                f"{len(theirs):,} of labels, such as the {_described(other)}: write them alike in {self.on!r}"
            )
        kept = np.array([key in theirs for key in keys])
        found = np.empty(len(keys), object)
        found[:] = [labels.get(key) for key in keys]
        said = f"{kept.sum():,} of {len(keys):,} rows have one of {len(theirs):,} labels by {self.on!r}"
        said += f", {(~kept).sum():,} without one are left out" * (not kept.all())
        return kept, found, said + f", {len(theirs) - both:,} labels have no row" * (len(theirs) > both)


def _ids(column: NDArray[Any], on: str) -> list[Any]:
    """The ids of a column (n,), whole numbers or texts; InputError for another, by row."""
    found: list[Any] = column.tolist()
    kind = type(found[0]) if type(found[0]) is int else str
    odd = next((row for row, key in enumerate(found) if type(key) is not kind or key == ""), None)
    if odd is not None:
        raise InputError(
            f"row {odd + 1} of column {on!r} holds the {_described(found[odd])}: ids are whole numbers, or "
            "texts, in all rows"
        )
    return found


def _described(key: Any) -> str:
    return f"{type(key).__name__} {shown(key)}"


def _plain(key: Any) -> str:
    """An id without what tables add or take away: blanks, leading zeros, the ".0" of a float."""
    return str(key).strip().removesuffix(".0").lstrip("0")
