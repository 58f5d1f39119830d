"""Samples that a calibration's fit has not seen: from a file of scores, or of a model on its data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.cli import options
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.scores import Scores

__all__ = ["check_given", "held_out"]


def check_given(logits: Path | None, model: str | None) -> None:
    """InputError unless one of both is given."""
    if (logits is None) == (model is None):
        raise InputError("say on what: --logits FILE, or --model MODEL with --data DATA")


def held_out(
    artifact: Artifact,
    *,
    logits: Path | None,
    model: str | None,
    weights: Path | None,
    data: str | None,
    split: str | None,
    outputs: Any,
    **of_file: Any,
) -> Scores:
    """The scores of the file ``logits``, or what ``model`` gives for ``data``."""
    if logits is not None:
        return _scores(artifact, logits, split=split, outputs=outputs, **of_file)
    return _of_model(artifact, str(model), weights, data, split=split, outputs=outputs)


def _scores(artifact: Artifact, path: Path, **how: Any) -> Scores:

    if artifact.model_steps:
        raise InputError(
            "this calibration changes the model itself, which its logits cannot show; name the model and "
            "data that the fit has not seen with --model and --data"
        )
    return options.read_scores(path, expected=artifact.model.outputs, **how)


def _of_model(
    artifact: Artifact, model: str, weights: Path | None, data: str | None, *, split: str | None, outputs: Any
) -> Scores:
    if data is None:
        raise InputError("--model needs --data: images or arrays that the fit has not seen, and their labels")
    from calib_serve.model import load_model, logits_under, weights_remarks
    from calib_serve.model.load import model_data

    of_pictures = Path(data, "labels.csv").is_file()
    pictures = artifact.model.pictures if of_pictures else None
    (samples,) = model_data(model, data, [split], pictures=pictures)
    options.tell(samples.remarks)
    classifier = load_model(model, weights=weights, input_shape=samples.inputs.shape[1:], outputs=outputs)
    options.tell(weights_remarks(model, weights))
    samples.check(classifier.input_shape, classifier.classes)
    kind = "logits" if artifact.head is not None else classifier.outputs
    z = logits_under(classifier, samples.inputs, artifact)
    return Scores.of_logits(z, samples.labels, kind, class_names=samples.class_names)
