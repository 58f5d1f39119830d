"""Contracts: what a YAML document says is what the artifact promises, or it is refused with a reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from calib_serve import Artifact
from calib_serve.artifact import Clause, Contract, LogitMap
from calib_serve.core.errors import CalibServeError, InputError

PLAIN = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3)
ACT = "act: {above: 0.9, accuracy: 0.98}"
WHOLE = """
contract: 1
per: 7d
act: {above: 0.9, accuracy: 0.98, per: 30d}
segments:
  de: {act: {above: 0.95, accuracy: 0.99}}
classes:
  cat: {act: {above: 0.97, accuracy: 0.999}}
"""


def contract(text: str, names: tuple[str, ...] = ()) -> Contract:
    return Contract.read(f"contract: 1\n{text}", names)


def test_what_it_says_is_what_it_holds() -> None:
    found = Contract.read(WHOLE, ["ant", "bee", "cat"])
    day = 86_400.0
    assert found.clauses == (
        Clause(0.98, above=0.9, per=30 * day),
        Clause(0.99, above=0.95, per=7 * day, segment="de"),
        Clause(0.999, above=0.97, per=7 * day, predicted=2),
    )
    assert found.segments == ("de",)


def test_what_is_acted_on_meets_every_threshold_it_falls_under() -> None:
    found = Contract.read(WHOLE, ["ant", "bee", "cat"])
    # (confidence, predicted, segment): by hand
    expected: dict[tuple[float, int, str], bool] = {
        (0.9, 0, ""): True,
        (0.8999999, 0, ""): False,
        (0.94, 0, "de"): False,
        (0.95, 0, "de"): True,
        (0.96, 2, "de"): False,
        (0.96, 2, ""): False,
        (0.97, 2, "de"): True,
        (0.94, 0, "DE"): True,
        (math.nan, 0, ""): False,
    }
    for given_, acts in expected.items():
        confidence, predicted, segment = given_
        assert found.acts_on(confidence, predicted, segment) == acts, given_
        assert found.acts([confidence], [predicted], segment).tolist() == [acts]
        assert found.acts([confidence], [predicted], [segment]).tolist() == [acts]
    only = contract("segments: {de: {act: {above: 0.5, accuracy: 0.9}}}")
    assert only.acts([1.0, 1.0], [0, 0], ["fr", "de"]).tolist() == [False, True]


def test_a_prediction_counts_where_it_is_acted_on() -> None:
    found = Contract.read(WHOLE, ["ant", "bee", "cat"])
    assert [one.name for one in found.counts(0.96, 0, "de")] == ["act", "act, segment de"]
    assert found.counts(0.94, 0, "de") == ()


@pytest.mark.parametrize(
    ("confidence", "predicted", "segments"),
    [([0.9], [0, 1], ""), (0.9, 0, ""), ([[0.9]], [[0]], ""), ([0.9, 0.9], [0, 0], ["de"])],
)
def test_arrays_of_other_shapes_are_refused(confidence: Any, predicted: Any, segments: Any) -> None:
    with pytest.raises(InputError, match=r"must be \(n,\)"):
        Contract.read(WHOLE, ["ant", "bee", "cat"]).acts(confidence, predicted, segments)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "must be a mapping"),
        (ACT, "begins with 'contract: 1'"),
        ("contract: 1", "promises something"),
        (f"contract: true\n{ACT}", "begins with"),
        (f"contract: 2\n{ACT}", "got '2'"),
        ("contract: 1\nact: {above: 0.5, above: 0.9, accuracy: 0.98}", "twice"),
        ("contract: 1\nact: {<<: {above: 0.5}, accuracy: 0.98}", "merged"),
        ("contract: 1\nact: &a {above: 0.9, accuracy: 0.98}\nsegments: {x: {act: *a}}", "aliases"),
        ("contract: 1\nact: !!python/object/apply:os.getcwd []", "cannot be read"),
        ("contract: 1\nact: " + "[" * 60 + "]" * 60, "nested deeper"),
        (f"contract: 1\n{ACT}\nnonsense: 1", "does not know 'nonsense'"),
        ("contract: 1\nact: {above: 0.9}", "has no accuracy"),
        ("contract: 1\nact: {above: 0.9, accuracy: 0.98, error: 0.1}", "does not know 'error'"),
        (f"contract: 1\n{ACT}\ncalibration: {{error: 0.1}}", "does not know 'calibration'"),
        ("contract: 1\nact: [0.9, 0.98]", "must be a mapping"),
        ("contract: 1\nact: {above: 0.9, accuracy: 98}", "0.98 means 98 %; got 98"),
        ("contract: 1\nact: {above: 0.9, accuracy: 1}", "not the ends"),
        ("contract: 1\nact: {above: 1.1, accuracy: 0.9}", r"\[0, 1\]"),
        ("contract: 1\nact: {above: true, accuracy: 0.9}", "must be a number"),
        (f"contract: 1\nact: {{above: 0.9, accuracy: {'9' * 400}}}", "must be a number"),
        (f"contract: 1\nact: {{above: 0.9, accuracy: {'9' * 4000}}}", "number of 4000"),
        (f"contract: 1\nper: 30\n{ACT}", "with its unit"),
        (f"contract: 1\nper: 30m\n{ACT}", "from an hour"),
        (f"contract: 1\nper: 1e999d\n{ACT}", "such as 6h"),
        (f"contract: 1\nper: 3600.5s\n{ACT}", "whole seconds"),
        (f"contract: 1\nsegments: {{no: {{{ACT}}}}}", "put it in quotes"),
        (f"contract: 1\nsegments: {{{'x' * 64}: {{{ACT}}}}}", "1 to 63 characters"),
        (f'contract: 1\nsegments: {{"a\\nb": {{{ACT}}}}}', "without control"),
        (f'contract: 1\nsegments: {{"\\uD800": {{{ACT}}}}}', "without control|cannot be read"),
        ("contract: 1\nsegments: {de: {}}", "promises nothing"),
        (f"contract: 1\nclasses: {{emu: {{{ACT}}}}}", "or one of"),
        (f"contract: 1\nclasses: {{7: {{{ACT}}}}}", "from 0 to 2"),
        (f"contract: 1\nclasses: {{yes: {{{ACT}}}}}", "put it in quotes"),
        (f"contract: 1\nclasses: {{cat: {{{ACT}}}, 2: {{{ACT}}}}}", "'act, class 2' twice"),
        ("contract: 1\nsegments: {" + ", ".join(f"s{i}: {{{ACT}}}" for i in range(65)) + "}", "64 clauses"),
        ("contract: 1\n\ud800: 1", "cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(text: str | bytes, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        Contract.read(text, ["ant", "bee", "cat"])
    assert len(str(caught.value)) < 400


def test_a_text_that_is_a_name_and_an_id_is_the_name_only_in_quotes() -> None:
    digits = ("1", "2", "0")
    assert contract(f'classes: {{"1": {{{ACT}}}}}', digits).clauses[0].predicted == 0
    with pytest.raises(InputError, match="in quotes it is the name"):
        contract(f"classes: {{1: {{{ACT}}}}}", digits)
    assert contract(f"classes: {{1: {{{ACT}}}}}", ("a", "b")).clauses[0].predicted == 1
    assert contract(f"classes: {{1: {{{ACT}}}}}", ("0", "1")).clauses[0].predicted == 1
    with pytest.raises(InputError, match="several classes"):
        contract(f"classes: {{a: {{{ACT}}}}}", ("a", "a"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"predicted": True},
        {"predicted": 2**32},
        {"segment": None},
        {"segment": "de", "predicted": 1},
        {"promise": "much"},
        {"above": math.nan},
        {"above": 1.5},
    ],
)
def test_clauses_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Clause(**{"promise": 0.9, **wrong})


def test_a_clause_is_known_by_all_that_it_says() -> None:
    one = Clause(0.98, above=0.9)
    assert one.id == Clause(np.float64(0.98), above=np.float64(0.9), per=2_592_000).id
    changed: list[dict[str, Any]] = [
        {"promise": 0.97},
        {"above": 0.91},
        {"per": 86_400.0},
        {"segment": "de"},
        {"predicted": 0},
    ]
    assert len({one.id, *(replace(one, **change).id for change in changed)}) == 6


names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1, max_size=63
) | st.sampled_from(
    ["no", "1", "~", "null", "<<", "2024-01-01", "0x1", ": ", "# a", "'", '"', " ", "é", "北"]
)
numbers = st.floats(1e-12, 1, exclude_max=True)
scopes = st.tuples(names, st.none()) | st.tuples(st.just(""), st.none() | st.integers(0, 3))
clauses = st.builds(
    lambda promise, above, per, scope: Clause(promise, above, float(per), *scope),
    numbers,
    st.floats(0, 1),
    st.integers(3600, 3650 * 86_400),
    scopes,
)


@given(st.lists(clauses, min_size=1, max_size=6, unique_by=lambda one: one.name))
def test_what_is_written_reads_the_same(found: list[Clause]) -> None:
    one = Contract(tuple(found))
    assert set(Contract.of(json.loads(json.dumps(one.facts))).clauses) == set(found)
    assert set(Contract.of(yaml.safe_load(yaml.safe_dump(one.facts))).clauses) == set(found)


def test_it_is_for_the_classes_there_are_and_not_for_labels() -> None:
    with pytest.raises(CalibServeError, match="of class 3"):
        replace(PLAIN, contract=Contract((Clause(0.9, predicted=3),)))
    with pytest.raises(CalibServeError, match="not for labels"):
        Artifact(
            (),
            method="none",
            classes=3,
            model={"outputs": "label_logits"},
            contract=Contract((Clause(0.9),)),
        )
