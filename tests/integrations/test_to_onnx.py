"""CalibratedClassifier.to_onnx: the file says what predict_proba says, or there is no file."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    GradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from calib_serve.core.errors import FuseError, ShapeError
from calib_serve.fuse import open_session
from calib_serve.integrations.sklearn.estimators import CalibratedClassifier

DATA = {"two classes": load_breast_cancer, "three classes": load_iris}
METHODS = ("temperature", "structured-vector")

ESTIMATORS = {
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "forest": RandomForestClassifier(25, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=15, random_state=0),
    "SVC": SVC(),
    "linear SVC": LinearSVC(),
    "Gaussian naive Bayes": GaussianNB(),
    "neighbours": KNeighborsClassifier(),
    "LDA": LinearDiscriminantAnalysis(),
    "search": GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=2),
}


def parts(data: str):
    x, y = DATA[data](return_X_y=True)
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    return train_test_split(x, y, test_size=0.4, random_state=1, stratify=y)


def answer(path, x):
    session = open_session(path)
    return dict(
        zip(
            (o.name for o in session.get_outputs()),
            session.run(None, {session.get_inputs()[0].name: x}),
            strict=True,
        )
    )


def fitted(estimator, x, y, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a network has not converged is no matter here
        return CalibratedClassifier(estimator, method=method, cv=3).fit(x, y)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_file_says_what_predict_proba_says(name, data, tmp_path):
    x, unseen, y, _ = parts(data)
    for method in METHODS[:1] if name == "search" else METHODS:
        model = fitted(ESTIMATORS[name], x, y, method)
        path = tmp_path / f"{method}.onnx"
        model.to_onnx(path, x)
        onnx.checker.check_model(str(path), full_check=True)
        got = answer(path, unseen)
        assert list(got) == ["probabilities"]  # no label that was decided before the calibration
        np.testing.assert_allclose(got["probabilities"], model.predict_proba(unseen), atol=1e-4)


def test_all_outputs_decide_by_the_calibrated_probabilities(tmp_path):
    x, unseen, y, _ = parts("three classes")
    model = CalibratedClassifier(FrozenEstimator(GaussianNB().fit(x, y)), method="vector").fit(x, y)
    report = model.to_onnx(tmp_path / "all.onnx", x, returns="all")
    got = answer(tmp_path / "all.onnx", unseen)
    assert report.outputs == tuple(got)
    np.testing.assert_array_equal(model.classes_[got["predicted"]], model.predict(unseen))
    np.testing.assert_allclose(got["confidence"], model.predict_proba(unseen).max(axis=1), atol=1e-5)


@pytest.mark.parametrize("method", ["isotonic", "histogram-mass"])
def test_a_table_of_bins_is_looked_up_in_the_file(method, tmp_path):
    x, unseen, y, _ = parts("two classes")
    model = fitted(ESTIMATORS["pipeline"], x, y, method)
    model.to_onnx(tmp_path / "table.onnx", x)
    got = answer(tmp_path / "table.onnx", unseen)["probabilities"]
    np.testing.assert_allclose(got, model.predict_proba(unseen), atol=1e-5)


def test_what_skl2onnx_computes_in_another_way_is_refused(tmp_path):
    """Its probabilities of a binary LDA are not scikit-learn's; its decision function is."""
    x, _, y, _ = parts("two classes")
    model = CalibratedClassifier(
        LinearDiscriminantAnalysis(), method="temperature", response_method="predict_proba"
    )
    with pytest.raises(FuseError, match=r"gives other scores than were fitted.*response_method"):
        model.fit(x, y).to_onnx(tmp_path / "lda.onnx", x)
    assert not list(tmp_path.iterdir())


def test_no_edge_of_a_table_lies_where_scores_do(tmp_path):
    """Of five neighbours 4 are 0.8 in float64, in two sums, and more than that in float32."""
    x, y = load_wine(return_X_y=True)
    x = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    x, _, y, _ = train_test_split(x, y, test_size=0.4, random_state=1, stratify=y)
    model = fitted(KNeighborsClassifier(5), x, y, "isotonic")
    assert model.artifact_.steps[-1].edges.size
    model.to_onnx(tmp_path / "table.onnx", x)
    assert list(tmp_path.iterdir())


def frame_of_texts():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"n": rng.normal(size=600).astype("f4"), "c": rng.choice(["abc", "d"], 600)})
    return frame, (frame.n + (frame.c == "abc") + rng.normal(size=600) > 0).astype(int)


def test_a_frame_of_texts_and_numbers_is_an_input_a_column(tmp_path):
    frame, y = frame_of_texts()
    columns = make_column_transformer((OneHotEncoder(), ["c"]), (StandardScaler(), ["n"]))
    model = CalibratedClassifier(make_pipeline(columns, LogisticRegression()), method="temperature")
    report = model.fit(frame, y).to_onnx(tmp_path / "m.onnx", frame)
    assert report.proof.startswith("600 rows")
    session = open_session(tmp_path / "m.onnx")
    assert {one.name for one in session.get_inputs()} == {"c", "n"}
    feeds = {"n": frame.n.to_numpy()[:, None], "c": frame.c.to_numpy(dtype=object)[:, None]}
    (probs,) = session.run(["probabilities"], feeds)
    np.testing.assert_allclose(probs, model.predict_proba(frame), atol=1e-5)


def test_histogram_boosting_is_written_though_its_converter_gives_booleans(tmp_path):
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, y = load_wine(return_X_y=True)
    model = CalibratedClassifier(HistGradientBoostingClassifier(max_iter=10), method="temperature")
    assert model.fit(x, y).to_onnx(tmp_path / "m.onnx", x).max_abs_diff < 1e-5


BOOSTERS = {
    "lightgbm": ("LGBMClassifier", {"n_estimators": 10, "verbose": -1, "n_jobs": 1}),
    "xgboost": ("XGBClassifier", {"n_estimators": 10, "n_jobs": 1}),
    "catboost": ("CatBoostClassifier", {"iterations": 10, "verbose": 0, "allow_writing_files": False}),
}


@pytest.mark.parametrize("given", ["numbers", "texts beside numbers"])
@pytest.mark.parametrize("library", BOOSTERS)
def test_boosters_are_written_without_a_registration_of_the_user_s(library, given, tmp_path):
    name, options = BOOSTERS[library]
    booster = getattr(pytest.importorskip(library), name)(**options)
    if library != "catboost":
        pytest.importorskip("onnxmltools")
    x, y = (found.astype(kind) for found, kind in zip(load_wine(return_X_y=True), ("f4", int), strict=True))
    if given != "numbers":
        x, y = frame_of_texts()
        encoded = make_column_transformer((OneHotEncoder(), ["c"]), remainder="passthrough")
        booster = make_pipeline(encoded, booster)
    model = CalibratedClassifier(booster, method="temperature").fit(x, y)
    report = model.to_onnx(tmp_path / "m.onnx", x)
    assert report.proof.startswith(f"{len(x)} rows")
    assert report.max_abs_diff < 1e-5


def test_a_booster_s_own_columns_of_texts_are_refused_with_what_to_do(tmp_path):
    frame, y = frame_of_texts()
    booster = pytest.importorskip("lightgbm").LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1)
    pytest.importorskip("onnxmltools")
    frame = frame.assign(c=frame.c.astype("category"))
    model = CalibratedClassifier(booster, method="temperature").fit(frame, y)
    with pytest.raises(FuseError, match=r"make_column_transformer\(\(OneHotEncoder\(\), \['c'\]\)"):
        model.to_onnx(tmp_path / "m.onnx", frame)


def test_few_rows_prove_nothing(tmp_path):
    x, _, y, _ = parts("two classes")
    model = CalibratedClassifier(LogisticRegression(max_iter=500), method="temperature").fit(x, y)
    with pytest.raises(ShapeError, match="n at least 20"):
        model.to_onnx(tmp_path / "m.onnx", x[:19])


def test_a_temperature_of_scikit_learn_is_refused_with_what_to_take_instead(tmp_path):
    from sklearn.calibration import CalibratedClassifierCV

    x, _, y, _ = parts("two classes")
    base = CalibratedClassifierCV(LogisticRegression(max_iter=500), method="temperature")
    model = CalibratedClassifier(base, method="temperature", response_method="predict_proba").fit(x, y)
    with pytest.raises(FuseError, match=r"CalibratedClassifier\(method='temperature'\)"):
        model.to_onnx(tmp_path / "m.onnx", x)
