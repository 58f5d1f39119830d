"""A tree of classes: which trees are refused, and levels beside hand sums and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import brier_score_loss, log_loss

from calib_serve.artifact import Artifact, LogitMap, Mixture
from calib_serve.core.errors import InputError
from calib_serve.core.options.evaluate import MeasureOptions, VerdictOptions
from calib_serve.metrics import Tree, evaluate, evaluate_levels, judge
from calib_serve.scores import Scores, softmax

NAMES = ("cat", "dog", "hawk", "owl", "car", "van", "stone")
NESTED = {
    "animal": {"mammal": ["cat", "dog"], "bird": ["hawk", "owl"]},
    "vehicle": ["car", "van"],
    "rest": ["stone"],
}


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({}, "is missing"),
        ([], "is missing"),
        ("cat", "sep:"),
        (3, "list or mapping"),
        (None, "list or mapping"),
        (["cat", "dog", "owl", "hawk"], "no inner node"),
        ({"animal": ["cat", "dog", "owl"], "rest": []}, "'rest' holds no class"),
        ({"animal": ["cat", "dog"], "bird": None}, "'bird'"),
        ({"animal": ["cat", "dog"], "bird": "owl"}, "'bird'"),
        ({"animal": ["cat", "dog"], "bird": [["owl"], "hawk"]}, "'' is no class"),
        ({"animal": ["cat", "dog"], "bird": ["owl", ""]}, "'' is no class"),
        ({"animal": ["cat", "dog"], "bird": ["owl", None]}, "'' is no class"),
        ({"animal": ["cat", "dog"], "bird": ["owl"]}, "'hawk' is missing"),
        ({"animal": ["cat", "dog"], "bird": ["owl", "hawk", "bat"]}, "'bat' is no class"),
        ({"animal": ["cat", "dog", "owl"], "bird": ["owl", "hawk"]}, "'owl' is there twice"),
        ({"cat": ["dog"], "bird": ["owl", "hawk", "cat"]}, "'cat' is a class and an inner node"),
        ({"a": {"x": ["cat"], "y": ["dog"]}, "b": {"x": ["owl", "hawk"]}}, "'x' is there twice"),
        ([{"a": ["cat"]}, {"a": ["dog", "owl"]}, "hawk"], "'a' is there twice"),
        ({"all": {"a": ["cat", "dog"], "b": ["owl", "hawk"]}}, "below 'all'"),
        ({"a": ["cat", "dog"], "b": ["owl", False]}, "'False' is no class"),  # YAML reads no as that
    ],
)
def test_trees_that_are_refused(said: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Tree.of(said, ("cat", "dog", "owl", "hawk"))


@pytest.mark.parametrize("paths", [(), ((),), (("a", ""),), (("a", 1), ("b", 2)), (("a", "x"), ("a", "y"))])
def test_paths_that_are_no_tree_are_refused(paths: Any) -> None:
    with pytest.raises(InputError):
        Tree(paths)


@pytest.mark.parametrize("level", [-1, 0, 3])
def test_a_level_that_the_tree_lacks_is_refused(level: int) -> None:
    with pytest.raises(InputError, match="levels 1 to 2"):
        Tree.of(NESTED, NAMES).nodes(level)


def test_a_tree_that_holds_itself_is_refused() -> None:
    said: dict[str, Any] = {"a": ["cat"], "b": ["dog"]}
    said["c"] = said
    with pytest.raises(InputError, match="too deep"):
        Tree.of(said, ("cat", "dog"))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("a/x", "a/y", "b"), ""),
        (("a/x", "a/y", "a/z"), "below 'a'"),
        (("a", "a/y", "b/z"), "'a' is a class and an inner node"),
        (("a//x", "a/y", "b/z"), "name"),
        (("/x", "a/y", "b/z"), "name"),
        (("a/x/", "a/y", "b/z"), "name"),
        (("x", "y", "z"), "no inner node"),
    ],
)
def test_trees_of_names(names: tuple[str, ...], says: str) -> None:
    if not says:
        assert Tree.of("sep:/", names).nodes(1) == ("a", "b")
        return
    with pytest.raises(InputError, match=says):
        Tree.of("sep:/", names)


def test_a_separator_is_not_empty() -> None:
    with pytest.raises(InputError, match="sep:"):
        Tree.of("sep:", ("a/x", "b/y"))


def test_a_class_above_the_lowest_level_stands_for_itself_below() -> None:
    tree = Tree.of(NESTED, NAMES)
    assert tree.depth == 2
    assert tree.nodes(1) == ("animal", "vehicle", "rest")
    assert tree.nodes(2) == ("mammal", "bird", "car", "van", "stone")
    assert tree.of_class(2).tolist() == [0, 0, 1, 1, 2, 3, 4]


def test_a_node_of_one_child_is_the_same_event() -> None:
    tree = Tree.of({"a": {"b": ["x", "y"]}, "c": ["z"]}, ("x", "y", "z"))
    scores = Scores.of(np.random.default_rng(0).normal(size=(9, 3)), np.zeros(9, int), outputs="logits")
    one, two = (tree.at(scores, level).probs[:] for level in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_the_order_of_the_classes_is_that_of_the_scores() -> None:
    turned = NAMES[::-1]
    tree = Tree.of(NESTED, turned)
    assert [tree.nodes(1)[k] for k in tree.of_class(1)][:3] == ["rest", "vehicle", "vehicle"]
    assert set(Tree.of(NESTED, NAMES).nodes(1)) == set(tree.nodes(1))


def _sample(n: int = 400) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return 3 * rng.normal(size=(n, 7)), rng.integers(0, 7, n)


@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
@pytest.mark.parametrize("level", [1, 2])
def test_every_level_is_that_of_hand_sums_and_of_scikit_learn(outputs: str, level: int) -> None:
    z, y = _sample()
    p = softmax(z)
    scores = Scores.of(z if outputs == "logits" else p, y, outputs=outputs, class_names=NAMES)
    tree = Tree.of(NESTED, NAMES)
    node = tree.of_class(level)
    sums = np.stack([p[:, node == k].sum(axis=1) for k in range(len(tree.nodes(level)))], axis=1)
    found = evaluate_levels(scores, tree, MeasureOptions(replicates=0))[level - 1]
    coarse = node[y]
    np.testing.assert_allclose(tree.at(scores, level).probs[:], sums, rtol=0, atol=1e-14)
    assert abs(found.metrics.nll - log_loss(coarse, sums, labels=range(len(found.nodes)))) < 1e-12
    peer = brier_score_loss(coarse, sums, labels=range(len(found.nodes)), scale_by_half=False)
    assert abs(found.metrics.brier - peer) < 1e-12
    assert abs(found.metrics.accuracy - (sums.argmax(axis=1) == coarse).mean()) < 1e-12
    top, right = sums.max(axis=1), sums.argmax(axis=1) == coarse
    bins = np.minimum(np.ceil(top * 15), 15)
    ece = sum(abs((top - right)[bins == b].sum()) for b in range(16)) / len(y)
    assert abs(found.metrics.ece - ece) < 1e-12


def test_interval_and_verdict_are_those_of_the_coarse_arrays() -> None:
    z, y = _sample(3000)
    tree = Tree.of(NESTED, NAMES)
    node, p = tree.of_class(1), softmax(z)
    sums = np.stack([p[:, node == k].sum(axis=1) for k in range(3)], axis=1)
    weight, groups = np.tile([1.0, 2.0], 1500), np.arange(3000) // 3
    beside: dict[str, Any] = {"sample_weight": weight, "groups": groups}
    scores = Scores.of(z, y, outputs="logits", class_names=NAMES, **beside)
    found = evaluate_levels(scores, tree, judge=VerdictOptions(tolerance=0.05))[0]
    whole = evaluate(sums, node[y], outputs="probabilities", **beside)
    for end in ("value", "debiased", "low", "high"):
        assert abs(getattr(found.metrics.ece, end) - getattr(whole.ece, end)) < 1e-9
    verdict = judge(
        sums, node[y], class_names=tree.nodes(1), tolerance=0.05, outputs="probabilities", **beside
    )
    assert found.verdict.headline == verdict.headline
    assert found.as_dict()["verdict"]["level"] == verdict.level == "off"


def test_a_level_is_never_worse_by_nll_and_stays_finite_where_leaves_underflow() -> None:
    z = np.zeros((50, 7))
    z[:, 0] = 2000.0  # every other class has probability 0
    scores = Scores.of(z, np.full(50, 6), outputs="logits", class_names=NAMES)
    fine = evaluate(scores, replicates=0)
    levels = evaluate_levels(scores, Tree.of(NESTED, NAMES), MeasureOptions(replicates=0))
    assert fine.nll == 2000.0
    assert [one.metrics.nll.value for one in levels] == [2000.0, 2000.0]


def test_masked_classes_add_nothing() -> None:
    z, y = np.zeros((4, 7)), np.zeros(4, int)
    z[:, 1:4] = -np.inf
    scores = Scores(z, "logits", labels=y, class_names=NAMES)
    tree = Tree.of(NESTED, NAMES)
    np.testing.assert_allclose(tree.at(scores, 2).probs[:], np.tile([[1, 0, 1, 1, 1]], (4, 1)) / 4)


@given(
    arrays(np.float64, (3, 7), elements=st.floats(-50, 50)),
    st.floats(0.1, 10),
    st.lists(st.integers(0, 3), min_size=7, max_size=7).filter(lambda of: len(set(of)) > 1),
    st.booleans(),
)
def test_nodes_of_calibrated_scores_sum_up_from_level_to_level(
    z: Any, temperature: float, of: list[int], mixed: bool
) -> None:
    mixture = Mixture(scales=[1.0, 1 / temperature], weights=[0.5, 0.25, 0.25])
    steps: Any = (mixture if mixed else LogitMap.temperature(temperature),)
    names = [f"{top}/{k % 2}/{k}" for k, top in enumerate(of)]
    artifact = Artifact(steps, method="any", classes=7, class_names=tuple(names))
    scores = artifact.calibrated(Scores.of(z, [0, 1, 2], outputs="logits", class_names=names))
    tree = Tree.of("sep:/", names)
    finer, below = scores.probs[:], np.arange(7)
    for level in (2, 1):
        here, node = tree.at(scores, level).probs[:], tree.of_class(level)
        np.testing.assert_allclose(here.sum(axis=1), 1, atol=1e-12)
        for k in range(here.shape[1]):
            own = np.unique(below[node == k])
            np.testing.assert_allclose(here[:, k], finer[:, own].sum(axis=1), atol=1e-12)
        finer, below = here, node


def test_scores_of_labels_and_soft_labels_have_no_levels() -> None:
    tree = Tree.of({"a": ["x", "y"], "b": ["z"]}, ("x", "y", "z"))
    of_labels = Scores.of(np.full((4, 3), 0.5), np.ones((4, 3), int), outputs="label_probabilities")
    soft = Scores.of(np.full((4, 3), 1 / 3), np.full((4, 3), 1 / 3), outputs="probabilities")
    for scores in (of_labels, soft):
        with pytest.raises(InputError, match="one class a sample"):
            evaluate_levels(scores, tree)


def test_a_tree_of_other_classes_is_refused() -> None:
    scores = Scores.of(np.zeros((4, 3)), [0, 1, 2, 0], outputs="logits")
    with pytest.raises(InputError, match="4 classes"):
        evaluate_levels(scores, Tree.of({"a": ["w", "x"], "b": ["y", "z"]}, ("w", "x", "y", "z")))
    with pytest.raises(InputError, match="'q' is no class"):
        Tree.of({"a": ["p", "q"], "b": ["r"]}, ("p", "r", "s"))
