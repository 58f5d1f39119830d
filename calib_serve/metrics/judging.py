"""Judge a model: calibrated where that is proven, off where an error is, else the possible error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.arrays import Codes, Floats, some_of
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.options.base import changed
from calib_serve.core.options.evaluate import JudgeOptions, VerdictOptions
from calib_serve.core.text import percent, points
from calib_serve.metrics.conclusion import (
    CALIBRATE,
    Line,
    Tested,
    Verdict,
    conclude,
    direction,
    line_of,
)
from calib_serve.metrics.distributions import events_chance
from calib_serve.metrics.gaps import RISK, Cells, ClassGap, class_gaps, class_totals, equal_mass, finest
from calib_serve.metrics.intervals import NORMAL_95
from calib_serve.metrics.labels import checked_label_probs, confidence_of_labels
from calib_serve.metrics.measured import MOST_SAMPLES_JUDGED, MOST_SAMPLES_SHAPED
from calib_serve.metrics.refinement import Separation
from calib_serve.metrics.samples import checked, design_effect, row_blocks, weighing_rows
from calib_serve.metrics.shape import Pair, Shape, shape_of_event, shape_of_top_two
from calib_serve.scores import ProbsView, Scores, check_ungrouped

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import JudgeKeywords


_RARE = 0.1  # share of an event, below which its error is judged relative to it
_RELATIVE_TOLERANCE = 0.2  # of expected events: how far they may be off
_WAYS = ("too high", "too low", "too high in some ranges and too low in others")


@dataclass(frozen=True, eq=False)
class _Sample:
    """Checked predictions (n,): the two largest probabilities, and whether each class came true."""

    predicted: Codes
    first: Floats
    right: Floats
    second: Floats
    was_second: Floats
    groups: Codes | None
    names: tuple[str, ...]
    asked: VerdictOptions
    weight: Floats | None = None

    @classmethod
    def of(
        cls,
        p: NDArray[np.floating[Any]],
        y: Codes,
        *,
        groups: Codes | None,
        names: tuple[str, ...],
        asked: VerdictOptions,
        weight: Floats | None = None,
    ) -> _Sample:
        """Read probabilities (n, K) block by block, with class ids (n,)."""
        n = len(p)
        predicted = np.empty(n, np.intp)
        first, right, second, was = np.empty((4, n))
        for rows, block in row_blocks(p):
            at, top = np.arange(len(block)), block.argmax(axis=1)
            first[rows] = np.clip(block[at, top], 0, 1)
            block[at, top] = -1
            below = block.argmax(axis=1)
            second[rows] = np.minimum(np.clip(block[at, below], 0, 1), 1 - first[rows])
            predicted[rows], right[rows], was[rows] = top, y[rows] == top, y[rows] == below
        return cls(predicted, first, right, second, was, groups, names, asked, weight)

    def spaced(self) -> _Sample:
        """All samples, or some spread over very many, for the costly test of shape."""
        if len(self.first) <= MOST_SAMPLES_SHAPED:
            return self
        on = some_of(len(self.first), MOST_SAMPLES_SHAPED)
        rows: dict[str, Any] = {
            name: row[on] for name, row in vars(self).items() if isinstance(row, np.ndarray)
        }
        return replace(self, **{**rows, "groups": _codes(rows.get("groups"))})


def judge_probs(
    probs: ArrayLike,
    labels: ArrayLike,
    options: VerdictOptions | None = None,
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    class_names: Sequence[str] = (),
) -> Verdict:
    """Judge whether probabilities are calibrated within a tolerance.

    See ``judge``, which takes scores of any kind, for what is decided.

    Args:
        probs: Probabilities (n, K), an array or a view of scores; (n, L) of a multi-label model.
        labels: Class ids (n,); (n, L) of 0 and 1, which are judged label by label.
        options: Tolerances; None: the defaults.
        sample_weight: (n,); None: all weigh the same.
        groups: Which samples belong together (n,), numbers or text; None: each is its own.
        class_names: Name of each class; ids where there are none.

    Raises:
        InputError: For arrays that cannot be right, or where a multi-label model's samples have groups.
        ShapeError: Where shapes do not fit.
    """
    asked, several = options or VerdictOptions(), np.ndim(labels) == 2
    if several:
        check_ungrouped(groups)
    p: Any
    y: Any
    if isinstance(probs, ProbsView):
        p, y = probs, np.asarray(labels)
    else:
        p, y = checked_label_probs(probs, labels) if several else checked(probs, labels)
    p, y, weight, codes = weighing_rows(p, y, sample_weight, groups)
    names = tuple(class_names) or tuple(str(k) for k in range(p.shape[1]))
    if len(names) != p.shape[1]:
        raise ShapeError(f"{p.shape[1]} {'labels' if several else 'classes'} but {len(names)} class names")
    if several:
        return _judged_labels(np.asarray(p, np.float64), y, names, weight, asked)
    n = len(p)
    # By then bounds lie far below any usual tolerance; more rows would only take time.
    if n > MOST_SAMPLES_JUDGED:
        some = some_of(n, MOST_SAMPLES_JUDGED)
        p, y, codes = p.take(some, axis=0), y[some], _codes(None if codes is None else codes[some])
        weight = None if weight is None else weight[some]
    sample = _Sample.of(p, y, groups=codes, weight=weight, names=names, asked=asked)
    lines = _of_confidence(sample)
    if p.shape[1] == 2:
        # The first required line speaks for the whole, and P(y = 1) bounds the confidence's gap.
        lines = [*_of_positive(sample), *lines]
    gaps, small = class_gaps(
        sample.first, sample.right, sample.predicted, names, sample.groups, weight=sample.weight
    )
    lines += _of_classes(sample, gaps)
    if p.shape[1] > 2:
        spread = sample.spaced()
        pairs = Pair(spread.first, spread.right), Pair(spread.second, spread.was_second)
        shape = shape_of_top_two(*pairs, spread.predicted, spread.groups, spread.weight)
        lines += [_of_totals(p, y, sample), _of_shape(shape, asked.tolerance)]
    found = conclude(
        lines,
        n=len(p),
        of_class=asked.of_class,
        small=small,
        kinds=p.shape[1],
        opening=_opening(sample, n),
    )
    # A model read upside down fails every test; that it is, is what to be told, not to calibrate it.
    turned = _turned_around(sample) if p.shape[1] == 2 else ""
    return replace(found, do=(turned, *(line for line in found.do if line != CALIBRATE))) if turned else found


def _turned_around(s: _Sample) -> str:
    """Warn that class 1 is surely rarer where its probability is higher; "" where it is not."""
    p, came = _event(s)
    ranks = Separation.of(p, came)
    area, error = float(ranks.auroc()), float(ranks.auroc_error())
    error *= math.sqrt(design_effect(p - came, s.groups))
    if not area + 3.29 * error < 0.5:  # also NaN; nobody asked, so p < .001
        return ""
    return (
        f"Class “{s.names[1]}” is rarer where its probability is higher (AUROC {area:.2f}): these may be "
        "the scores of the other class; find out which they speak of."
    )


def _of_confidence(s: _Sample) -> list[Line]:
    tolerance = s.asked.tolerance
    cells = finest(
        lambda b: Cells.of(s.first, s.right, equal_mass(s.first, b), s.groups, s.weight), tolerance
    )
    way = direction(cells, ("overconfident", "underconfident", "too sure in some ranges and not in others"))
    said = f"{way}, on average {points(cells.error)} off"
    what = "the predicted class's confidence"
    return [line_of("confidence", what, cells, said, tolerance, required=len(s.names) != 2)]


def _of_positive(s: _Sample) -> list[Line]:
    """Test P(y = 1) of two classes, whose mean absolute gap is at least the confidence's."""
    is_one, (p, came) = s.predicted == 1, _event(s)
    share = float(is_one.mean())
    tolerance = held_to(s.asked.tolerance, float(np.average(came, weights=s.weight)), len(came))

    def split(cells: int) -> Cells:
        above = max(round(cells * share), 1)
        cell = np.zeros(len(p), np.intp)
        for side, of_side, count in ((0, is_one, above), (1, ~is_one, cells - above)):
            if of_side.any():
                cell[of_side] = 1000 * side + equal_mass(p[of_side], count)
        return Cells.of(p, came, cell, s.groups, s.weight)

    cells = finest(split, tolerance)
    said = f"P(y = 1) is {direction(cells, _WAYS)}, on average {points(cells.error)} off"
    some = s.spaced()
    return [
        line_of("positive", "P(y = 1)", cells, said, tolerance, required=True),
        _of_shape(shape_of_event(*_event(some), some.groups, some.weight), s.asked.tolerance),
        *_of_events(s, p, came),
    ]


def held_to(tolerance: float, share: float, n: float) -> float:
    """The tolerance of an event's probability: at most a fifth of its share, for an event below 10 %.

    Args:
        tolerance: Largest mean gap, a fraction.
        share: Share of the event among the samples; of one above a half the share of its absence counts.
        n: Number of samples.

    >>> held_to(0.02, 0.5, 1000), held_to(0.02, 0.01, 1000), round(held_to(0.02, 0.995, 1000), 6)
    (0.02, 0.002, 0.001)
    """
    # Of an event of 0.5 % a tolerance of two points would allow a probability that is always 0.
    rare = max(min(share, 1 - share), 1 / n)
    return tolerance if rare >= _RARE else min(tolerance, _RELATIVE_TOLERANCE * rare)


def _event(s: _Sample) -> tuple[Floats, Floats]:
    """P(y = 1) (n,) and whether class 1 is true, of two classes."""
    is_one = s.predicted == 1
    return np.where(is_one, s.first, 1 - s.first), np.where(is_one, s.right, 1 - s.right)


def _codes(groups: Codes | None) -> Codes | None:
    """Group codes of some samples, without gaps; None where each is its own group, or all are one."""
    if groups is None:
        return None
    found, codes = np.unique(groups, return_inverse=True)
    return codes.astype(np.intp) if 1 < len(found) < len(groups) else None


def _of_events(s: _Sample, p: Floats, came: Floats) -> list[Line]:
    """Relative errors of the rarer class's expected against observed events: of all, of the highest percent.

    The tolerance in points says nothing of an event that is rarer than it.
    """
    if (rare := _rarer(p, came, s.weight)) is None:
        return []
    p, came, of_one = rare
    high = p >= np.quantile(p, 0.99)
    groups = None if s.groups is None else s.groups[high]
    weight = None if s.weight is None else s.weight[high]
    whole, end = ("", "highest") if of_one else (f"of class “{s.names[0]}”", "lowest")
    end = f"of the {end} percent of P(y = 1)"
    return [
        _line_of_events("events", whole, p, came, groups=s.groups, weight=s.weight),
        _line_of_events("highest", end, p[high], came[high], groups=groups, weight=weight),
    ]


def _rarer(p: Floats, came: Floats, weight: Floats | None) -> tuple[Floats, Floats, bool] | None:
    """The probabilities (n,) and outcomes (n,) of an event, or of its absence, below 10 %; None of others."""
    share = float(np.average(came, weights=weight))
    if min(share, 1 - share) >= _RARE:
        return None
    return (p, came, True) if share < _RARE else (1 - p, 1 - came, False)


def _line_of_events(
    name: str, whose: str, p: Floats, came: Floats, *, groups: Codes | None = None, weight: Floats | None
) -> Line:
    """Test expected events against those that occur, by the exact distribution of independent ones."""
    cells = Cells.of(p, came, np.zeros(len(p), np.intp), _codes(groups), weight)
    said, seen = float(cells.said[0]), float(cells.came[0])
    error = math.sqrt(cells.effect * float(cells.noise[0]) + 1)
    apart, least = abs(said - seen), max(said, 1e-12)
    # Only what is surely off counts, so that the tolerance is of the truth and not of chance.
    beyond = max(apart - NORMAL_95 * error, 0.0) / max(said, seen, 1e-12)
    surely = beyond > _RELATIVE_TOLERANCE / 2
    tested = Tested(
        name,
        f"expected events {whose}".rstrip(),
        events_chance(p, seen, weight, effect=cells.effect) if surely else 1.0,
        apart / least,
        (apart + NORMAL_95 * error) / least,
        _RELATIVE_TOLERANCE,
        required=False,
    )
    words = f"{said:,.0f} events are expected and {seen:,.0f} occur (O/E {seen / least:.2f})"
    return Line(tested, f"{whose}, {words}" if whose else words, cells.error)


def _of_classes(s: _Sample, gaps: Sequence[ClassGap]) -> list[Line]:
    whole = Cells.of(s.first, s.right, s.predicted, s.groups, s.weight)
    worst = min(gaps, key=lambda g: g.cells.p)
    said = f"of the {len(s.names)} classes, predictions are on average {points(whole.error)} off"
    lines = [line_of("classes", "the predicted classes together", whole, said, s.asked.tolerance)]
    for gap in gaps:
        what = f"predictions of class “{gap.name}”" if gap.name is not None else "classes not judged alone"
        name = "class" if gap.name is not None else "rest"
        lines.append(line_of(name, what, gap.cells, gap.says, s.asked.of_class, required=True))
    # Which class it is says more than that there is one.
    if len(gaps) * worst.cells.p < RISK and not worst.cells.within(s.asked.of_class):
        lines[0] = replace(lines[0], says=worst.says)
    return lines


def _of_totals(p: NDArray[np.floating[Any]], y: Codes, s: _Sample) -> Line:
    found = class_totals(p, y, s.predicted, s.groups, s.weight)
    said = f"class “{s.names[found.k]}” is expected {found.expected:,.0f} times and occurs {found.occurs:,}"
    size, what = abs(found.gap), "how often each class occurs"
    tested = Tested("totals", what, found.p, size, found.most, s.asked.of_class, required=False)
    return Line(tested, f"{said} times", size)


def _of_shape(found: Shape, tolerance: float) -> Line:
    said = f"errors that cancel over its ranges or classes are about {points(found.size)}, root mean square"
    what, most = "errors that cancel in bins", found.most
    tested = Tested("shape", what, found.p, found.size, most, tolerance, required=False)
    return Line(tested, said, found.size)


def _opening(s: _Sample, n: int) -> str:
    right, said = (float(np.average(row, weights=s.weight)) for row in (s.right, s.first))
    gap = said - right
    of_all = f" (spread over all {n:,})" if len(s.first) < n else ""
    return (
        f"It is right in {percent(right)} of {len(s.first):,} predictions{of_all} and says "
        f"{percent(said)} on average: {points(gap)} too {'much' if gap > 0 else 'little'}."
    )


def _judged_labels(
    p: Floats, y: Codes, names: Sequence[str], weight: Floats | None, asked: VerdictOptions
) -> Verdict:
    """Judge probabilities of labels (n, L) against whether each is true (n, L), 0 or 1.

    The mean absolute gap of P(label), over cells of each label, must be below the tolerance, and each label's
    own below that of a label alone.
    """
    lines = [_of_all(p, y, asked.tolerance, weight)]
    for k, name in enumerate(names):
        lines += _of_label(p[:, k], y[:, k], name, weight, tolerance=asked.of_class)
    return conclude(lines, n=len(p), kinds=len(names), opening=_opening_of_labels(p, y, weight))


def _of_all(p: Floats, y: NDArray[np.intp], tolerance: float, weight: Floats | None) -> Line:
    n, labels = p.shape
    # Labels of a sample move together, so each sample is a group.
    samples = np.repeat(np.arange(n), labels) if labels > 1 and n > 1 else None
    cell = np.column_stack([2 * k + equal_mass(p[:, k], 2) for k in range(labels)])
    of_each = None if weight is None else np.repeat(weight, labels)
    cells = Cells.of(p.ravel(), y.ravel().astype(np.float64), cell.ravel(), samples, of_each)
    said = f"the labels' probabilities are on average {points(cells.error)} off"
    return line_of("labels", "P(label)", cells, said, tolerance, required=True)


def _of_label(
    p: Floats, came: NDArray[np.intp], name: str, weight: Floats | None, *, tolerance: float
) -> list[Line]:
    true = came.astype(np.float64)
    tolerance = held_to(tolerance, float(np.average(true, weights=weight)), len(true))
    cells = finest(lambda b: Cells.of(p, true, equal_mass(p, b), None, weight), tolerance)
    said = (
        f"the probability of label “{name}” is {direction(cells, _WAYS)}, by {points(cells.error)} on average"
    )
    found = [line_of("label", f"P(“{name}”)", cells, said, tolerance, required=True)]
    if rare := _rarer(p, true, weight):
        whose = f"{'of' if rare[2] else 'without'} label “{name}”"
        found.append(_line_of_events("events", whose, *rare[:2], weight=weight))
    return found


def _opening_of_labels(p: Floats, y: NDArray[np.intp], weight: Floats | None) -> str:
    confidence, right = (np.average(part, axis=0, weights=weight) for part in confidence_of_labels(p, y))
    return (
        f"Of {len(p):,} samples with {p.shape[1]:,} labels each, {percent(float(right.mean()))} of the "
        f"decisions at 0.5 are right, at a confidence of {percent(float(confidence.mean()))} on average."
    )


def judge(
    scores: Any,
    labels: Any = None,
    options: JudgeOptions | None = None,
    **keywords: Unpack[JudgeKeywords],
) -> Verdict:
    """Tell whether a model's scores are calibrated against its labels, within a tolerance.

    Of more than 500,000 samples, as many that are spread over all are judged. "calibrated": upper 95 % bounds
    lie below the tolerance, of the mean absolute gap of the confidence (two classes: of P(y = 1), which
    bounds it), and below ``class_tolerance``, 1.5 times as much unless given, for each class with 500
    predictions or one in twenty of all. An event rarer than 10 % is held to a fifth of its share, where that
    is less. "off": a test proves an error (5 % over all tests, Holm 1979) that may be beyond the tolerance.
    Else "no_error_found", or "too_little" where an error of 20 points might hide. Tests of class shares and
    of shape (see ``calib_serve.metrics.gaps``) can only veto.

    Args:
        scores: Probabilities or logits (n, K), an array or a frame, or ``Scores``; as in ``Scores.of``.
        labels: Class ids or names (n,); (n, L) of 0 and 1 of a multi-label model, which is judged label by
            label; by default those in ``scores``.
        options: A ``JudgeOptions``; keywords replace its fields.
        **keywords: Fields of ``JudgeOptions``: ``class_names``, ``class_tolerance``, ``columns``,
            ``groups``, ``ignore_label``, ``missing``, ``outputs``, ``sample_weight``, ``schema``,
            ``tolerance``.

    Raises:
        InputError: For arrays, names and options that cannot be right; ShapeError for other shapes.

    >>> import numpy as np
    >>> p = np.tile([[0.7, 0.3], [0.3, 0.7]], (500, 1))
    >>> judge(p, p.argmax(axis=1)).headline.replace(chr(160), " ")  # says 70 %, and is always right
    'Not calibrated: underconfident, on average 30.0 points off.'
    >>> judge(p[:4], p[:4].argmax(axis=1)).level
    'too_little'
    """
    asked = changed(options or JudgeOptions(), keywords, judge)
    scored = Scores.of(scores, labels, **asked.of_scores)
    y = scored.labelled()
    if y.ndim > 1 and not scored.is_multilabel:
        raise InputError("soft labels are for fits, nll and brier; a verdict wants one class a sample")

    def judged(probs: Any) -> Verdict:
        beside: dict[str, Any] = {"sample_weight": scored.weights, "groups": scored.clusters}
        return judge_probs(probs, y, asked, **beside, class_names=scored.class_names)

    found = judged(scored.probs[:] if scored.is_multilabel else scored.probs)
    if scored.bounds is not None and np.ptp(scored.bounds, axis=1).any():
        found = _within_bounds(found, scored, judged)
    return replace(found, reasons=(*found.reasons, *scored.remarks))


def _within_bounds(found: Verdict, scored: Scores, judged: Callable[[Any], Verdict]) -> Verdict:
    """The verdict where it holds for every confidence within the bounds, else that no error was found.

    In cells of like predictions the confidences are moved between their bounds: as near to the share that is
    right as they come, where an error must be left; else to the farther end in each, and to each end in all.
    """
    if found.level == "too_little":
        return found
    y, p = scored.labelled(), scored.probs[:]
    top, (low, high) = p.argmax(axis=1), scored.bounds.T  # type: ignore[union-attr]  # asked of the caller
    weight = np.ones(len(p)) if scored.weights is None else scored.weights
    _, cell = np.unique(equal_mass(p.max(axis=1), 10) * scored.classes + top, return_inverse=True)
    least, most, right = (
        np.bincount(cell, weight * x) / np.bincount(cell, weight) for x in (low, high, y == top)
    )
    if found.level == "off":
        parts = [np.clip((right - least) / np.maximum(most - least, 1e-12), 0, 1)]
    else:
        parts = [(right - least < most - right).astype(np.float64), np.zeros(len(right)), np.ones(len(right))]
    moved = [judged(scored.with_confidence(low + part[cell] * (high - low))) for part in parts]
    if all(one.level == found.level for one in moved):
        widest = max(moved, key=lambda one: sum(test.most for test in one.tests if test.required))
        return found if found.level == "off" else replace(widest, reasons=found.reasons)
    width = points(float(np.average(high - low, weights=weight)))
    headline = f"Not known: the confidence is open by {width} on average."
    do = "Ask the server for more top_logprobs."
    return replace(found, level="no_error_found", headline=headline, do=(do,))
