"""ScoreCalibrator: scikit-learn's checks where they apply, and equality with the fits it stands on."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit import fit_by_name, select
from calib_serve.fit.samples import Samples
from calib_serve.integrations.sklearn.estimators import ScoreCalibrator
from calib_serve.scores import log_softmax, softmax

RNG = np.random.default_rng(5)
LOGITS = 3 * RNG.standard_normal((600, 4))
LABELS = np.array([RNG.choice(4, p=row) for row in softmax(LOGITS / 2)])

OTHER_WIDTH = (
    "check_estimators_overwrite_params",
    "check_estimators_fit_returns_self",
    "check_readonly_memmap_input",
    "check_n_features_in_after_fitting",
    "check_positive_only_tag_during_fit",
    "check_estimators_dtypes",
    "check_all_zero_sample_weights_error",
    "check_sample_weight_equivalence_on_dense_data",
    "check_dtype_object",
    "check_pipeline_consistency",
    "check_estimators_nan_inf",
    "check_estimators_pickle",
    "check_classifiers_classes",
    "check_classifiers_train",
)


def not_applicable(estimator):
    why = "the check gives d features for K classes; scores have a column a class"
    return dict.fromkeys(OTHER_WIDTH, why)


@parametrize_with_checks([ScoreCalibrator()], expected_failed_checks=not_applicable)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_it_is_the_fit_by_name_and_the_choice():
    named = ScoreCalibrator("structured-vector").fit(LOGITS, LABELS)
    expected = fit_by_name("structured-vector", LOGITS, LABELS)
    np.testing.assert_array_equal(named.predict_proba(LOGITS), expected.probs(LOGITS))
    chosen = ScoreCalibrator(random_state=3).fit(LOGITS, LABELS)
    expected = select(Samples.of(LOGITS, LABELS), seed=3)
    np.testing.assert_array_equal(chosen.predict_proba(LOGITS), expected.probs(LOGITS))
    assert chosen.method_ == expected.method == "structured-average"
    assert chosen.artifact_.selection == expected.selection


@pytest.mark.parametrize("outputs", ["logits", "log_probs", "probabilities"])
def test_one_column_is_the_second_of_two_classes(outputs):
    z = LOGITS[:, :2].copy()
    z[:, 0] = 0
    scores = {"logits": z, "log_probs": log_softmax(z), "probabilities": softmax(z)}[outputs]
    y = np.where(LABELS > 1, "yes", "no")
    both = ScoreCalibrator("histogram-width", outputs=outputs).fit(scores, y)
    one = ScoreCalibrator("histogram-width", outputs=outputs).fit(scores[:, 1:], y)
    np.testing.assert_allclose(
        one.predict_proba(scores[:, 1:]), both.predict_proba(scores), rtol=0, atol=1e-9
    )
    assert set(one.predict(scores[:, 1:])) <= {"no", "yes"}


def test_probabilities_are_said_and_a_fit_holds_to_its_kind():
    told = ScoreCalibrator("temperature", outputs="probabilities").fit(softmax(LOGITS), LABELS)
    assert told.artifact_.model.outputs == "probabilities"
    of_logits = ScoreCalibrator("temperature").fit(LOGITS, LABELS)
    np.testing.assert_allclose(
        told.predict_proba(softmax(LOGITS)), of_logits.predict_proba(LOGITS), atol=1e-6
    )
    with pytest.raises(InputError, match=r"lie in \[0, 1\]"):
        told.predict_proba(LOGITS)
    for refused in (ScoreCalibrator("temperature").fit, lambda z, y: of_logits.predict_proba(z)):
        with pytest.raises(InputError, match="outputs='probabilities'"):
            refused(softmax(LOGITS), LABELS)


def test_classes_name_the_columns_where_labels_lack_one():
    some = LABELS < 3
    with pytest.raises(ShapeError, match="4 columns and y 3 classes"):
        ScoreCalibrator("temperature").fit(LOGITS[some], LABELS[some])
    names = np.array(["d", "c", "b", "a"])
    named = ScoreCalibrator("temperature", classes=names).fit(LOGITS[some], names[LABELS[some]])
    assert named.classes_.tolist() == ["d", "c", "b", "a"]
    np.testing.assert_array_equal(named.predict(LOGITS), names[LOGITS.argmax(axis=1)])
    with pytest.raises(InputError, match=r"\['z'\] that are not among"):
        ScoreCalibrator(classes=names).fit(LOGITS, np.where(some, "a", "z"))
