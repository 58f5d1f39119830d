"""Calibration in scikit-learn: a classifier with its calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from warnings import warn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection._search import BaseSearchCV
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import (
    Bunch,
    _safe_indexing,
    assert_all_finite,
    check_random_state,
    column_or_1d,
    get_tags,
    indexable,
)
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import (
    _check_method_params,
    check_consistent_length,
    check_is_fitted,
    has_fit_parameter,
)

from calib_serve.artifact import Artifact, ModelFacts
from calib_serve.core.arrays import as_array
from calib_serve.core.errors import InputError
from calib_serve.fit import FOLDS, Samples, fit_samples
from calib_serve.integrations.sklearn.rows import Ints, check_same_rows, splits
from calib_serve.metrics import group_codes
from calib_serve.scores import Outputs, to_logits

if TYPE_CHECKING:
    from calib_serve.fuse import FuseReport

Response = Literal["auto", "decision_function", "predict_proba"]


def _encoded(y: ArrayLike, classes: ArrayLike | None = None) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The classes (K,) and y as class ids (n,); InputError for labels that are not among ``classes``."""
    assert_all_finite(y)
    check_classification_targets(y)
    encoder = LabelEncoder().fit(y)
    found = encoder.classes_
    known = found if classes is None else np.asarray(classes)
    if len(known) < 2:
        raise InputError(f"y holds one class, {known.tolist()}; a classifier needs at least two classes")
    if classes is None:
        return known, encoder.transform(y).astype(np.intp)
    place = {label: k for k, label in enumerate(known.tolist())}
    strange = [label for label in found.tolist() if label not in place]
    if strange:
        raise InputError(f"y holds labels {strange[:5]} that are not among the classes {known.tolist()[:20]}")
    ids = np.array([place[label] for label in found.tolist()], np.intp)
    return known, ids[encoder.transform(y)]


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with calibrated probabilities.

    The calibration is fitted to scores of samples that the classifier was not trained on, by
    cross-validation; the classifier that predicts is trained on all samples. One that is fitted already,
    in a ``FrozenEstimator`` or with ``cv="prefit"``, is calibrated on all samples given to ``fit``.

    After ``fit``: ``estimator_`` is the classifier, ``artifact_`` the calibration, ``method_`` the method
    that was fitted ("none" where no calibration was sound), ``response_method_`` what its scores are,
    ``classes_`` the labels.

    Args:
        estimator: Classifier; a logistic regression by default.
        method: "auto", which chooses by cross-validation, or a method's name.
        cv: Number of folds, a splitter, pairs of training and test indices, or "prefit"; by default 5 folds,
            or as many as the smallest class has samples, or groups.
        response_method: "decision_function" or "predict_proba"; "auto" takes the first where there is one.
        options: The method's own options.
        n_jobs: Folds that are fitted at once.
        random_state: Seed of the random draws.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = CalibratedClassifier(LogisticRegression(max_iter=500), method="temperature").fit(X, y)
    >>> model.predict_proba(X[:2]).shape, model.method_
    ((2, 3), 'temperature')
    """

    __metadata_request__fit: ClassVar = {"groups": True}

    artifact_: Artifact
    classes_: NDArray[Any]
    estimator_: Any
    method_: str
    response_method_: str

    def __init__(
        self,
        estimator: Any = None,
        *,
        method: str = "auto",
        cv: Any = None,
        response_method: Response = "auto",
        options: Mapping[str, Any] | None = None,
        n_jobs: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.response_method = response_method
        self.options = options
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        **fit_params: Any,
    ) -> CalibratedClassifier:
        """Fit the classifier and its calibration.

        Args:
            X: Samples (n, d).
            y: Labels (n,).
            sample_weight: (n,), for the calibration, and for the classifier if it takes any.
            groups: Which samples belong together (n,): for the folds, which part none, for the calibration,
                and for the classifier if it takes any.
            **fit_params: Parameters of the classifier's ``fit``; where metadata routing is enabled, of
                whoever requested them.

        Raises:
            InputError: Where ``cv`` parts groups, and where an index has the rows in another order than X.
        """
        check_same_rows({"X": X, "y": y, "sample_weight": sample_weight, "groups": groups, **fit_params})
        X, y = indexable(X, y)
        check_consistent_length(X, y, sample_weight, groups)
        y = column_or_1d(y, warn=True)
        codes = _codes(groups, len(y))
        estimator = self._estimator()
        self.response_method_ = _response_of(estimator, self.response_method)
        if isinstance(self.estimator, FrozenEstimator) or _is(self.cv, "prefit"):
            if fit_params:
                raise InputError(
                    f"the classifier is fitted already: {next(iter(fit_params))} would be of no use"
                )
            self.estimator_, self.classes_ = estimator, estimator.classes_
            rows, logits = np.arange(len(y)), self._logits(estimator, X)
        else:
            self.classes_ = _encoded(y)[0]
            routed = self._routed(estimator, sample_weight, groups, fit_params)
            # Whatever they are called where metadata routing gives them to the splitter.
            codes = _codes(routed.splitter.split.get("groups", groups), len(y))
            rows, logits = self._held_out(estimator, X, y, codes, routed)
            # The model that predicts sees all samples; its calibration only scores of samples it had not
            # seen.
            self.estimator_ = clone(estimator).fit(X, y, **routed.estimator.fit)
        self.artifact_ = _fit_calibration(
            logits,
            _encoded(y, self.classes_)[1][rows],
            method=self.method,
            outputs=self._outputs(),
            class_names=self.classes_,
            sample_weight=None if sample_weight is None else np.asarray(sample_weight)[rows],
            # A row that is held out several times is one sample.
            groups=(np.arange(len(y)) if codes is None else codes)[rows],
            options=self.options,
            seed=_seed_of(self.random_state),
        )
        self.method_ = self.artifact_.method
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return calibrated probabilities (n, K), a column for each of ``classes_``.

        Args:
            X: Samples (n, d).
        """
        check_is_fitted(self, "artifact_")
        return self.artifact_.of_logits(self._logits(self.estimator_, X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of the largest calibrated probability, (n,).

        Args:
            X: Samples (n, d).
        """
        probs = self.predict_proba(X)
        return np.asarray(self.classes_[probs.argmax(axis=1)])

    def to_onnx(
        self,
        path: str | Path,
        X: Any,
        *,
        returns: Literal["probabilities", "all"] = "probabilities",
        dtype: Any = "float32",
    ) -> FuseReport:
        """Write classifier and calibration as one ONNX file, checked against ``predict_proba``.

        Args:
            path: File to write.
            X: Samples (n, d) of the check, which says more the more typical they are: give the training
                inputs.
            returns: "probabilities", or "all": also logits, confidence, predicted class and bin.
            dtype: float32 or float64, of the file's inputs.

        Raises:
            MissingDependency: Without skl2onnx.
            FuseError: Where the classifier cannot be converted, or where the file's probabilities differ by
                more than 1e-5; then nothing is written.
        """
        from calib_serve.integrations.sklearn.export import write_onnx  # noqa: PLC0415 - onnx is another extra

        check_is_fitted(self, "artifact_")
        return write_onnx(self, path, X, returns=returns, dtype=dtype)

    def get_metadata_routing(self) -> MetadataRouter:
        """Tell who takes what metadata: the estimator's ``fit`` and the splitter's ``split``."""
        router = MetadataRouter(owner=self).add_self_request(self)
        to_fit, to_split = (MethodMapping().add(caller="fit", callee=callee) for callee in ("fit", "split"))
        return router.add(estimator=self._estimator(), method_mapping=to_fit).add(
            splitter=self.cv, method_mapping=to_split
        )

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self._estimator())
        tags.input_tags = inner.input_tags
        tags.non_deterministic = inner.non_deterministic
        if inner.classifier_tags is not None:
            tags.classifier_tags = inner.classifier_tags
        return tags

    def _estimator(self) -> Any:
        if self.estimator is not None:
            return self.estimator
        default = LogisticRegression(max_iter=1000)
        # What scikit-learn's own default does: weights reach it without being asked for.
        return default.set_fit_request(sample_weight=True) if _routing() else default

    def _outputs(self) -> Outputs:
        return "logits" if self.response_method_ == "decision_function" else "probabilities"

    def _logits(self, estimator: Any, X: Any) -> NDArray[np.float64]:
        """Logits (n, K) of a fitted estimator, in the order of ``classes_``."""
        logits = to_logits(getattr(estimator, self.response_method_)(X), self._outputs())
        if logits.ndim != 2 or logits.shape[1] != len(self.classes_):
            raise InputError(
                f"{type(estimator).__name__}.{self.response_method_} gives {logits.shape} for "
                f"{len(self.classes_)} classes; it must give a column a class"
            )
        return np.asarray(logits, np.float64)

    def _routed(self, estimator: Any, sample_weight: Any, groups: Any, fit_params: dict[str, Any]) -> Any:
        """Parameters for ``estimator.fit`` and ``splitter.split``."""
        given = {} if groups is None else {"groups": groups}
        if _routing():
            return process_routing(self, "fit", sample_weight=sample_weight, **given, **fit_params)
        if sample_weight is not None and has_fit_parameter(estimator, "sample_weight"):
            fit_params = {**fit_params, "sample_weight": sample_weight}
        elif sample_weight is not None:
            name = type(estimator).__name__
            warn(f"{name} takes no sample_weight: it weighs the calibration alone", stacklevel=3)
        # A search hands them to its splitter, and takes them without naming them.
        takes = has_fit_parameter(estimator, "groups") or isinstance(estimator, BaseSearchCV)
        return Bunch(
            estimator=Bunch(fit={**fit_params, **given} if takes else fit_params), splitter=Bunch(split=given)
        )

    def _held_out(
        self, estimator: Any, X: Any, y: NDArray[Any], groups: Ints | None, routed: Any
    ) -> tuple[Ints, NDArray[np.float64]]:
        """Rows (m,) and their logits (m, K) from models trained without them."""
        parts = list(splits(self.cv, X, y, groups, routed.splitter.split))
        logits = Parallel(n_jobs=self.n_jobs)(
            delayed(self._fold)(clone(estimator), X, y, part, routed.estimator.fit) for part in parts
        )
        return np.concatenate([test for _, test in parts]), np.concatenate(logits)

    def _fold(
        self,
        estimator: Any,
        X: Any,
        y: NDArray[Any],
        part: tuple[Ints, Ints],
        params: Mapping[str, Any],
    ) -> NDArray[np.float64]:
        train, test = part
        own = _check_method_params(X, params=params, indices=train)
        estimator.fit(_safe_indexing(X, train), y[train], **own)
        # Columns would stand for other classes, and nobody would see it.
        if not np.array_equal(estimator.classes_, self.classes_):
            raise InputError("a fold's training part lacks a class; use fewer folds or a stratified splitter")
        return self._logits(estimator, _safe_indexing(X, test))


def _response_of(estimator: Any, wanted: str) -> str:
    names = ("decision_function", "predict_proba")
    if wanted not in ("auto", *names):
        raise InputError(f"response_method must be auto, decision_function or predict_proba, got {wanted!r}")
    found = [name for name in names if wanted in ("auto", name) and hasattr(estimator, name)]
    if not found:
        raise InputError(f"{type(estimator).__name__} has no {wanted if wanted != 'auto' else names}")
    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    if found[0] == "decision_function" and getattr(last, "decision_function_shape", "ovr") == "ovo":
        raise InputError(
            "a one-vs-one decision_function has a column a pair; use decision_function_shape='ovr'"
        )
    return found[0]


def _routing() -> bool:
    return bool(get_config().get("enable_metadata_routing", False))


def _codes(groups: Any, n: int) -> Ints | None:
    return None if groups is None else group_codes(as_array(groups, "groups"), n)


def _is(value: Any, word: str) -> bool:
    return isinstance(value, str) and value == word


def _fit_calibration(
    logits: NDArray[np.float64],
    labels: NDArray[np.intp],
    *,
    method: str,
    outputs: Outputs,
    class_names: Iterable[Any],
    sample_weight: ArrayLike | None,
    groups: NDArray[Any] | None,
    options: Mapping[str, Any] | None,
    seed: int,
) -> Artifact:
    """Fit ``method`` to logits (n, K) and class ids (n,); "auto" chooses by cross-validation.

    Where "auto" cannot cross-validate, because a class has fewer than two samples, it fits a temperature,
    or, where no finite temperature is best, calibrates nothing.
    """
    found = Samples.of(logits, labels, outputs="logits", sample_weight=sample_weight, groups=groups)
    samples = replace(found, outputs=outputs)
    given = dict(options or {})
    if method == "auto" and "folds" not in given:
        smallest = int(np.bincount(samples.labels, minlength=samples.classes).min())
        given["folds"] = max(min(FOLDS, smallest, samples.units // 2), 1)
    artifact = fit_samples(samples, method, given, cross_validate=method == "auto", seed=seed)
    names = tuple(str(name) for name in class_names)
    return replace(artifact, class_names=names, model=ModelFacts(outputs=outputs))


def _seed_of(random_state: Any) -> int:
    """The seed that scikit-learn's ``random_state`` stands for: itself, or a number drawn from it."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))
