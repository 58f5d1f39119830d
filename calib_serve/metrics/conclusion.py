"""From tests to a verdict: any veto beats every bound, and the headline names the deciding test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from calib_serve.core.arrays import finite
from calib_serve.core.options.base import Tolerant
from calib_serve.core.text import chance, percent, percent_change, points, rounded_up
from calib_serve.metrics.distributions import equivalence_power
from calib_serve.metrics.gaps import FEW, RISK, Cells, judged_alone

DEPLOY = "Deploy it, and watch it with live labels: calibration lasts only as long as its data."
TOLERANCE = Tolerant.tolerance
"""How far confidence may be from the truth on average, unless told otherwise: two points."""
_ORDER = (
    *("confidence", "positive", "labels", "class", "label", "classes", "rest", "totals"),
    *("events", "highest", "shape"),
)
CALIBRATE = "Calibrate it on held-out samples of the data that it will meet, then test again."
MORE = "Try a more flexible method, or more calibration samples, and compare on held-out data."
_REPAIR = {
    "confidence": CALIBRATE,
    "positive": "Fit platt, beta or isotonic, not a temperature, on samples with the class shares that it "
    "will meet.",
    **dict.fromkeys(
        ("class", "classes", "rest"),
        "A temperature cannot correct single classes; a method with a number per class can.",
    ),
    **dict.fromkeys(
        ("label", "labels"),
        "Calibrate each label, by platt or isotonic, on held-out samples of the data that it meets, with "
        "enough samples in which the label is true.",
    ),
    "totals": "Its share changed, or its probability is off: fit a method with a number per class on samples "
    "with the shares of the classes that it will meet.",
    "events": "Fit platt, beta or isotonic on samples with the share of events that it will meet.",
    "highest": "Its highest probabilities are off: fit platt, beta or isotonic on more events.",
    "shape": "Try a method that sees all classes (vector, matrix, Dirichlet), or retrain.",
}

Level = Literal["calibrated", "no_error_found", "too_little", "off"]
"""``calibrated``: the error is proven to be within the tolerance; ``off``: an error is proven, and may be
beyond it. Else ``no_error_found``: a large one would have been seen; ``too_little``: not even that."""


@dataclass(frozen=True)
class Line:
    """A test, its sentence for a veto, its size, and the cells of a bound."""

    tested: Tested
    says: str
    size: float
    cells: Cells | None = None

    @property
    def times(self) -> float:
        """How many times the samples a calibrated model needs to be proven calibrated."""
        return 0.0 if self.cells is None else self.cells.needed(self.tested.tolerance)


def line_of(
    name: str,
    what: str,
    cells: Cells,
    says: str,
    tolerance: float,
    *,
    required: bool = False,
) -> Line:
    """The line of a test of cells.

    Args:
        name: Kind of the test.
        what: The same in words.
        cells: Sums of probabilities and events.
        says: Sentence for a veto.
        tolerance: Largest mean gap that is within, a fraction.
        required: Whether "calibrated" needs this bound.
    """
    return Line(
        Tested(name, what, cells.p, cells.error, cells.most, tolerance, required), says, cells.error, cells
    )


def direction(cells: Cells, words: tuple[str, str, str]) -> str:
    """Choose one of three words: for gaps up, down, or of both signs, which cancel in the mean gap.

    Args:
        cells: Sums of probabilities and events.
        words: For gaps up, for gaps down, and for both.
    """
    mean = float((cells.said - cells.came).sum() / cells.count.sum())
    if abs(mean) < cells.error / 2:
        return words[2]
    return words[0] if mean > 0 else words[1]


def conclude(
    lines: Sequence[Line],
    *,
    n: float,
    opening: str,
    of_class: float = 1.0,
    small: int = 0,
    kinds: int = 0,
    of: str = "samples",
    risk: float = RISK,
) -> Verdict:
    """The verdict of all tests. Any veto beats every bound.

    Args:
        lines: Tests, with the cells of those that have a bound.
        n: Number of samples.
        opening: First of the reasons, a sentence.
        of_class: Largest mean gap of a class judged alone, a fraction.
        small: Number of classes that have too few predictions to be judged alone.
        kinds: Number of all classes.
        of: What the samples are called.
        risk: How often any test may accuse a calibrated model, a probability.
    """
    corrected = _holm([line.tested.p for line in lines])
    done = [_found(line, p, risk) for line, p in zip(lines, corrected, strict=True)]
    vetoes = [line for line in done if line.tested.finding == "off"]
    # Tests without a bound can veto, and prove nothing: they are not asked for here.
    missing = [line for line in done if line.tested.required and line.tested.finding != "within"]
    main = next(line for line in done if line.tested.required)
    # An error that may be larger than 20 points is no finding, where nothing is proven.
    unproven: Level = "too_little" if main.tested.most > 0.2 else "no_error_found"
    level: Level = "off" if vetoes else unproven if missing else "calibrated"
    tests = tuple(line.tested for line in done)
    note = (
        f"Too few predictions (under {FEW}) to judge {small:,} of {kinds:,} classes alone." if small else ""
    )
    do: list[str] = []
    if level == "off":
        first = _leading(vetoes)
        headline = f"Not calibrated: {first.says}."
        do.append(_REPAIR[first.tested.name])  # what it hides shows once that is repaired
        # What else is off in the whole may be gone once the first is mended; single classes are not.
        alone = [v for v in vetoes if v.tested.alone and v is not first]
        for line in sorted(alone, key=lambda v: -v.size)[:3]:
            if line.says != first.says:
                do.append(f"Mind that {line.says}.")
    elif level == "too_little":
        headline = f"Too little to say anything: {n:,.0f} {of if n != 1 else of.removesuffix('s')}."
        do.append(_more(main, done, n, of_class, of))
    elif level == "no_error_found":
        worst = max(missing, key=lambda line: line.times).tested
        headline = f"No error found in {n:,.0f} {of}: {_open(main.tested, worst)}."
        do.append(_more(main, done, n, of_class, of))
    else:
        headline, do = _calibrated(main.tested, done, note), [DEPLOY]
    reasons = (opening, note) if note else (opening,)
    return Verdict(level, headline, reasons, tests, tuple(do))


def gain_of(eces: Sequence[tuple[str, float, float, float]]) -> str:
    """Report the gain of a calibration, from each (what, ECE before, after, and of chance alone).

    >>> gain_of([("", 0.255, 0.034, 0.031)]).replace(chr(160), " ")
    'ECE 25.5 -> 3.4 %; chance alone shows 3.1 %.'
    """
    moved = ", ".join(
        f"{what and f'of {what} '}{percent_change(before, after)}" for what, before, after, _ in eces
    )
    floors = [percent(floor) for *_, floor in eces if not math.isnan(floor)]
    return f"ECE {moved}" + (f"; chance alone shows {' and '.join(floors)}." if floors else ".")


def of_own_samples(found: Verdict, why: str) -> Verdict:
    """The verdict on the samples of the fit itself: it proves nothing of others.

    Args:
        found: Verdict on these samples.
        why: Why they are of the fit, in words.

    >>> of_own_samples(Verdict("calibrated", "Calibrated."), "these are the samples of the fit").level
    'too_little'
    """
    headline = f"Nothing is known of new samples: {why}, and a fit looks better on those."
    do = "Give samples that the fit has not seen."
    return replace(
        found, level="too_little", headline=headline, reasons=(found.headline, *found.reasons), do=(do,)
    )


def _holm(p: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values: one below 5 % is seen in 5 % of calibrated models (Holm 1979)."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    found, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min((len(p) - rank) * p[i], 1.0))
        found[i] = worst
    return found


def _found(line: Line, p: float, risk: float) -> Line:
    t = line.tested
    finding: Literal["within", "open", "off"]
    finding = "within" if t.most < t.tolerance else "off" if p < risk else "open"
    return replace(line, tested=replace(t, p=p, finding=finding))


def _leading(vetoes: Sequence[Line]) -> Line:
    """Choose the headline's test: the whole, unless a class that it hides is off by half as much again."""
    # What is off in the whole is often off in its parts, too: the whole is repaired first.
    ranked = sorted(vetoes, key=lambda line: (_ORDER.index(line.tested.name), -line.size))
    hidden = max(
        (line for line in vetoes if line.tested.name in ("positive", "label")),
        key=lambda line: line.size,
        default=ranked[0],
    )
    return hidden if hidden.size > 1.5 * ranked[0].size else ranked[0]


def _calibrated(main: Tested, done: Sequence[Line], note: str) -> str:
    of_classes = [line.tested.most for line in done if line.tested.alone]
    noun = "label" if any(line.tested.name == "label" for line in done) else "class"
    each = f", no single {noun} by more than {points(max(of_classes))}" if of_classes else ""
    tail = f" {note}" if note else ""
    return f"Calibrated: {main.what} is off by at most {points(main.most)} on average{each}.{tail}"


def _open(main: Tested, worst: Tested) -> str:
    """What is not proven: of the whole, or of the part that needs the most samples."""
    if main.finding != "within":
        return f"{main.what} may still be off by up to {points(main.most)} on average"
    proven = f"{main.what} is off by at most {points(main.most)} on average"
    return f"{proven}, but {worst.what} may be off by up to {points(worst.most)}"


def _more(main: Line, done: Sequence[Line], n: float, of_class: float, of: str) -> str:
    limit, enough = points(main.tested.tolerance), _enough(main, done, n, of_class)
    if enough <= n:
        return f"Give more {of}, or allow a wider tolerance: this is close to its limit of {limit}."
    return f"About {rounded_up(enough):,} {of} would prove a calibrated model to be within {limit}."


def _enough(main: Line, done: Sequence[Line], n: float, of_class: float) -> float:
    """The number of samples that would prove a calibrated model."""
    classes = next((line.cells for line in done if line.tested.name == "classes"), None)
    assert main.cells is not None, "what is required is a bound"
    found = samples_needed(n, main.cells, main.tested.tolerance, classes=classes, of_class=of_class)
    labels = [(line.cells, line.tested.tolerance) for line in done if line.tested.name == "label"]
    each = [cells.needed(limit, power=1 - 0.1 / len(labels)) for cells, limit in labels if cells is not None]
    return max([found, *(n * times for times in each)])


@dataclass(frozen=True)
class Tested:
    """One thing that was tested; NaN stands for what such a test does not tell.

    Args:
        name: Kind of the test.
        what: The same in words.
        p: How often a calibrated model shows as much, corrected for all tests.
        error: Mean absolute gap that was seen, a fraction.
        most: Its upper 95 % bound.
        tolerance: Largest error that is within, a fraction.
        required: Whether "calibrated" needs this bound; other tests can only veto.
        finding: "within" where the bound is below the tolerance, "off" where an error is proven that may be
            beyond, else "open".
    """

    name: str
    what: str
    p: float
    error: float
    most: float
    tolerance: float
    required: bool
    finding: Literal["within", "open", "off"] = "open"

    @property
    def alone(self) -> bool:
        """Tell whether the test is of a class or label alone, of which there may be many."""
        return self.name in ("class", "label")

    def says(self) -> str:
        """The result of the test in a sentence."""
        return (
            f"{self.what[0].upper()}{self.what[1:]}: an error of {points(self.error)}, surely not above "
            f"{points(self.most)}; the tolerance is {points(self.tolerance)}. The chance of as much, if it "
            f"were calibrated, over all tests: {chance(self.p)}."
        )


@dataclass(frozen=True)
class Verdict:
    """Tell whether a model is calibrated, why, and what to do; as text, it is all sentences.

    Args:
        level: "calibrated", "off", "no_error_found" or "too_little".
        headline: The finding in one sentence.
        reasons: Why, a sentence each.
        tests: Each test that was made.
        do: Advice, a sentence each.
        changed: Other changes by a calibration, where it is compared with none.
        gain: Gain of the calibration, said first.

    >>> found = Verdict("too_little", "Too little to say anything: 3 samples.", do=("Test on 5,000.",))
    >>> print(found)
    Too little to say anything: 3 samples. Test on 5,000.
    """

    level: Level
    headline: str
    reasons: tuple[str, ...] = ()
    tests: tuple[Tested, ...] = ()
    do: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gain: str = ""

    def __str__(self) -> str:
        first = (self.gain, self.headline) if self.gain else (self.headline,)
        return " ".join((*first, *self.reasons, *self.changed, *self.do))

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON; None stands for NaN."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        tests = [{name: finite(value) for name, value in vars(test).items()} for test in self.tests]
        return {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()} | {"tests": tests}


def samples_needed(
    n: float,
    cells: Cells,
    tolerance: float,
    *,
    classes: Cells | None = None,
    of_class: float = 1.0,
    power: float = 0.8,
) -> int:
    """How many samples like these ``n`` make ``judge`` say "calibrated" with this power, if it is.

    The mean absolute gap over ``cells`` must be proven to be below the ``tolerance``; of ``classes``, a cell
    for the predictions of each, that of those which so many samples make it judge alone, below ``of_class``.
    """
    distance = cells.distance(tolerance)
    of_each = np.empty(0) if classes is None else classes.distances(of_class)

    def fails(times: float) -> float:
        wrong = 1 - float(equivalence_power(distance * times, len(cells.count), risk=RISK))
        if classes is not None:
            # By a tenth more, as the number that is told is rounded up.
            alone = judged_alone(classes.count * times * 1.1, n * times * 1.1)
            wrong += float((1 - equivalence_power(of_each[alone] * times, 1, risk=RISK)).sum())
        return wrong

    # Power rises with the samples, so that doubling and halving find where it is enough.
    low, high = 0.0, 1.0
    while fails(high) > 1 - power:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fails(middle) > 1 - power else (low, middle)
    return math.ceil(n * high)
