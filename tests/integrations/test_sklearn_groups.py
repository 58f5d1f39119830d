"""Groups in scikit-learn: no split of rows parts them, and columns go with the rows of X."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    RepeatedStratifiedKFold,
    StratifiedGroupKFold,
    StratifiedKFold,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from calib_serve import calibrate
from calib_serve.core.errors import InputError
from calib_serve.integrations.sklearn import CalibratedClassifier


def patients(seed: int = 0, count: int = 40, copies: int = 6):
    """Near copies of a few patients of four classes, in no order: (X, y, groups)."""
    rng = np.random.default_rng(seed)
    kind = np.arange(count) % 4
    centre = 0.9 * rng.normal(size=(4, 5))[kind] + rng.normal(size=(count, 5))
    x = np.repeat(centre, copies, axis=0) + 0.05 * rng.normal(size=(count * copies, 5))
    order = rng.permutation(count * copies)
    names = np.char.add("patient ", np.arange(count).astype(str))
    return x[order], np.repeat(kind, copies)[order], np.repeat(names, copies)[order]


X, Y, GROUPS = patients()


def held_out(splitter, estimator=None) -> np.ndarray:
    """Logits (n, 4) of every row from a model trained without its group."""
    logits = np.empty((len(Y), 4))
    for train, test in splitter.split(X, Y, GROUPS):
        logits[test] = (estimator or LogisticRegression()).fit(X[train], Y[train]).decision_function(X[test])
    return logits


def calibrated(logits, y=Y, groups=GROUPS, **options):
    return calibrate(logits, y, groups=groups, outputs="logits", **options)


def assert_same(found, expected) -> None:
    """The same choice, by the same held-out numbers, and the same calibration."""
    assert found.selection == expected.selection
    assert found.metrics_after == expected.metrics_after
    z = held_out(GroupKFold(5))
    np.testing.assert_allclose(found.of_logits(z), expected.of_logits(z), rtol=0, atol=1e-12)


@pytest.mark.parametrize("routing", [False, True])
@pytest.mark.parametrize(
    "cv", [GroupKFold(4), StratifiedGroupKFold(4), 4], ids=["groups", "classes", "number"]
)
def test_groups_reach_the_outer_folds_the_choice_and_the_numbers(routing, cv):
    with sklearn.config_context(enable_metadata_routing=routing):
        model = CalibratedClassifier(LogisticRegression(), cv=cv).fit(X, Y, groups=GROUPS)
    splitter = StratifiedGroupKFold(4) if cv == 4 else cv
    parts = list(splitter.split(X, Y, GROUPS))
    rows = np.concatenate([test for _, test in parts])
    assert_same(model.artifact_, calibrated(held_out(splitter)[rows], Y[rows], GROUPS[rows]))


@pytest.mark.parametrize("routing", [False, True])
def test_groups_reach_it_through_a_pipeline_and_a_search(routing):
    rows = np.concatenate([test for _, test in GroupKFold(5).split(X, Y, GROUPS)])
    scaled = make_pipeline(StandardScaler(), LogisticRegression())
    expected = calibrated(held_out(GroupKFold(5), scaled)[rows], Y[rows], GROUPS[rows])
    model = CalibratedClassifier(scaled, cv=GroupKFold(5))
    with sklearn.config_context(enable_metadata_routing=routing):
        named = {"groups": GROUPS} if routing else {"calibratedclassifier__groups": GROUPS}
        step = make_pipeline("passthrough", model).fit(X, Y, **named)[-1]
        assert_same(step.artifact_, expected)
        search = GridSearchCV(
            make_pipeline("passthrough", model), {"calibratedclassifier__random_state": [0]}, cv=GroupKFold(3)
        )
        found = search.fit(X, Y, **{"groups": GROUPS, **named}).best_estimator_[-1]
        assert_same(found.artifact_, expected)


def test_a_search_hands_groups_on_to_a_number_of_folds():
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(CalibratedClassifier(cv=4), {"random_state": [0]}, cv=GroupKFold(3))
        found = search.fit(X, Y, groups=GROUPS).best_estimator_
        alone = CalibratedClassifier(cv=4).fit(X, Y, groups=GROUPS)
    assert_same(found.artifact_, alone.artifact_)


@pytest.mark.parametrize("routing", [False, True])
@pytest.mark.parametrize("cv", ["prefit", None], ids=["prefit", "frozen"])
def test_a_fitted_classifier_is_calibrated_by_groups(routing, cv):
    x, y, _ = patients(1)
    fitted = LogisticRegression().fit(x, y)
    with sklearn.config_context(enable_metadata_routing=routing):
        model = CalibratedClassifier(fitted if cv else FrozenEstimator(fitted), cv=cv).fit(
            X, Y, groups=GROUPS
        )
    assert_same(model.artifact_, calibrated(fitted.decision_function(X)))


@pytest.mark.parametrize("cv", [KFold(4), StratifiedKFold(4), [(np.arange(120), np.arange(120, 240))]])
@pytest.mark.filterwarnings("ignore:The groups parameter is ignored")
def test_a_splitter_that_parts_groups_is_refused(cv):
    with pytest.raises(InputError, match=r"parts the group of row .*GroupKFold"):
        CalibratedClassifier(LogisticRegression(), cv=cv).fit(X, Y, groups=GROUPS)


def test_a_class_of_one_group_and_fewer_groups_than_folds_are_refused():
    alone = np.where(Y == 3, "one", GROUPS)
    with pytest.raises(InputError, match="class 3 is in one group"):
        CalibratedClassifier(LogisticRegression()).fit(X, Y, groups=alone)
    with pytest.raises(InputError, match="41 folds of 40 groups"):
        CalibratedClassifier(LogisticRegression(), cv=41).fit(X, Y, groups=GROUPS)
    with pytest.raises(InputError, match="all samples are of one group"):
        CalibratedClassifier(LogisticRegression()).fit(X, Y, groups=np.zeros(len(Y)))


def test_a_row_that_is_held_out_several_times_is_one_sample():
    cv = RepeatedStratifiedKFold(n_splits=3, n_repeats=4, random_state=0)
    model = CalibratedClassifier(LogisticRegression(), cv=cv).fit(X, Y)
    parts = list(cv.split(X, Y))
    rows = np.concatenate([test for _, test in parts])
    z = np.concatenate([LogisticRegression().fit(X[a], Y[a]).decision_function(X[b]) for a, b in parts])
    assert_same(model.artifact_, calibrated(z, Y[rows], rows))


class Noted(ClassifierMixin, BaseEstimator):
    """A classifier that takes groups as training information."""

    def fit(self, X, y, groups=None):
        self.seen_ = None if groups is None else np.asarray(groups)
        self.inner_ = LogisticRegression().fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def decision_function(self, X):
        return self.inner_.decision_function(X)


def test_a_classifier_that_takes_groups_gets_them():
    model = CalibratedClassifier(Noted(), cv=GroupKFold(4)).fit(X, Y, groups=GROUPS)
    assert model.estimator_.seen_.tolist() == GROUPS.tolist()


def frames():
    index = np.random.default_rng(0).permutation(10_000)[: len(Y)]
    x = pd.DataFrame(X, columns=list("abcde"), index=index)
    return x, pd.Series(Y, index), pd.Series(GROUPS, index)


def test_series_of_the_same_rows_are_as_arrays():
    x, y, groups = frames()
    framed = CalibratedClassifier(cv=GroupKFold(4)).fit(x, y, groups=groups)
    plain = CalibratedClassifier(cv=GroupKFold(4)).fit(X, Y, groups=GROUPS)
    assert_same(framed.artifact_, plain.artifact_)
    # A new index from 0 says nothing of the rows of another frame.
    bare = CalibratedClassifier(cv=GroupKFold(4)).fit(x, y, groups=groups.reset_index(drop=True))
    assert_same(bare.artifact_, plain.artifact_)


@pytest.mark.parametrize("what", ["y", "groups", "sample_weight"])
@pytest.mark.parametrize("kept", [False, True], ids=["another order", "other rows"])
def test_a_series_of_rows_in_another_order_is_refused(what, kept):
    x, y, groups = frames()
    given = {"y": y, "groups": groups, "sample_weight": pd.Series(np.ones(len(y)), y.index)}
    given[what] = given[what].set_axis(given[what].index + 10_000) if kept else given[what].sort_index()
    with pytest.raises(InputError, match=rf"index of {what}.*X.index.*to_numpy"):
        CalibratedClassifier(cv=4).fit(x, **given)
