"""The classes of a model version, and labels as their ids; of multi-label models, each is a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError, Refused
from calib_serve.core.names import By, Naming, shown

_EXPLICIT = '; a number is an id, and {"label": text, "by": "id"} or "name" says it (calib-serve label --by)'


@dataclass(frozen=True)
class Classes:
    """The classes of one model version: a label is an id in [0, count), or a name.

    Args:
        count: Number of classes.
        names: Name of each class; empty: they have none.
        pairs: Whether each two of them are a label of a multi-label model, not true and true.

    >>> Classes(2, ("cat", "dog")).find("dog")
    1
    >>> Classes.of_labels(2, ("cat", "dog")).find(True, predicted=2)
    3
    """

    count: int
    names: tuple[str, ...] = ()
    pairs: bool = False
    _naming: Naming = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_naming", Naming(self.count, self.names))

    @classmethod
    def of_labels(cls, labels: int, names: Sequence[str] = ()) -> Classes:
        """The classes of a multi-label model: two decisions for each of its labels.

        Args:
            labels: Number of labels.
            names: Name of each label; empty: they have none.
        """
        return cls(2 * labels, _choice_names(labels, names), pairs=True)

    def find(self, label: object, predicted: int = 0, by: By | None = None) -> int:
        """The class id of an id or a name, or Refused.

        A whole number, 1 or 1.0, is an id. A text is a name, else the digits of an id; refused where it is
        the name of one class and the id of another. Where classes are pairs, 0 and 1, false and true, and the
        two names are taken.

        Args:
            label: An id or a name, as it came.
            predicted: Predicted class id; where classes are pairs it says which label this is about.
            by: "id" or "name", where it is said which of them the label is.
        """
        if isinstance(label, float) and label.is_integer():
            label = int(label)  # as pandas has numbers of a column with gaps
        if self.pairs:
            return self._of_pair(label, predicted - predicted % 2, by)
        if isinstance(label, str):
            try:
                return self._naming.find(label, by)
            except InputError as error:
                raise Refused("bad_label", f"{error}{_EXPLICIT if by is None else ''}") from error
        if (
            isinstance(label, int)
            and not isinstance(label, bool)
            and by != "name"
            and 0 <= label < self.count
        ):
            return label
        raise Refused("bad_label", f"{self._naming.says()}, got {shown(label)}")

    def _of_pair(self, label: object, no: int, by: By | None) -> int:
        names = self.names[no : no + 2]
        found = set()
        if isinstance(label, str):
            found = {i for i, name in enumerate(names) if name == label and by != "id"}
            texts = {"false": 0, "true": 1, "0": 0, "1": 1, "0.0": 0, "1.0": 1}
            found |= {texts[label.lower()]} if by != "name" and label.lower() in texts else set()
        elif isinstance(label, int) and label in (0, 1) and by != "name":
            found = {int(label)}
        if len(found) == 1 and names:  # the name "false" may be meant as no, or as the label of that name
            return no + found.pop()
        told = ", ".join(map(shown, names))
        raise Refused(
            "bad_label", f"a label is 0 or 1, false or true, or one of ({told}), got {shown(label)}"
        )


def choose_labels(
    probs: NDArray[np.floating[Any]], threshold: float = 0.5
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Decide each label (n, L): as a class below 2 L, with its confidence (n, L).

    A label is decided to be true where its probability in ``probs`` (n, L) is ``threshold`` or more.

    >>> [found.tolist() for found in choose_labels(np.array([[0.125, 0.75]]))]
    [[[0, 3]], [[0.875, 0.75]]]
    """
    yes = probs >= threshold
    return 2 * np.arange(probs.shape[1]) + yes, np.where(yes, probs, 1 - probs).astype(np.float64)


def _choice_names(labels: int, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the 2 L classes of L labels; ``names`` (L,) of the labels, or none.

    >>> _choice_names(1, ["cat"]), _choice_names(1)
    (('not cat', 'cat'), ('not label 0', 'label 0'))
    """
    called = names or [f"label {k}" for k in range(labels)]
    return tuple(text for name in called for text in (f"not {name}", name))
