"""Two models on the same samples: their rows paired, and what is better in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.core.text import p_value, percent
from calib_serve.metrics import DEPLOY, Change
from calib_serve.report.comparison import ComparedModel
from calib_serve.report.tasks import Contents, judge_pair, prepare_report
from calib_serve.scores import Scores

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ReportKeywords

_PROPER = (("nll", "NLL"), ("brier", "Brier score"), ("positive_brier", "Brier score"))
_COLORS = ("model-a", "model-b")


def compare(
    first: Any,
    second: Any,
    options: ReportOptions | None = None,
    **keywords: Unpack[ReportKeywords],
) -> Contents:
    """Compare two models by their scores of the same labelled samples; each difference is tested in pairs.

    Rows are paired by the names of the samples (a column ``id``) where both have them, in any order. Else
    they stand in one order, which equal labels prove unless these are sorted: then the verdict says so.

    Args:
        first: A file of scores with labels, ``Scores``, a frame, or a pair of scores and labels.
        second: The same of another model.
        options: A ``ReportOptions``; keywords replace its fields.
        **keywords: Fields of ``ReportOptions``: ``bins``, ``edges``, ``seed``, ``replicates``, ``tolerance``,
            ``class_tolerance``, ``names``, ``class_names``, ``sample_weight``, ``groups``,
            ``bounds``, ``own``, ``tree``; weights, groups and ``names`` are by default those of the scores.

    Returns:
        The contents of a report: ``verdict``, ``changes``, ``as_dict()``; ``calib_serve.report.write_page``
        writes it.

    Raises:
        InputError: Where the samples or classes are not the same.

    >>> p, y = [[0.8, 0.2], [0.3, 0.7]] * 50, [0, 1, 0, 0] * 25
    >>> found = compare((p, y), ([[0.7, 0.3], [0.4, 0.6]] * 50, y), names=("old", "new"), replicates=0)
    >>> found.verdict.gain.partition(" (")[0]
    'No clear difference: new has NLL 0.5351 against 0.5017'
    """
    asked = changed(options or ReportOptions(), keywords, compare)
    one, other = (_scores(given) for given in (first, second))
    one, other, doubt = paired(one, other)
    names = asked.names if asked.names != ReportOptions.names else _names(one.name, other.name)
    beside: dict[str, Any] = {
        "sample_weight": _given(asked.sample_weight, one.weights, other.weights),
        "groups": _given(asked.groups, one.clusters, other.clusters),
        "class_names": asked.class_names or one.class_names,
        "bounds": other.bounds,
    }
    asked = replace(asked, names=names, **beside)
    before, after = ((scores.probs[:], scores.labelled()) for scores in (one, other))
    title = f"{names[0]} and {names[1]}"
    contents = prepare_report(title=title, before=before, after=after, options=asked)
    return _of_models(contents, before, replace(asked, bounds=one.bounds), doubt)


def _scores(given: Any) -> Scores:
    if isinstance(given, (str, Path)):
        return replace(Scores.read(given), name=str(given))
    return Scores.of(*given) if isinstance(given, tuple) else Scores.of(given)


def _given(*values: Any) -> Any:
    return next((one for one in values if one is not None), None)


def _names(first: str, second: str) -> tuple[str, str]:
    """The names of both scores, of files without folder and ending unless these alone differ."""
    stems = Path(first).stem, Path(second).stem
    inside = ("/".join(Path(one).parts[-2:]) for one in (first, second))
    # Long names are told apart by their ends, such as a version.
    short = (f"{one[:9]}…{one[-14:]}" if len(one) > 24 else one for one in stems)
    for a, b in (tuple(short), stems, tuple(inside), (first, second)):
        if a != b:
            return a, b
    return "the first model", "the second model"


def paired(one: Scores, other: Scores) -> tuple[Scores, Scores, list[str]]:
    """Both scores with their rows and classes in one order, and any doubt of that.

    Args:
        one: Scores of one model, with labels.
        other: Scores of the other.
    """
    other = other.in_order(one.class_names, of=one.name)
    if one.ids is not None and other.ids is not None:
        other = _by_name(one, other)
    y, z = one.labelled(), other.labelled()
    if one.is_multilabel != other.is_multilabel or (y.ndim > 1 and not one.is_multilabel):
        raise InputError(
            f"{one.name} are {one.outputs}, {other.name} {other.outputs}: give scores of one kind"
        )
    if y.shape != z.shape or one.classes != other.classes:
        raise ShapeError(
            f"two models are compared on the same samples and classes: {one.name} have {len(one):,} of "
            f"{one.classes}, {other.name} {len(other):,} of {other.classes}"
        )
    if different := int((y != z).reshape(len(y), -1).any(axis=1).sum()):
        raise InputError(
            f"{different:,} of {len(y):,} labels of {one.name} and {other.name} differ: give the samples "
            "in the same order, or name them in a column id of both"
        )
    for what in ("weights", "groups"):
        a, b = getattr(one, what), getattr(other, what)
        if a is not None and b is not None and not np.array_equal(a, b):
            raise InputError(f"the {what} of {one.name} and {other.name} differ: give those of one of them")
    named = one.ids is not None and other.ids is not None
    told = y.ndim > 1 or int((y[1:] != y[:-1]).sum()) >= len(np.unique(y))
    doubt = "Sorted labels do not prove that rows are of the same samples: name these in a column id."
    return one, other, [] if named or told else [doubt]


def _by_name(one: Scores, other: Scores) -> Scores:
    a, b = np.asarray(one.ids).astype(str), np.asarray(other.ids).astype(str)
    if np.array_equal(a, b):
        return other
    if len(np.unique(a)) < len(a) or len(np.unique(b)) < len(b):
        raise InputError("samples of one id are several rows, in another order: sort both files alike")
    common = len(np.intersect1d(a, b))
    if common < max(len(a), len(b)):
        raise InputError(
            f"{common:,} samples are in both, of {len(a):,} in {one.name} and {len(b):,} in {other.name}: "
            "two models are compared on the same samples"
        )
    return other.take(np.argsort(b)[np.argsort(np.argsort(a))])


def _of_models(contents: Contents, before: Any, asked: ReportOptions, doubt: list[str]) -> Contents:
    """Speak of two models where a report speaks of a calibration."""
    both = (judge_pair(before, replace(asked, class_names=contents.class_names)), contents.verdict)
    verdicts = []
    for side, found in zip(contents.sides, both, strict=True):
        advice = tuple(line for line in found.do if line != DEPLOY and "this calibration" not in line)
        verdicts.append(replace(found, do=advice, headline=f"{side.name}: {found.headline}"))
    says = _better(contents.sides, contents.changes)
    if contents.moved is not None:
        doubt.append(f"They name different classes for {percent(contents.moved.share)} of the samples.")
    verdict = replace(verdicts[1], gain=says, changed=tuple(doubt))
    sides = tuple(side.colored(color) for side, color in zip(contents.sides, _COLORS, strict=True))
    return replace(contents, sides=sides, verdict=verdict, other=verdicts[0])


def _better(sides: Sequence[ComparedModel], changes: Mapping[str, Change]) -> str:
    """Say which of two models is better: by a proper score, unless accuracy contradicts it."""
    known = [one for one in _PROPER if one[0] in changes]
    # The NLL is infinite where a model excludes what is true; the Brier score is not.
    name, words = next((one for one in known if not math.isnan(changes[one[0]].p)), known[0])
    old, new = (getattr(side.metrics, name).value for side in sides)
    told = f"{words} {new:.4f} against {old:.4f}{p_value(changes[name].p)}"
    was, now = (percent(side.metrics.accuracy.value) for side in sides)
    right = changes["accuracy"]
    accuracy = f"accuracy {now} of both" if was == now else f"accuracy {now} against {was}{p_value(right.p)}"
    (first, second), score, share = (side.name for side in sides), -_sign(changes[name]), _sign(right)
    if score * share < 0:
        probs, classes = (second, first) if score > 0 else (first, second)
        lead = f"{probs} has the better probabilities, {classes} the better classes"
    elif score or share:
        better, worse = (second, first) if (score or share) > 0 else (first, second)
        lead = f"{better} is better than {worse}"
    else:
        lead = "No clear difference"
    return f"{lead}: {second} has {told}, {accuracy}."


def _sign(change: Change) -> int:
    """Which way a difference goes that is more than chance; else 0."""
    # Two differences are asked, so that equal models are told apart in one of twenty cases at most.
    return int(np.sign(change.difference.value)) if change.p < 0.05 / 2 else 0
