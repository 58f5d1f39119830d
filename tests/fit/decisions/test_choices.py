"""Actions by cost and thresholds of class 1: what is refused, what is decided, what is promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from calib_serve import Artifact, calibrate, decide
from calib_serve.artifact import Choice, evaluate_decisions, promises
from calib_serve.core.errors import CalibServeError, FitError, InputError, SchemaError
from calib_serve.core.options.evaluate import PromiseOptions
from calib_serve.fit.choices import choice_by, read_costs
from calib_serve.metrics import mean_at_most
from calib_serve.metrics.thresholds import most_failures

GOOD = {"ham": {"keep": 0, "drop": 9}, "spam": {"keep": 1, "drop": 0}}

ONE = np.array([[0.3, 0.7]]), np.array([1])

BAD_TABLES: dict[str, tuple[str, str]] = {
    "empty": ("", "mapping of names"),
    "a number": ("3", "mapping of names"),
    "a list": ("- 1\n- 2", "mapping of names"),
    "rows that are numbers": ("ham: 1\nspam: 2", "costs of class 'ham' must be a mapping"),
    "a class is missing": ("ham: {keep: 0, drop: 9}", "see 'spam'"),
    "a class too many": (yaml.safe_dump({**GOOD, "eggs": {"keep": 0, "drop": 1}}), "see 'eggs'"),
    "another class": ("ham: {a: 0, b: 1}\nSpam: {a: 1, b: 0}", "see 'Spam', 'spam'"),
    "a class twice": ("ham: {a: 0, b: 1}\nham: {a: 2, b: 1}\nspam: {a: 1, b: 0}", "a name is there twice"),
    "an action twice": ("ham: {a: 0, a: 1}\nspam: {a: 1, b: 0}", "a name is there twice"),
    "an action only in one row": ("ham: {a: 0, b: 1}\nspam: {a: 1}", "see 'b'"),
    "other actions in each row": ("ham: {a: 0, b: 1}\nspam: {c: 1, d: 0}", "see 'a', 'b', 'c', 'd'"),
    "one action": ("ham: {a: 0}\nspam: {a: 1}", "two or more actions"),
    "no action": ("ham: {}\nspam: {}", "mapping of names"),
    "a cost that is a text": ("ham: {a: 0, b: '1'}\nspam: {a: 1, b: 0}", "within 1e[+]09, got '1'"),
    "a cost that is true": ("ham: {a: 0, b: yes}\nspam: {a: 1, b: 0}", "within 1e[+]09, got 'True'"),
    "a cost that is not there": ("ham: {a: 0, b: }\nspam: {a: 1, b: 0}", "within 1e[+]09, got 'None'"),
    "a cost that is a list": ("ham: {a: 0, b: [1]}\nspam: {a: 1, b: 0}", "within 1e[+]09, got a list"),
    "NaN": ("ham: {a: 0, b: .nan}\nspam: {a: 1, b: 0}", "within 1e"),
    "infinity": ("ham: {a: 0, b: .inf}\nspam: {a: 1, b: 0}", "within 1e"),
    "a cost beyond float32": ("ham: {a: 0, b: 1.0e+300}\nspam: {a: 1, b: 0}", "within 1e"),
    "a whole number beyond floats": (
        f"ham: {{a: 0, b: {'9' * 400}}}\nspam: {{a: 1, b: 0}}",
        "within 1e|read",
    ),
    "a number that YAML takes for a text": ("ham: {a: 0, b: 1e-3}\nspam: {a: 1, b: 0}", "not 1e-3"),
    "costs float32 cannot tell": ("ham: {a: 0, b: 1.0e-30}\nspam: {a: 1, b: 0}", "more than float32"),
    "two actions alike": ("ham: {a: 0, b: 1, c: 1}\nspam: {a: 1, b: 0, c: 0}", "never be chosen"),
    "all alike": ("ham: {a: 1, b: 1}\nspam: {a: 1, b: 1}", "never be chosen"),
    "names YAML takes for false": ("no: {a: 0, b: 1}\nspam: {a: 1, b: 0}", "put it in quotes"),
    "actions YAML takes for true": ("ham: {yes: 0, b: 1}\nspam: {yes: 1, b: 0}", "put it in quotes"),
    "an action without a name": ("ham: {'': 0, b: 1}\nspam: {'': 1, b: 0}", "different names"),
    "a name with control characters": ('ham: {"a\\x07": 0, b: 1}\nspam: {"a\\x07": 1, b: 0}', "control"),
    "no YAML": ("ham: {a: 0", "cannot be read"),
    "aliases": ("ham: &x {a: 0, b: 1}\nspam: *x", "aliases"),
    "an object": ("!!python/object/apply:os.system ['true']", "cannot be read"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_table_of_costs_that_cannot_be_is_refused_and_says_why(name: str, tmp_path: Path) -> None:
    text, says = BAD_TABLES[name]
    (tmp_path / "costs.yaml").write_text(text)
    options = PromiseOptions(cost=tmp_path / "costs.yaml")
    with pytest.raises(CalibServeError, match=says):
        choice_by(options, *ONE, ("ham", "spam"))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text("#" * (1 << 21))
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "large.yaml"):
        with pytest.raises(InputError, match="cannot be read"):
            read_costs(path, ("ham", "spam"))
    with pytest.raises(InputError, match="two have the same"):
        read_costs(GOOD, ("ham", "ham"))


def test_rows_come_by_name_in_any_order_and_digits_are_names() -> None:
    turned = dict(reversed(GOOD.items()))
    assert read_costs(turned, ("ham", "spam"))[1].tolist() == [[0, 9], [1, 0]]
    actions, costs = read_costs({1: {"0": 1, 7: 0}, 0: {7: 2, "0": 0}}, ("0", "1"))
    assert (actions, costs.tolist()) == (("7", "0"), [[2, 0], [0, 1]])
    with pytest.raises(InputError, match="once, and no other"):
        read_costs({0: {7: 1, "7": 0}, 1: {7: 0}}, ("0", "1"))


BAD_CHOICES: dict[str, tuple[dict[str, Any], str]] = {
    "no rule": ({"goal": "recall"}, "by a threshold"),
    "both rules": ({"goal": "recall", "threshold": 0.5, "costs": np.eye(2)}, "never by both"),
    "costs of a threshold's goal": ({"goal": "recall", "costs": np.eye(2)}, "never by both"),
    "a threshold of cost": ({"goal": "cost", "threshold": 0.5}, "never by both"),
    "another goal": ({"goal": "f1", "threshold": 0.5}, "the goal must be one of"),
    "a threshold that is NaN": ({"goal": "recall", "threshold": np.nan}, "must lie in"),
    "a threshold above 1": ({"goal": "recall", "threshold": 1.5}, "must lie in"),
    "a share of 1": ({"goal": "recall", "threshold": 0.5, "promised": 1.0}, "no promise"),
    "a cost that is NaN": ({"goal": "cost", "costs": 1 - np.eye(2), "promised": np.nan}, "no promise"),
    "a level of 95": ({"goal": "recall", "threshold": 0.5, "level": 95.0}, "no promise"),
    "three actions of a threshold": ({"goal": "recall", "threshold": 0.5, "actions": "abc"}, "two actions"),
    "costs of one class": ({"goal": "cost", "costs": np.array([[0.0, 1.0]])}, "K >= 2"),
    "costs of other actions": ({"goal": "cost", "costs": np.eye(3)}, r"\(K, 2\)"),
    "one name for both": ({"goal": "recall", "threshold": 0.5, "actions": ("a", "a")}, "different names"),
}


@pytest.mark.parametrize("name", BAD_CHOICES)
def test_a_choice_that_cannot_be_is_refused(name: str) -> None:
    given, says = BAD_CHOICES[name]
    with pytest.raises(CalibServeError, match=says):
        Choice(**{"actions": ("a", "b"), "promised": 0.5, **given})


@given(
    costs=st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=2, max_size=5),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_no_action_is_expected_to_cost_less_than_the_chosen_one(costs: list[list[int]], seed: int) -> None:
    table = np.array(costs, float)
    if len(np.unique(table, axis=1).T) < 3:
        return
    p = np.random.default_rng(seed).dirichlet(np.ones(len(table)), 50)
    chosen = Choice(("a", "b", "c"), "cost", 0.0, costs=table)(p)
    expected = p @ table
    assert (expected[np.arange(50), chosen] <= expected.min(axis=1) + 1e-12).all()


def test_ties_go_to_the_first_action_and_nan_to_none() -> None:
    choice = Choice(("no", "yes"), "cost", 0.5, costs=np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert choice([[0.5, 0.5], [np.nan, 0.9], [0.25, 0.75]]).tolist() == [0, -1, 1]
    assert choice.names([[0.5, 0.5], [np.nan, 0.9], [0.25, 0.75]]) == ["no", "", "yes"]
    least = Choice(("no", "yes"), "recall", 0.9, threshold=0.25)
    assert least([[0.75, 0.25], [0.8, 0.2], [np.nan, np.nan]]).tolist() == [1, 0, -1]
    places = np.moveaxis(np.array([[[0.75, 0.25], [0.8, 0.2]]]), -1, 1)
    assert least(places, class_axis=1).tolist() == [[1, 0]]


def of(p: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array([[1 - p, p]] * n), np.full(n, round(p))


def draw(n: int, seed: int, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.standard_normal((n, classes)) - np.arange(classes)
    return (2 * z).astype(np.float32), (z + rng.gumbel(size=z.shape)).argmax(axis=1)


CAL, HELD, TEST = draw(800, 0), draw(3000, 1), draw(20_000, 2)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    names = ("ham", "spam")
    return calibrate(*CAL, "temperature", cross_validate=False, outputs="logits", class_names=names)


ASKED: tuple[dict[str, Any], ...] = (
    {"cost": GOOD},
    {"cost": (1.0, 4.0)},
    {"precision": 0.75},
    {"recall": 0.8},
    {"budget": 0.2},
)


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_what_is_promised_is_saved_said_and_kept(asked: dict[str, Any], artifact, tmp_path) -> None:
    found = decide(artifact, *HELD, **asked)
    choice, facts = found.choice, found.fit.decisions.choice
    assert choice is not None
    assert facts is not None
    assert facts.samples == 3000
    assert sum(facts.taken) == pytest.approx(1)
    again = Artifact.load(found.save(tmp_path / "decided"))
    assert again.fingerprint == found.fingerprint
    assert again.fit.decisions == found.fit.decisions
    assert promises(again) == promises(found)
    assert again.choice is not None
    probs = found.probs(TEST[0])
    np.testing.assert_array_equal(again.choice(probs), choice(probs))
    values, rows = choice.outcomes(probs, TEST[1])
    reached = values[rows].mean()
    assert reached <= choice.promised if choice.goal in ("cost", "budget") else reached >= choice.promised
    measured = evaluate_decisions(found, probs, TEST[1]).choice
    assert measured is not None
    assert measured.measured.value == pytest.approx(reached)
    assert "breaks" not in measured.says()
    turned = evaluate_decisions(found, probs[:, ::-1], TEST[1]).choice
    assert turned is not None
    assert "breaks the promise" in turned.says()


def test_a_precision_below_a_half_has_no_contract_and_one_above_has(artifact: Artifact) -> None:
    from calib_serve.artifact import Contract

    low, high = (decide(artifact, *HELD, precision=one) for one in (0.5, 0.85))
    assert low.choice is not None
    assert low.choice.threshold < 0.5
    assert not any("contract" in said for said in promises(low))
    (line,) = (said.split("set this contract: ")[1] for said in promises(high) if "contract" in said)
    contract = Contract.read(line, high.class_names)
    p = high.probs(TEST[0])
    acts = contract.acts(p.max(axis=1), p.argmax(axis=1))
    np.testing.assert_array_equal(acts, high.choice(p) == 1)


def test_where_no_threshold_keeps_it_the_error_names_what_can_be(artifact: Artifact) -> None:
    z, y = HELD[0][:300], HELD[1][:300]
    for asked in ({"precision": 0.9999}, {"recall": 0.999}, {"budget": 0.001}):
        ((goal, _),) = asked.items()
        with pytest.raises(FitError, match="can be promised") as told:
            decide(artifact, z, y, **asked)
        can = float(str(told.value).split(" can be promised")[0].split()[-1])
        assert decide(artifact, z, y, **{goal: can}).choice is not None
    with pytest.raises(FitError, match="0 of them of class 1, no recall can be promised"):
        choice_by(PromiseOptions(recall=0.5), *of(0.1, 50), ())
    with pytest.raises(FitError, match="no budget can be promised"):  # all are tied at the top
        choice_by(PromiseOptions(budget=0.3), *of(1.0, 500), ())


def test_options_that_do_not_go_together_are_refused(artifact: Artifact) -> None:
    z, y = HELD
    for asked, says in (
        ({"precision": 0.9, "recall": 0.9}, "is one way to decide"),
        ({"cost": GOOD, "recall": 0.9}, "is one way to decide"),
        ({"cost": (1.0,)}, "must be a mapping"),
        ({"cost": "1,much"}, "cannot be read"),
        ({"cost": (0.0, 1.0)}, "above 0"),
        ({"recall": 1.0}, "between 0 and 1"),
        ({"budget": 20}, "between 0 and 1"),
        ({"level": 0.9, "coverage": 0.9}, "goes with risk, a cost or a threshold"),
        ({"cost": {"ham": {"a": 1, "b": 0}}}, "see 'spam'"),
    ):
        with pytest.raises(InputError, match=says):
            decide(artifact, z, y, **asked)
    three: Any = calibrate(*draw(500, 4, 3), "temperature", cross_validate=False, outputs="logits")
    for asked in ({"precision": 0.9}, {"cost": "1,1"}):
        with pytest.raises(InputError, match=r"is of two classes, .* there are 3"):
            decide(three, *draw(500, 5, 3), **asked)
    labels: Any = Artifact((), method="none", classes=2, model={"outputs": "label_logits"})
    with pytest.raises(InputError, match="one class a sample"):
        decide(labels, z, y, cost=GOOD)


def test_one_sample_of_each_group_is_used(artifact: Artifact) -> None:
    z, y = (np.repeat(one[:300], 10, axis=0) for one in HELD)
    groups = np.repeat(np.arange(300), 10)
    for asked in ({"precision": 0.55}, *ASKED[:2], *ASKED[3:]):
        of_groups = decide(artifact, z, y, **asked, groups=groups).choice
        alone = decide(artifact, z[::10], y[::10], **asked).choice
        if alone.costs is None:
            assert of_groups.threshold == pytest.approx(alone.threshold)
        else:
            assert of_groups.promised == pytest.approx(alone.promised, rel=0.3)


def test_a_manifest_that_was_changed_is_refused_strictly(artifact: Artifact, tmp_path: Path) -> None:
    from calib_serve.artifact.manifest import MANIFEST, digest, write_manifest

    folder = decide(artifact, *HELD, cost=GOOD).save(tmp_path / "a")
    kept = yaml.safe_load((folder / MANIFEST).read_text())
    for change in (
        {"goal": "recall"},
        {"goal": "cost", "threshold": 0.5},
        {"actions": ["keep"]},
        {"actions": "keep"},
        {"promised": "cheap"},
        {"more": 1},
        {"level": None},
    ):
        content = {**kept, "choice": {**kept["choice"], **change}}
        content.pop("sha256")
        (folder / MANIFEST).write_text(write_manifest({**content, "sha256": digest(content)}))
        with pytest.raises(SchemaError):
            Artifact.load(folder)
    content = {name: value for name, value in kept.items() if name not in ("choice", "sha256")}
    (folder / MANIFEST).write_text(write_manifest({**content, "sha256": digest(content)}))
    with pytest.raises(SchemaError, match="belong to no step"):
        Artifact.load(folder)


@pytest.mark.parametrize("shape", ["rare and dear", "even", "none"])
def test_the_bound_of_a_mean_holds_and_is_near(shape: str) -> None:
    rng = np.random.default_rng(0)
    share = {"rare and dear": 0.02, "even": 0.5, "none": 0.0}[shape]
    held, bounds = 0, []
    for seed in range(200):
        drawn = (rng.random(1000) < share).astype(float)
        bounds.append(mean_at_most(drawn, 0.0, 1.0, level=0.9, rng=np.random.default_rng(seed)))
        held += bounds[-1] >= share
    assert held >= 180 - 3 * np.sqrt(18)
    assert np.median(bounds) - share < 2.5 * np.sqrt(max(share, 1e-3) * (1 - share) / 1000)


@given(n=st.integers(0, 200), share=st.floats(0.01, 0.99), level=st.floats(0.5, 0.99))
@settings(max_examples=100, deadline=None)
def test_the_most_failures_are_the_last_that_prove_it(n: int, share: float, level: float) -> None:
    from scipy.stats import binom

    k = most_failures(n, share, level)
    assert k == -1 or binom.cdf(k, n, share) <= 1 - level + 1e-12
    assert k + 1 >= n or binom.cdf(k + 1, n, share) > 1 - level - 1e-12


def test_columns_by_name_are_not_taken_for_classes_without_names() -> None:
    z = {"c": [2.0, 0.0, 1.0] * 20, "a": [0.0, 2.0, 0.0] * 20, "b": [1.0, 1.0, 2.0] * 20}
    costs = {str(k): {"go": k, "ask": 0.5} for k in range(3)}
    one = Artifact((), method="none", classes=3, model={"outputs": "logits"})
    with pytest.raises(InputError, match="classes have no names"):
        decide(one, {**z, "label": ["a", "b", "c"] * 20}, cost=costs)
    assert decide(one, {**z, "label": ["a", "b", "c"] * 20}, cost=costs, columns=["a", "b", "c"]).choice
