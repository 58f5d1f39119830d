"""Calibrate a deployed model: from the model and its data to an artifact that is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import KEPT_ROWS, Artifact, KeptRows, Preprocessing, hash_rows
from calib_serve.core.arrays import as_array
from calib_serve.core.errors import CalibServeError, InputError
from calib_serve.core.options.base import check, divided
from calib_serve.core.options.fit import ModelFitOptions
from calib_serve.fit.clamping.efficient import fit_neural_clamping_efficient
from calib_serve.fit.clamping.fit import GAMMAS, fit_neural_clamping
from calib_serve.fit.clamping.schedules import fit_neural_clamping_paper
from calib_serve.fit.facts import remarked
from calib_serve.fit.folds import FOLDS, fits_of_folds, stratified
from calib_serve.fit.from_scores import AUTO, fit_samples, method_options
from calib_serve.fit.masked import fit_masked_head, held_rows, reading
from calib_serve.fit.measure import facts_of_probabilities, measured_on_folds, unmeasured, with_metrics
from calib_serve.fit.output.candidates import check_options, fitter_of, options_of
from calib_serve.fit.output.learnable import sample_remarks
from calib_serve.fit.progress import Progress, stage
from calib_serve.fit.samples import Samples
from calib_serve.fit.shares import for_shares, referenced
from calib_serve.metrics import ClassShares, as_shares
from calib_serve.models import (
    Classifier,
    Dataset,
    calibrated_probs,
    from_module,
    in_order_of,
    load_model,
    weights_remarks,
)
from calib_serve.scores import LABELS, Outputs, softmax

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import ModelFitKeywords

Data = tuple[ArrayLike, ArrayLike]
"""Inputs (n, *input_shape) as the model takes them, and class ids (n,)."""

_OURS = ("gamma", "penalty", "resolution", "normalisation")
_PAPER = ("gamma", "penalty", "start", "normalisation", "input_range")
MODEL_OPTIONS = {
    "neural-clamping": (*dict.fromkeys((*_OURS, *_PAPER)), "schedule"),
    "neural-clamping-efficient": ("grid", "input_range"),
    "masked-head": ("reading", "then"),
}
"""The methods that need the model itself, and their options."""

MODEL_FITTERS: dict[str, Callable[..., Artifact]] = {
    "neural-clamping": fit_neural_clamping,
    "neural-clamping-efficient": fit_neural_clamping_efficient,
    "masked-head": fit_masked_head,
}
"""Names of the methods that need the model, and the function that fits each by default."""

SCHEDULES: dict[str, tuple[Callable[..., Artifact], tuple[str, ...]]] = {
    "ours": (fit_neural_clamping, _OURS),
    "paper": (fit_neural_clamping_paper, _PAPER),
}
"""Neural Clamping's schedules: what fits by each, and the options it takes."""

_WEIGHTS = ("sample_weight", "class_weight")  # which calibrate has beside its methods' options

_OF_LOADING = (
    *("weights", "input_shape", "last_linear", "device", "batch_size", "outputs"),
    *("output_name", "custom_ops"),
)  # fmt: skip


def calibrate_model(
    model: Union[nn.Module, Classifier, str, Path],
    inputs: ArrayLike,
    labels: ArrayLike,
    method: str = "auto",
    options: ModelFitOptions | None = None,
    *,
    test: Data | None = None,
    progress: Progress | None = None,
    **keywords: Unpack[ModelFitKeywords],
) -> Artifact:
    """Fit ``method`` to a deployed ``model`` and its calibration data.

    Before and after are measured on ``test``, else on samples that were held out. How pictures became the
    inputs (``pictures``) goes into the artifact, and its archive prepares those that are sent in the same
    way.

    Args:
        model: An ``nn.Module`` in evaluation mode, a ``Classifier``, or what ``load_model`` reads: a .pt2,
            ONNX or TorchScript file, or ``module:factory`` with its ``weights``.
        inputs: Inputs (n, *input_shape), as the model takes them.
        labels: Class ids (n,); of a multi-label model (n, L) of 0 and 1, with ``outputs`` "label_logits" or
            "label_probabilities", and a method of labels.
        method: "neural-clamping", "neural-clamping-efficient", "masked-head", any output method (fitted to
            the model's logits), or "auto": the best of these.
        options: A ``ModelFitOptions``; keywords replace its fields.
        test: Inputs and labels that nothing was fitted to.
        progress: Called with a stage, and how much of it is done, of how much.
        **keywords: Fields of ``ModelFitOptions``: ``batch_size``, ``class_names``,
            ``cross_validate``, ``custom_ops``, ``device``, ``input_shape``, ``keep_rows``, ``last_linear``,
            ``output_name``, ``outputs``, ``pictures``, ``prior``, ``seed``, ``train``, ``weights``. Options
            of Neural Clamping: ``gamma``, ``grid``, ``input_range``, ``normalisation``, ``penalty``,
            ``resolution``, ``schedule``, ``start``. Options of the masked head: ``reading``, ``then``.
            Options of output methods, as of ``calibrate``: ``bins``, ``candidates``, ``class_weight``,
            ``folds``, ``grid``, ``keep_predictions``, ``of``, ``sample_weight``, ``smoothing``.

    Raises:
        InputError: For data and options that do not fit.
        ModelError: For a model that cannot be loaded or lacks what the method needs.
        FitError: Where the method has no optimum.
    """
    asked, own = divided(options or ModelFitOptions(), keywords, model_options(), verb=calibrate_model)
    said = tuple(asked.class_names)
    data = _dataset((inputs, labels), said)
    shape = data.inputs.shape[1:]
    prepared = None if asked.pictures is None else Preprocessing.of(asked.pictures).for_input(shape)
    if prepared is not None and "normalisation" in own and set(prepared.std) != {1.0}:
        raise InputError(
            f"the inputs are normalised already, by std {list(prepared.std)}, so delta acts behind that; "
            "leave out normalisation, which is for a model that takes [0, 1] and normalises inside"
        )
    classifier = _classifier(model, shape, asked)
    data = in_order_of(classifier, data)
    work = _Work(classifier, data, said, asked.seed, progress)
    work.check(data)
    held = None if test is None else work.checked(test)
    artifact = work.fitted(method, own, asked, held)
    if prepared is not None:
        artifact = replace(artifact, model=replace(artifact.model, pictures=prepared))
    if asked.keep_rows:
        artifact = keeping_rows(artifact, work.classifier, data.inputs)
    artifact = remarked(artifact, after=[*weights_remarks(model, asked.weights), *data.remarks])
    return artifact if held is None else work.measured(artifact, held)


@cache
def model_options() -> tuple[str, ...]:
    """List the options of all methods on a model, and of those on its scores, which may weigh samples."""
    names = [name for options in MODEL_OPTIONS.values() for name in options]
    return tuple(dict.fromkeys([*names, *method_options(), *_WEIGHTS]))


def keeping_rows(artifact: Artifact, classifier: Classifier, inputs: NDArray[Any]) -> Artifact:
    """Add some of the model's own scores to an artifact, with hashes of their inputs.

    By these a fusion knows another export of the model, where it is given the inputs.

    Args:
        artifact: Calibration of the model.
        classifier: The model.
        inputs: Inputs (n, ...) that it was fitted on.
    """
    spread = np.linspace(0, len(inputs) - 1, min(KEPT_ROWS, len(inputs))).astype(np.intp)
    # A row that is there twice has one hash.
    some = inputs[spread[np.unique(hash_rows(inputs[spread]), axis=0, return_index=True)[1]]]
    return replace(artifact, kept=KeptRows(hash_rows(some), classifier.logits(some)))


def _dataset(data: Data, class_names: tuple[str, ...]) -> Dataset:
    return Dataset(as_array(data[0], "inputs"), as_array(data[1], "labels"), class_names)


def _classifier(model: Any, shape: tuple[int, ...], asked: ModelFitOptions) -> Classifier:
    """Load ``model`` as a classifier, with its results on disk where asked."""
    how: dict[str, Any] = {
        "input_shape": shape if asked.input_shape is None else _sizes(asked.input_shape),
        "last_linear": asked.last_linear,
        "device": asked.device,
        "batch_size": asked.batch_size,
        "outputs": asked.outputs,
    }
    if isinstance(model, (str, Path)):
        of_file = {name: getattr(asked, name) for name in ("weights", "output_name", "custom_ops")}
        loaded = load_model(model, **of_file, **how)
    # By a method and not by type: Classifier is a protocol, and callers bring classes of their own.
    elif hasattr(model, "input_gradient"):
        if late := [name for name in _OF_LOADING if getattr(asked, name) != getattr(ModelFitOptions, name)]:
            raise InputError(f"this classifier was made already: say {late[0]}= where it is made")
        loaded = model
    elif asked.weights or asked.output_name or asked.custom_ops:
        raise InputError(
            "weights belong to a factory, module:name, output_name and custom_ops to an ONNX file; this is a "
            "module in memory"
        )
    else:
        loaded = from_module(model, **how)
    return loaded


def _sizes(given: Any) -> tuple[int, ...]:
    """Check the sizes of one input; a command line gives a single size as a number."""
    sizes = np.atleast_1d(np.asarray(given))
    check(
        sizes.dtype.kind == "i" and sizes.ndim == 1 and bool((sizes > 0).all()),
        "input_shape",
        f"is the sizes of one input, such as 3,224,224, got {given!r}",
    )
    return tuple(sizes.tolist())


@dataclass(frozen=True, eq=False)
class _Work:
    """One calibration of a model: what every method needs."""

    classifier: Classifier
    given: Dataset
    names: tuple[str, ...]
    seed: int
    progress: Progress | None

    @property
    def multilabel(self) -> bool:
        """Whether any number of the model's labels may be true."""
        return self.classifier.outputs in LABELS

    def check(self, data: Dataset) -> None:
        """Raise InputError unless ``data`` fits the model."""
        data.check(self.classifier.input_shape, self.classifier.classes, multilabel=self.multilabel)

    def checked(self, data: Data) -> Dataset:
        """``data`` as a data set, refused where it does not fit the model."""
        found = in_order_of(self.classifier, _dataset(data, self.names))
        self.check(found)
        return found

    def fitted(
        self,
        method: str,
        options: Mapping[str, Any],
        asked: ModelFitOptions,
        held: Dataset | None,
    ) -> Artifact:
        """Fit ``method``, measured where that is asked for and nothing is ``held``."""
        shares = None if asked.prior is None else self._shares(asked.prior, method)
        if asked.train is not None and method != "masked-head":
            raise InputError(f"train is for the masked head; {method} fits on the calibration data alone")
        said: list[str] = []
        if method in MODEL_OPTIONS:
            # Of labels any number may be true: no shift, head or class share is fitted to them.
            if self.multilabel:
                raise InputError(f"{method} is of one class a sample; labels have output methods, as platt")
            check_options(method, options, MODEL_OPTIONS[method])
            # A perturbation or a head could be fitted even to sets that output methods refuse.
            said = sample_remarks(self._samples())
        else:
            known = AUTO if method == "auto" else options_of(method, self.multilabel)
            check_options(method, options, (*known, *_WEIGHTS))
        measure = asked.cross_validate and held is None
        if method == "masked-head":
            train = None if asked.train is None else self.checked(asked.train)
            artifact = self._masked(train, options, measure)
        elif method == "neural-clamping":
            artifact = self._clamped(options)
        elif method == "neural-clamping-efficient":
            artifact = self._clamped_efficiently(options, measure)
        else:
            weights = {name: options[name] for name in _WEIGHTS if name in options}
            own = {name: value for name, value in options.items() if name not in _WEIGHTS}
            artifact = fit_samples(
                self._samples(**weights),
                method,
                own,
                class_names=self.given.class_names,
                prior=shares,
                cross_validate=measure,
                seed=self.seed,
                progress=self.progress,
            )
            return replace(artifact, model=self.classifier.facts())
        artifact = artifact if shares is None else self._corrected(artifact, shares)
        return remarked(artifact, after=said)

    def measured(self, artifact: Artifact, held: Dataset) -> Artifact:
        """The artifact with its metrics on held-out samples."""
        z = self.classifier.logits(held.inputs, progress=stage(self.progress, "test logits"))
        if artifact.input_shift or artifact.head:
            probs = calibrated_probs(self.classifier, held.inputs, artifact)
        else:
            probs = artifact.of_logits(z)
        return with_metrics(artifact, z, probs, held.labels, seed=self.seed)

    def _logits(self) -> NDArray[np.float32]:
        return self.classifier.logits(self.given.inputs, progress=stage(self.progress, "logits"))

    def _samples(self, **weights: Any) -> Samples:
        """The model's logits as samples, with the kind of scores that the model returns."""
        kind: Outputs = "label_logits" if self.multilabel else "logits"
        found = Samples.of(self._logits(), self.given.labels, outputs=kind, **weights)
        return replace(found, outputs=self.classifier.outputs)

    def _features(self, data: Dataset, what: str) -> NDArray[np.float32]:
        return self.classifier.features(data.inputs, progress=stage(self.progress, what))

    def _shares(self, prior: ClassShares, method: str) -> NDArray[np.float64]:
        """The class shares to correct to, checked before anything is fitted."""
        if self.multilabel:
            raise InputError("class shares (prior) are of classes of which one is true, not of labels")
        if method == "masked-head":
            raise InputError(
                "the masked head learns its class shares in training; weigh its training data, or calibrate "
                "the model that has it with prior"
            )
        return as_shares(prior, self.classifier.classes, self.given.class_names)

    def _corrected(self, artifact: Artifact, shares: NDArray[np.float64]) -> Artifact:
        """Correct an artifact inside the model to other class shares, with a reference under these shares."""
        made = for_shares(artifact, shares, how="given")
        probs = calibrated_probs(self.classifier, self.given.inputs, made)
        return referenced(made, self._samples(), [(slice(None), probs)])

    def _clamped(self, options: Mapping[str, Any]) -> Artifact:
        """Fit Neural Clamping by one of its schedules."""
        known = dict(options)
        if "resolution" in known:  # files and command lines have no None, and say "full"
            given = known["resolution"]
            if isinstance(given, (list, tuple)):
                known["resolution"] = [None if one == "full" else one for one in given]
            elif given == "full":
                known["resolution"] = None
        schedule = known.pop("schedule", "ours")
        if schedule not in SCHEDULES:
            raise InputError(f"schedule must be one of {', '.join(map(repr, SCHEDULES))}, got {schedule!r}")
        fit, takes = SCHEDULES[schedule]
        check_options(f"neural-clamping under the schedule {schedule!r}", known, takes)
        if known.get("gamma") == "paper":
            # Section 3.3: gamma from 0 to 1 in steps of 0.05.
            known["gamma"] = GAMMAS
        return fit(
            self.classifier,
            self.given.inputs,
            self.given.labels,
            class_names=self.given.class_names,
            seed=self.seed,
            progress=stage(self.progress, "neural-clamping"),
            **known,
        )

    def _clamped_efficiently(self, options: Mapping[str, Any], measure: bool) -> Artifact:
        """Fit Neural Clamping by one backward pass."""
        inputs, labels = self.given.inputs, self.given.labels

        def fit(rows: slice | NDArray[np.intp]) -> Artifact:
            return fit_neural_clamping_efficient(
                self.classifier,
                inputs[rows],
                labels[rows],
                class_names=self.given.class_names,
                progress=stage(self.progress, "neural-clamping-efficient"),
                **options,
            )

        artifact = fit(slice(None))
        if not measure:
            return artifact
        samples = Samples.of(self._logits(), labels, outputs="logits")
        probs = np.empty(samples.logits.shape)
        try:
            fold = stratified(samples.labels, folds=min(FOLDS, len(samples) // 2), seed=self.seed)
            for f in range(int(fold.max()) + 1):
                kept, held = np.flatnonzero(fold != f), np.flatnonzero(fold == f)
                probs[held] = calibrated_probs(self.classifier, inputs[held], fit(kept))
        except CalibServeError as error:
            return unmeasured(artifact, error)
        plain, names = softmax(samples.logits), artifact.class_names
        found = facts_of_probabilities(plain, probs, samples, class_names=names, seed=self.seed)
        return measured_on_folds(artifact, found, folds=int(fold.max()) + 1, samples=len(samples))

    def _masked(self, train: Dataset | None, options: Mapping[str, Any], measure: bool) -> Artifact:
        """Train a new head on ``train`` or on a part of the calibration data, steered by the rest."""
        name, then = options.get("reading", "expected"), options.get("then")
        reading(name, 1)  # refuses a name that does not exist before the model is asked for anything
        features, labels = self._features(self.given, "features"), self.given.labels
        if train is None:
            kept, held = held_rows(len(labels), self.seed)
            learned, learned_labels = features[kept], labels[kept]
            features, labels = features[held], labels[held]
        else:
            learned, learned_labels = self._features(train, "train features"), train.labels
        artifact = fit_masked_head(
            learned,
            learned_labels,
            features,
            labels,
            classes=self.classifier.classes,
            masking=reading(name, len(learned_labels)),
            then=then,
            model=self.classifier.facts(),
            class_names=self.given.class_names,
            seed=self.seed,
            progress=stage(self.progress, "masked-head"),
        )
        if not measure or artifact.head is None:
            return artifact
        z, on = artifact.head(features), "the held-out samples that steered the training"
        probs = softmax(z)
        if then is not None:
            on += f", {then} by folds of these"
            samples = Samples(z, labels)
            fold = stratified(samples.labels, folds=min(FOLDS, len(labels) // 2), seed=self.seed)
            try:
                fits = fits_of_folds(samples, fold, fitter_of(then, {}, seed=self.seed))
                for rows, p in samples.held_out(fold, fits):
                    probs[rows] = p
            except CalibServeError as error:
                return unmeasured(artifact, error)
        return with_metrics(artifact, self.classifier.head(features), probs, labels, on=on, seed=self.seed)
