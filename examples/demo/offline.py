"""The offline half of the demo: train and export, fit three calibrations, fuse the best of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import digits
import numpy as np
import torch
from digits import Digits
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.fit import (
    Masking,
    Samples,
    fit_masked_head,
    fit_neural_clamping,
    fit_temperature,
)
from calib_serve.fuse import FuseReport, fuse_onnx, open_session
from calib_serve.metrics import Evaluation, evaluate_probs, nll
from calib_serve.models import Classifier, calibrated_probs, load_model

CLASS_NAMES = tuple(str(digit) for digit in range(10))

Probs = NDArray[np.float64]


@dataclass(frozen=True)
class Deployed:
    """A trained classifier as it would be deployed, and the data around it."""

    digits: Digits
    model: Path
    onnx: Path
    classifier: Classifier


@dataclass(frozen=True)
class CalibrationChoice:
    """Three candidates judged: ``chosen`` has the least NLL on the choice split.

    ``probs`` and ``evaluations`` are of the test split, which nothing was fitted to or chosen on.
    """

    artifacts: Mapping[str, Artifact]
    chosen: str
    probs: Mapping[str, Probs]
    evaluations: Mapping[str, Evaluation]

    @property
    def artifact(self) -> Artifact:
        """The chosen artifact."""
        return self.artifacts[self.chosen]


@dataclass(frozen=True)
class Fused:
    """The artifact on disk, the fused graph, and how far onnxruntime is from torch with it."""

    artifact: Path
    onnx: Path
    report: FuseReport
    max_difference: float


def deploy(out: Path, *, seed: int = 0) -> Deployed:
    """Train on 100 digits and export, then load the classifier from its .pt2 file only."""
    torch.set_num_threads(1)  # so small a network only waits for a second thread
    data = digits.load_splits(seed=seed)
    model, onnx = digits.write_models(digits.train(data.train, seed=seed), out / "model")
    return Deployed(data, model, onnx, load_model(model))


def choose_calibration(deployed: Deployed, *, seed: int = 0) -> CalibrationChoice:
    """Fit temperature scaling, Neural Clamping and the masked head; choose among them."""
    classifier, data = deployed.classifier, deployed.digits
    images, labels = data.calibration.images, data.calibration.labels
    artifacts = {
        "temperature": replace(
            fit_temperature(Samples.of(classifier.logits(images), labels)), model=classifier.facts()
        ),
        "neural clamping": fit_neural_clamping(
            classifier, images, labels, clip=(0.0, 1.0), class_names=CLASS_NAMES, seed=seed
        ),
        "masked head": fit_masked_head(
            classifier.features(images),
            labels,
            masking=Masking(epochs=100, batch=32),  # 375 digits are 12 batches an epoch
            model=classifier.facts(),
            class_names=CLASS_NAMES,
            seed=seed,
        ),
    }
    choice = {
        name: nll(calibrated_probs(classifier, data.choice.images, a), data.choice.labels)
        for name, a in artifacts.items()
    }
    candidates: dict[str, Artifact | None] = {"uncalibrated": None, **artifacts}
    probs = {name: calibrated_probs(classifier, data.test.images, a) for name, a in candidates.items()}
    evaluations = {name: evaluate_probs(p, data.test.labels, seed=seed) for name, p in probs.items()}
    return CalibrationChoice(artifacts, min(choice, key=choice.__getitem__), probs, evaluations)


def fuse(deployed: Deployed, calibrated: CalibrationChoice, out: Path) -> Fused:
    """Save the chosen artifact, put it into the ONNX graph, and compare onnxruntime with torch."""
    artifact = calibrated.artifact.save(out / "artifact")
    fused = out / "model" / "digits-calibrated.onnx"
    # The artifact was fitted on the torch.export file: this graph must give the scores of that one.
    images = deployed.digits.calibration.images
    scores = (images, deployed.classifier.logits(images))
    report = fuse_onnx(deployed.onnx, calibrated.artifact, fused, returns="probabilities", against=scores)
    session = open_session(fused, threads=1)
    (probs,) = session.run(None, {session.get_inputs()[0].name: deployed.digits.test.images})
    difference = np.abs(probs - calibrated.probs[calibrated.chosen]).max()
    return Fused(artifact, fused, report, float(difference))
