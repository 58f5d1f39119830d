"""Samples that a command works on: scores of a file, or what a model or an archive gives for its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.app._progress import stages
from calib_serve.app._show import note
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.model import Classifier
    from calib_serve.options.data import ArchiveData, FileOptions, ModelData, PlainData
    from calib_serve.scores import Scores

__all__ = [
    "ModelSamples",
    "archive_scores",
    "file_scores",
    "held_out",
    "model_samples",
    "plain_scores",
    "refuse_file_options",
]


def file_scores(path: str | Path, options: FileOptions, *, split: str | None, **how: Any) -> Scores:
    """Read the scores of a file; say on stderr what was guessed. ``how`` as in ``Scores.read``."""
    from calib_serve.scores import Scores

    given = {"split": split, "labels": options.labels, **options.of_scores, **how}
    found = Scores.read(path, **{name: value for name, value in given.items() if value is not None})
    note(found.remarks)
    return found


def plain_scores(
    path: str | Path, options: PlainData, artifact: Artifact, *, calibrated: bool = False
) -> Scores:
    """Read scores of an artifact's model, or of the model as it is ``calibrated``; labels are not used."""
    from calib_serve.scores import Scores

    expected = "probabilities" if calibrated else artifact.model.outputs
    given: dict[str, Any] = {"split": options.split, "columns": options.columns, "expected": expected}
    found = Scores.read(path, **{name: value for name, value in given.items() if value is not None})
    note(found.remarks)
    return found


@dataclass(frozen=True, eq=False)
class ModelSamples:
    """A loaded model, and the inputs (n, *input_shape), labels and class names that it is asked with."""

    name: str
    classifier: Classifier
    inputs: Any
    labels: Any
    class_names: tuple[str, ...]


def model_samples(
    data: str | Path, options: ModelData, *, artifact: Artifact | None = None, **how: Any
) -> ModelSamples:
    """Load ``options.model`` and one split of its data, prepared as the artifact's model has them."""
    from calib_serve.model import load_model, weights_remarks
    from calib_serve.model.load import model_data
    from calib_serve.scores import LABELS

    model = str(options.model)
    of_pictures = artifact is not None and Path(data, "labels.csv").is_file()
    pictures = artifact.model.pictures if artifact is not None and of_pictures else None
    (samples,) = model_data(model, data, [options.split], pictures=pictures)
    note(samples.remarks)
    shape = samples.inputs.shape[1:]
    classifier = load_model(model, weights=options.weights, input_shape=shape, **how)
    note(weights_remarks(model, options.weights))
    multilabel = classifier.outputs in LABELS
    samples.check(classifier.input_shape, classifier.classes, multilabel=multilabel)
    return ModelSamples(Path(model).stem, classifier, samples.inputs, samples.labels, samples.class_names)


def archive_scores(
    data: str | Path, options: ArchiveData, artifact: Artifact | None, *, quiet: bool
) -> tuple[Scores, Artifact | None]:
    """Ask an archive's handler for its scores; return them and what calibrates them, if anything does."""
    from calib_serve.archives import scores_of_archive

    refuse_file_options(options, "--from")
    with stages(quiet=quiet) as progress:
        found = scores_of_archive(
            str(options.from_),
            data,
            (options.split,),
            artifact=artifact,
            progress=progress,
            seam=options.seam,
            probe_timeout=options.probe_timeout,
            outputs=options.outputs,
        )
    return found.parts[0], found.artifact


def held_out(artifact: Artifact, data: str | Path, options: ModelData) -> Scores:
    """Return samples that the artifact's fit has not seen, with the scores that its calibration acts on."""
    if options.model is None:
        if artifact.model_steps:
            raise InputError(
                "this calibration changes the model itself, which its scores cannot show; name the model "
                "with --model, and data that the fit has not seen"
            )
        return file_scores(data, options, split=options.split, expected=artifact.model.outputs)
    from calib_serve.model import logits_under
    from calib_serve.scores import Scores

    refuse_file_options(options, "--model")
    asked = model_samples(data, options, artifact=artifact, outputs=options.outputs)
    kind = "logits" if artifact.head is not None else asked.classifier.outputs
    z = logits_under(asked.classifier, asked.inputs, artifact)
    return Scores.of_logits(z, asked.labels, kind, class_names=asked.class_names)


def refuse_file_options(options: FileOptions, source: str) -> None:
    """Raise InputError for an option of a file of scores that is given beside a model or an archive."""
    given = {"labels": options.labels, **options.of_scores}
    if extra := [name for name, value in given.items() if value is not None and name != "outputs"]:
        flag = f"--{extra[0].replace('_', '-')}"
        raise InputError(
            f"{flag} is for a file of scores; beside {source}, DATA hold inputs and their labels"
        )
