"""New heads for a deployed model: the masked head and the tuned head, with their measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.data import Dataset
from calib_serve.errors import CalibServeError, InputError
from calib_serve.fit.facts import measured_on_folds
from calib_serve.fit.masked import fit_masked_head, held_rows, reading
from calib_serve.fit.measure import measured, unmeasured
from calib_serve.fit.output import facts_of_probabilities, fit_by_name
from calib_serve.fit.progress import Progress, stage
from calib_serve.fit.samples import stratified
from calib_serve.fit.tuned_head import fit_tuned_head
from calib_serve.metrics import softmax
from calib_serve.model import Classifier

HEADS = ("masked-head", "tuned-head")
"""The methods that put a new head on the model: class shares are learnt in it."""

_FOLDS = 5
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class HeadFit:
    """The fit of a head to a classifier's calibration data; ``measure`` on a held-out part or not."""

    classifier: Classifier
    given: Dataset
    measure: bool
    checkpoints: str | Path | None
    seed: int
    progress: Progress | None

    def masked(self, train: Dataset | None, options: Mapping[str, Any]) -> Artifact:
        """A new head, trained on ``train`` or on a part of the calibration data, steered by the rest."""
        name, then = options.get("reading", "expected"), options.get("then")
        reading(name, 1)  # refuses a name that does not exist before the model is asked for anything
        features, labels = self._features(self.given, "features"), self.given.labels
        if train is None:
            kept, held = held_rows(len(labels), options.get("held_share", 0.25), self.seed)
            learned, learned_labels = features[kept], labels[kept]
            features, labels = features[held], labels[held]
        else:
            if "held_share" in options:
                raise InputError("held_share is for a fit without train: the calibration data are held out")
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
            checkpoints=self.checkpoints,
            progress=stage(self.progress, "masked-head"),
        )
        if not self.measure or artifact.head is None:
            return artifact
        return self._measured_where_held(artifact, features, labels, then)

    def tuned(self, options: Mapping[str, Any]) -> Artifact:
        """The deployed head, moved by the calibration data."""
        features, labels = self._features(self.given, "features"), self.given.labels

        def fit(rows: slice | NDArray[np.intp], progress: Callable[[int, int], None] | None) -> Artifact:
            return fit_tuned_head(
                features[rows],
                labels[rows],
                self.classifier.head,
                model=self.classifier.facts(),
                class_names=self.given.class_names,
                seed=self.seed,
                progress=progress,
                **options,
            )

        artifact = fit(slice(None), stage(self.progress, "tuned-head"))
        return self._over_folds(artifact, features, fit) if self.measure else artifact

    def _features(self, data: Dataset, what: str) -> Floats:
        return self.classifier.features(data.inputs, progress=stage(self.progress, what))

    def _measured_where_held(
        self, artifact: Artifact, features: Floats, labels: NDArray[np.intp], then: str | None
    ) -> Artifact:
        """On the samples that steered the training; ``then`` is fitted to those of other folds."""
        assert artifact.head is not None
        z = artifact.head(features)
        on = "the held-out samples that steered the training"
        if then is None:
            probs = softmax(z)
        else:
            probs = np.empty(z.shape)
            fold = stratified(labels, folds=min(_FOLDS, len(labels) // 2), seed=self.seed)
            try:
                for f in np.unique(fold):
                    behind = fit_by_name(then, z[fold != f], labels[fold != f], seed=self.seed)
                    probs[fold == f] = behind.of_logits(z[fold == f])
            except CalibServeError as error:
                return unmeasured(artifact, error)
            on += f", {then} by folds of these"
        return measured(artifact, self.classifier.head(features), probs, labels, on=on, seed=self.seed)

    def _over_folds(
        self, artifact: Artifact, features: Floats, fit: Callable[[NDArray[np.intp], None], Artifact]
    ) -> Artifact:
        labels = self.given.labels
        fold = stratified(labels, folds=min(_FOLDS, len(labels) // 2), seed=self.seed + 1)
        probs = np.empty((len(labels), self.classifier.classes))
        try:
            for f in np.unique(fold):
                part = fit(np.flatnonzero(fold != f), None)
                assert part.head is not None
                probs[fold == f] = part.of_logits(part.head(features[fold == f]))
        except CalibServeError as error:
            return unmeasured(artifact, error)
        plain = softmax(self.classifier.head(features))
        names = artifact.class_names
        found = facts_of_probabilities(plain, probs, labels, class_names=names, seed=self.seed)
        return measured_on_folds(artifact, found, folds=int(fold.max()) + 1, samples=len(labels))
