"""What a verdict says: each sentence, each number in it, and which test decides; from tests made by hand."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calib_serve.core import text as words
from calib_serve.metrics import conclusion as verdicts
from calib_serve.metrics.conclusion import (
    DEPLOY,
    Line,
    Verdict,
    conclude,
    direction,
    line_of,
    samples_needed,
)
from calib_serve.metrics.gaps import Cells


def plain(text: str) -> str:
    return text.replace("\xa0", " ").replace("\N{MINUS SIGN}", "-")


def line(name: str = "confidence", *, p: float = 1.0, most: float = 0.01, **more: Any) -> Line:
    required = more.pop("required", name not in ("classes", "totals", "shape"))
    what = {"confidence": "the predicted class's confidence", "positive": "P(y = 1)"}.get(
        name, f"what {name} is"
    )
    tested = verdicts.Tested(
        name, what, p, more.pop("error", 0.005), most, more.pop("tolerance", 0.02), required, "open"
    )
    # A cell of 100 sure samples is proven at once.
    cells = more.pop("cells", Cells(np.array([1e6]), np.array([5e5]), np.array([5e5]), np.array([1.0])))
    return Line(
        tested, more.pop("says", f"{name} is off"), more.pop("size", 0.05), cells if required else None
    )


def said(*lines: Line, n: int = 1000, small: int = 0, kinds: int = 10, of: str = "samples") -> Verdict:
    return conclude(lines, n=n, small=small, kinds=kinds, opening="It opens.", of=of)


def cell(n: float, share: float = 0.8) -> Cells:
    """Calibrated predictions of one confidence."""
    return Cells(*(np.array([n * x]) for x in (1, share, share, share * (1 - share))))


OFF = {"p": 1e-9, "most": 0.1}


def test_a_direction_is_of_the_mean_gap_unless_gaps_cancel() -> None:
    three = ("up", "down", "both")

    def of(gaps: list[float], counts: list[float]) -> str:
        count = np.array(counts)
        return direction(Cells(count, 0.5 * count + gaps * count, 0.5 * count, count), three)

    assert of([0.1, 0.1], [10, 30]) == "up"
    assert of([-0.1, -0.1], [10, 30]) == "down"
    assert of([0.1, -0.1], [10, 10]) == "both"
    # The mean gap is half of the mean absolute gap at 3 to 1, and no more counts as cancelling below it.
    assert of([0.1, -0.1], [31, 10]) == "up"
    assert of([0.1, -0.1], [29, 10]) == "both"
    assert of([0.1, -0.1], [10, 31]) == "down"
    assert direction(Cells(np.ones(2), np.array([3.0, 0.0]), np.array([0.0, 1.0]), np.ones(2)), three) == "up"


# Which test decides


def test_levels_are_off_by_any_veto_then_open_by_what_is_required_then_calibrated() -> None:
    assert said(line()).level == "calibrated"
    assert said(line(most=0.02)).level == "no_error_found"  # at the tolerance is not below it
    assert said(line(most=0.0199)).level == "calibrated"
    assert said(line(most=0.1, p=0.05)).level == "no_error_found"
    assert said(line(most=0.1, p=0.0499)).level == "off"
    assert said(line(p=1e-9)).level == "calibrated"  # proven, and small
    assert said(line(), line("shape", most=0.9)).level == "calibrated"  # it can only veto
    assert said(line(), line("shape", **OFF)).level == "off"
    assert said(line(), line("class", most=0.9)).level == "no_error_found"
    # Of the whole an error of more than 20 points may hide: nothing is found, and nothing could be.
    assert said(line(most=0.2)).level == "no_error_found"
    assert said(line(most=0.201), line("class", most=0.01)).level == "too_little"
    assert said(line(most=0.201), line("class", **OFF)).level == "off"


def test_chances_are_corrected_as_holm_does() -> None:
    for p in itertools.permutations([0.01, 0.02, 0.04, 0.3]):
        found = [t.p for t in said(*(line("confidence", p=v, most=0.1) for v in p)).tests]
        wanted = {0.01: 0.04, 0.02: 0.06, 0.04: 0.08, 0.3: 0.3}
        assert found == pytest.approx([wanted[v] for v in p])
    assert [t.p for t in said(line(p=0.6), line(p=0.7)).tests] == [1.0, 1.0]
    # What comes later is never less than what came before: 0.02 * 2 < 0.015 * 3.
    found = [t.p for t in said(*(line(p=v, most=0.1) for v in (0.015, 0.02, 0.5))).tests]
    assert found == pytest.approx([0.045, 0.045, 0.5])
    assert [t.finding for t in said(*(line(p=v, most=0.1) for v in (0.015, 0.02, 0.5))).tests] == [
        "off", "off", "open",
    ]  # fmt: skip


ORDER = (
    *("confidence", "positive", "labels", "class", "label", "classes", "rest", "totals"),
    *("events", "highest", "shape"),
)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(ORDER, 2)))
def test_the_headline_names_the_whole_before_its_parts(first: str, second: str) -> None:
    for pair in ((first, second), (second, first)):
        found = said(line(required=True), *(line(name, **OFF) for name in pair))
        assert found.headline == f"Not calibrated: {first} is off."


def test_what_the_whole_hides_is_named_where_it_is_off_by_half_as_much_again() -> None:
    for name in ("positive", "label"):
        lines = [
            line(**OFF, size=0.04),
            line(name, **OFF, size=0.0601),
            line(name, **OFF, size=0.03, says="small"),
        ]
        assert said(*lines).headline == f"Not calibrated: {name} is off."
        assert said(lines[0], line(name, **OFF, size=0.06)).headline == "Not calibrated: confidence is off."
    for name in ("class", "shape", "totals"):
        assert said(line(**OFF, size=0.01), line(name, **OFF, size=0.5)).headline.endswith(
            "confidence is off."
        )
    # Of two of one kind the larger one.
    two = [line("class", **OFF, size=0.1, says="the one"), line("class", **OFF, size=0.2, says="the other")]
    assert said(line(), *two).headline == "Not calibrated: the other."
    assert said(line(), *two[::-1]).headline == "Not calibrated: the other."


def test_up_to_three_more_classes_are_to_be_minded() -> None:
    more = [line("class", **OFF, size=0.1 - k / 100, says=f"class {k} is off") for k in range(6)]
    found = said(line(), *more)
    assert found.headline == "Not calibrated: class 0 is off."
    assert found.do[0].startswith("A temperature cannot correct single classes")
    assert found.do[1:] == tuple(f"Mind that class {k} is off." for k in (1, 2, 3))
    labels = [line("label", **OFF, size=0.1 - k / 100, says=f"label {k} is off") for k in range(2)]
    assert said(line("labels"), *labels).do[1] == "Mind that label 1 is off."
    same = [line("classes", **OFF, says="class 0 is off"), replace(more[0]), line("shape", **OFF)]
    assert len(said(line(), *same).do) == 1  # said once


def test_the_first_that_is_required_speaks_for_the_whole_with_the_worst_single_class() -> None:
    found = said(line("shape", most=0.001), line("positive", most=0.011), line("class", most=0.018))
    assert found.do == (DEPLOY,)
    assert "no single class by" in found.headline
    assert "no single label by" in said(line("labels"), line("label")).headline
    assert [number in plain(found.headline) for number in ("1.1 points", "1.8 points", "0.1")] == [
        True,
        True,
        False,
    ]
    assert "1 of 10" in said(line(), small=1).reasons[-1]


def test_what_is_open_names_how_many_samples_would_do() -> None:
    found = said(line(most=0.03, cells=cell(1000)), line("class", most=0.9))
    needed = words.rounded_up(samples_needed(1000, cell(1000), 0.02))
    assert f"{needed:,} samples" in found.do[0]
    assert "3.0 points" in plain(found.headline)
    enough = samples_needed(1000, cell(1000), 0.02)
    assert "a wider tolerance" in said(line(most=0.03, cells=cell(enough)), n=enough).do[0]
    worst = said(line(most=0.012), line("class", most=0.04, cells=cell(100)), line("class", cells=cell(300)))
    assert [number in plain(worst.headline) for number in ("1.2 points", "4.0 points")] == [True, True]
    # Of several labels all are to be proven, with a power of 90 % together.
    labels = [line("label", most=0.9, cells=cell(n)) for n in (100, 300)]
    needed = words.rounded_up(1000 * cell(100).needed(0.02, power=0.95))
    assert f"{needed:,} samples" in said(line("labels", most=0.03), *labels).do[0]


def test_a_test_says_its_numbers() -> None:
    says = plain(line(p=0.25, error=0.012, most=0.034, tolerance=0.02).tested.says())
    assert says.startswith("The predicted class's confidence: ")
    assert re.findall(r"[\d.]+(?: points|\d)", says) == ["1.2 points", "3.4 points", "2.0 points", "0.250"]


@pytest.mark.parametrize("power", [0.5, 0.8, 0.95])
def test_so_many_samples_have_the_power_asked_for(power: float) -> None:
    """Gaps of one cell of calibrated predictions, drawn from the normal law that the bound is of."""
    n = samples_needed(100, cell(100), 0.02, power=power)
    rng = np.random.default_rng(int(100 * power))

    def proven(size: float) -> float:
        one = cell(size)
        came = one.said[0] + rng.normal(size=2000) * math.sqrt(one.noise[0])
        return float(
            np.mean([Cells(one.count, one.said, np.array([c]), one.noise).within(0.02) for c in came])
        )

    assert proven(n) == pytest.approx(power, abs=0.04)
    assert proven(n / 2) < power - 0.04


def test_classes_that_so_many_samples_make_it_judge_are_counted() -> None:
    """One in fifty predictions is of the second class: from 25,000 samples on it is judged alone."""
    counts = np.array([980.0, 20.0])
    classes = Cells(counts, 0.6 * counts, 0.6 * counts, 0.24 * counts)
    alone = samples_needed(1000, cell(1000), 0.003, classes=None)
    assert alone > 100_000
    both = samples_needed(1000, cell(1000), 0.003, classes=classes, of_class=0.005)
    assert both > 2 * alone
    assert samples_needed(1000, cell(1000), 0.05, classes=classes, of_class=0.1) < 25_000
    first = Cells(*(one[:1] for one in (classes.count, classes.said, classes.came, classes.noise)))
    few, wanted = (samples_needed(1000, cell(1000), 0.02, classes=c, of_class=0.02) for c in (classes, first))
    assert few == wanted, "of fewer the second class is not judged, however many times those there are"
    assert 2000 < few < 22_000


def test_a_line_of_cells_has_their_numbers() -> None:
    cells = Cells(np.array([400.0]), np.array([300.0]), np.array([280.0]), np.array([75.0]))
    found = line_of("class", "what", cells, "says", 0.03, required=True)
    assert found.tested == verdicts.Tested(
        "class", "what", cells.p, cells.error, cells.most, 0.03, True, "open"
    )
    assert (found.says, found.size, found.cells) == ("says", 0.05, cells)
    assert found.times == cells.needed(0.03)


def test_a_verdict_as_json_has_none_for_nan_and_lists_for_tuples() -> None:
    one = verdicts.Tested("shape", "what", math.nan, math.inf, 0.1, 0.02, False, "open")
    found = Verdict("off", "Head.", ("Why.",), (one,), ("Do.",), ("Changed.",), "Gain.")
    assert str(found) == "Gain. Head. Why. Changed. Do."
    assert found.as_dict() == {
        "level": "off", "headline": "Head.", "reasons": ["Why."], "do": ["Do."], "changed": ["Changed."],
        "gain": "Gain.",
        "tests": [
            {
                "name": "shape", "what": "what", "p": None, "error": None, "most": 0.1, "tolerance": 0.02,
                "required": False, "finding": "open",
            }
        ],
    }  # fmt: skip
