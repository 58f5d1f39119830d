"""What the columns of logs hold: which classes there are, and of which of them the confidences are.

A confidence is the predicted class's, or of the class that was said. Numbers that no predicted class has, and
labels that no prediction knows, are refused: measured as they are, they would look like a bad model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, get_args

from calib_serve.core.errors import InputError
from calib_serve.core.names import Naming, shown
from calib_serve.core.text import a_few
from calib_serve.integrations.audit.expressions import Columns, Kind

PREDICTED = "predicted"
"""What ``confidence_of`` says where decisions are not by the largest probability."""
OFTEN = 20
"""Predictions, labels or confidences from which a pattern is none of chance."""
MOST_CLASSES = 10**5
"""Classes of a log; a column of more is none of classes."""

_NAMED: dict[Kind, str] = {"percent": "percent|percentage|pct", "log_probs": "log_?probs?|log_?p"}


def kind_of(column: str, said: Kind | None) -> Kind:
    """The kind of confidences, as it is said or as the column's name says it.

    >>> kind_of("score", None), kind_of("confidence_pct", None), kind_of("pct", "probabilities")
    ('probabilities', 'percent', 'probabilities')
    """
    named = (
        kind for kind, words in _NAMED.items() if re.search(rf"(^|[\W_])({words})($|[\W_])", column, re.I)
    )
    found: Kind = next(named, "probabilities")
    return said or found


@dataclass(frozen=True)
class Predicted:
    """How often a class is predicted, and between which confidences."""

    count: int
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Reading:
    """What was read: columns, the kind of confidences, and the classes that were seen or said.

    Confidences are probabilities of the ``event``, or, without one, of the predicted class; ``told`` are
    sentences of what is not as one expects.
    """

    columns: Columns
    kind: Kind = "probabilities"
    classes: tuple[str, ...] = ()
    event: str | None = None
    told: tuple[str, ...] = ()

    def says(self) -> str:
        """The columns, the kind and the classes, in one line.

        >>> Reading(Columns(confidence="score"), classes=("cat", "dog")).says()[:60]
        'id; predicted; confidence: score, the probability of the pre'
        """
        names = {role: getattr(self.columns, role) for role in ("id", "predicted", "confidence", "label")}
        said = {role: role if role == name else f"{role}: {name}" for role, name in names.items()}
        parts = [] if names["confidence"] == "confidence" else [names["confidence"]]
        parts += [] if self.kind == "probabilities" else [self.kind]
        parts.append(f"the probability of {'the predicted class' if self.event is None else self.event}")
        said["confidence"] = f"confidence: {', '.join(parts)}"
        if self.event is not None:
            del said["predicted"]
        return "; ".join((*said.values(), f"classes {a_few(self.classes)}"))


def named_ids(values: Iterable[Any], names: Sequence[str], *, column: str) -> dict[Any, int]:
    """The class id of each value, which is a name or an id; InputError lists those that are neither."""
    naming, ids, strange = Naming(len(names), names), dict[Any, int](), dict[Any, str]()
    for value in values:
        try:
            truth = isinstance(value, bool) and len(names) == 2
            ids[value] = naming.find(str(int(value)) if truth else str(value))
        except InputError as error:
            strange[value] = str(error)
    if strange:
        raise InputError(
            f"{column} holds {a_few(strange)}: {next(iter(strange.values()))}. Name all classes in the "
            "order of their ids (--class-names), and labels that stand for none (--ignore-label)"
        )
    return ids


def class_called(text: str, classes: Iterable[Any]) -> Any:
    """The class that is said by its text; InputError lists those that there are."""
    known = {str(one): one for one in classes}
    if text not in known:
        raise InputError(
            f"there is no class {text} that confidences could be of (--confidence-of): the log has "
            f"{a_few(known)}; name all classes (--class-names) where it lacks some"
        )
    return known[text]


def check_labels(predicted: Mapping[Any, Any], labels: Mapping[Any, int], columns: Columns) -> list[str]:
    """Raise InputError where labels seem to name other classes than predictions do; else tell of a few.

    ``labels`` count those of predictions; ``predicted`` are the classes of all of these.
    """
    strange = {value: count for value, count in labels.items() if value not in predicted}
    if not strange:
        return []
    total, many = sum(labels.values()), sum(count for count in strange.values() if count >= OFTEN)
    plain = {_plain(value): value for value in predicted}
    twins = [(value, plain[_plain(value)]) for value in strange if _plain(value) in plain]
    if twins:
        why = f"{shown(str(twins[0][0]))} and {shown(str(twins[0][1]))} seem to be one class"
    elif len(strange) == len(labels):
        why = f"none of {total:,} labels is a predicted class"
    elif len(predicted) > 1 and many > total / 5:  # a log of one class, such as of alarms, has others
        why = f"{sum(strange.values()):,} of {total:,} labels are of classes that no prediction has"
    else:
        return [f"{sum(strange.values()):,} labels are of classes that no prediction has: {a_few(strange)}"]
    often = sorted(labels.items(), key=lambda one: -one[1])
    counted = a_few(f"{value} ({count:,})" for value, count in often)
    raise InputError(
        f"{why}: {columns.label} is {counted}, {columns.predicted} is {a_few(predicted)}. Spell "
        "classes alike in both; name all, in the order of their ids, where one log has ids or lacks some "
        "(--class-names); or name labels that stand for none (--ignore-label)"
    )


def _plain(value: Any) -> str:
    text = str(value).strip().casefold()
    return re.sub(r"^(-?\d+)\.0*$", r"\1", text)


def too_low(count: int, of: int, example: str, classes: Sequence[Any], columns: Columns) -> InputError:
    """The refusal of confidences that no predicted class has."""
    k = max(len(classes), 2)
    return InputError(
        f"{columns.confidence}: {count:,} of {of:,} confidences are below 1/{k} (such as of id {example}), "
        f"and of {k} classes ({a_few(classes)}) no predicted one is so unsure. {_settle(classes)}; if there "
        "are more classes, name them all: --class-names; if their scale is another, say it: --outputs "
        f"{' or '.join(get_args(Kind))}"
    )


def thresholded(over: Any, under: Any, columns: Columns) -> InputError:
    """The refusal of confidences that are the predictions' own score, with a threshold."""
    return InputError(
        f"{columns.confidence}: every confidence of predicted {over} is above every one of predicted "
        f"{under}, as the probability of {over} has it, and a predicted class's has not. {_settle([over])}"
    )


def _settle(classes: Sequence[Any]) -> str:
    return (
        "If they are the probability of one class, whatever was predicted, say which: --confidence-of "
        f"{classes[-1] if classes else 1}; if they are the predicted class's, which need not be the "
        f"likeliest, say --confidence-of {PREDICTED}"
    )


def separated(predicted: Mapping[Any, Predicted]) -> tuple[Any, Any] | None:
    """The class whose confidences are all above the other's, and the other, of two predicted often."""
    if len(predicted) != 2 or any(one.count < OFTEN for one in predicted.values()):
        return None
    for (over, above), (under, below) in permutations(predicted.items()):
        if above.low is not None and below.high is not None and above.low > below.high:
            return over, under
    return None


def of_the_predicted(predicted: Mapping[Any, Predicted], event: Any) -> list[str]:
    """Tell where confidences that were said to be of one class may be of whichever was predicted."""
    others = [value for value, one in predicted.items() if value != event and one.count >= OFTEN]
    lows = [one.low for one in predicted.values() if one.low is not None]
    if not others or event not in predicted or min(lows, default=0.0) < 0.5 or separated(predicted):
        return []
    return [
        f"no probability of {event} is below 0.5, also where {a_few(others)} was predicted: if they are of "
        "whichever class was predicted, leave --confidence-of out"
    ]
