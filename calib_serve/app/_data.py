"""Samples for a command: scores in a file, or from a model or an archive for its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.app._command import pairs
from calib_serve.app._progress import stages
from calib_serve.app._show import note
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import Factory, check, fields_of
from calib_serve.core.options.data import ArchiveOptions, PlainData

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact, Preprocessing
    from calib_serve.core.options.data import BySchema, DataOptions, HeldData
    from calib_serve.models import Classifier
    from calib_serve.scores import Outputs, Schema, Scores

_KEYS = ("mean", "std", "image_size", "resize_shorter", "crop", "interpolation")


def file_scores(
    path: str | Path,
    options: BySchema,
    *,
    split: str | None,
    expected: Schema | Outputs | None = None,
) -> Scores:
    """Read the scores of a file; note what was read on stderr. Keywords as in ``Scores.read``."""
    from calib_serve.scores import Scores

    found = Scores.read(path, split=split, expected=expected, **options.of_file)
    note([found.reading])
    return found


def plain_scores(
    path: str | Path, options: PlainData, artifact: Artifact, *, calibrated: bool = False
) -> Scores:
    """Read scores of an artifact's model, or of the model as it is ``calibrated``; no labels are needed."""
    from calib_serve.scores import Schema, Scores

    expected = Schema("probabilities", artifact.class_names) if calibrated else artifact.schema
    found = Scores.read(path, **fields_of(PlainData, options), expected=expected)
    note([found.reading])
    return found


@dataclass(frozen=True, eq=False)
class ModelSamples:
    """A loaded model, with its inputs (n, *input_shape), labels and class names."""

    name: str
    classifier: Classifier
    inputs: Any
    labels: Any
    class_names: tuple[str, ...]


def model_samples(
    data: str | Path,
    options: HeldData | DataOptions,
    *,
    factory: Factory = Factory(),
    artifact: Artifact | None = None,
    outputs: Outputs | None = None,
) -> ModelSamples:
    """Load ``options.model`` and one split of its data, prepared as the artifact's model has them."""
    from calib_serve.models import in_order_of, load_model, model_data, weights_remarks
    from calib_serve.scores import LABELS

    model = str(options.model)
    # As in the fit: pictures that are normalised in another way change every score, and no shape.
    of_pictures = artifact is not None and Path(data, "labels.csv").is_file()
    pictures = artifact.model.pictures if artifact is not None and of_pictures else None
    (samples,) = model_data(model, data, [options.split], pictures=pictures, outputs=outputs)
    shape = samples.inputs.shape[1:]
    classifier = load_model(model, **fields_of(Factory, factory), input_shape=shape, outputs=outputs)
    samples = in_order_of(classifier, samples)
    note([*samples.remarks, *weights_remarks(model, factory.weights)])
    multilabel = classifier.outputs in LABELS
    samples.check(classifier.input_shape, classifier.classes, multilabel=multilabel)
    return ModelSamples(Path(model).stem, classifier, samples.inputs, samples.labels, samples.class_names)


def archive_scores(
    data: str | Path, options: DataOptions, artifact: Artifact | None, *, quiet: bool
) -> tuple[Scores, Artifact | None]:
    """Ask an archive's handler for its scores; return them with the archive's calibration, if any."""
    from calib_serve.torchserve import scores_of_archive

    refuse_file_options(options, "--from")
    with stages(quiet=quiet) as progress:
        found = scores_of_archive(
            str(options.from_),
            data,
            (options.split,),
            ArchiveOptions(seam=options.seam, outputs=options.kind),
            artifact=artifact,
            progress=progress,
        )
    return found.parts[0], found.artifact


def held_out(artifact: Artifact, data: str | Path, options: HeldData) -> Scores:
    """Samples that the artifact's fit has not seen, with the scores that its calibration acts on."""
    if options.model is None:
        if artifact.model_steps:
            raise InputError(
                "this calibration changes the model itself, which its scores cannot show; name the model "
                "with --model, and data that the fit has not seen"
            )
        return file_scores(data, options, split=options.split, expected=artifact.schema)
    from calib_serve.models import logits_under
    from calib_serve.scores import Scores

    refuse_file_options(options, "--model")
    asked = model_samples(data, options, artifact=artifact, outputs=artifact.model.outputs)
    # A new head returns logits, whatever the model returned before.
    kind = "logits" if artifact.head is not None else asked.classifier.outputs
    z = logits_under(asked.classifier, asked.inputs, artifact)
    return Scores.of_logits(z, asked.labels, kind, class_names=asked.class_names)


def read_tree(said: Any) -> Any:
    """Read the file of ``--tree``; what is no file of it, as sep:/, stays."""
    from calib_serve.core.files import read_whole
    from calib_serve.scores import read_yaml

    if not isinstance(said, str) or said.startswith("sep:"):
        return said
    try:
        return read_yaml(read_whole(Path(said)))
    except (OSError, ValueError) as error:
        raise InputError(
            f"--tree: cannot read {said!r}, a YAML file of nested names, or sep:/: {error}"
        ) from None


def refuse_file_options(options: BySchema, source: str) -> None:
    """Raise InputError for an option of a file of scores that is given beside a model or an archive."""
    if extra := [name for name in options.of_file if name != "outputs"]:
        flag = f"--{extra[0].replace('_', '-')}"
        raise InputError(
            f"{flag} is for a file of scores; beside {source}, DATA hold inputs and their labels"
        )


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """Options of how pictures are prepared."""

    pictures: list[str] = field(default_factory=list)
    """How pictures are prepared: mean=, std=, image_size=, resize_shorter=, crop=, interpolation=, each."""


def preprocessing(given: Sequence[str]) -> Preprocessing | None:
    """Read ``--pictures``; None where it is not given. Raises InputError for a half of a pair."""
    from calib_serve.artifact import Preprocessing

    if not given:
        return None
    known = pairs(given, "--pictures")
    unknown = [key for key in known if key not in _KEYS]
    check(not unknown, "pictures", f"has the keys {', '.join(_KEYS)}, not {', '.join(unknown)}")
    # Half of a normalisation would be completed by a default, and every score be wrong in silence.
    if not {"mean", "std"} <= set(known):
        raise InputError(
            f"--pictures {', '.join(known)}: give mean and std, too; mean=0 and std=1 say that the model "
            "takes [0, 1]"
        )
    check(
        not {"image_size", "resize_shorter"} <= set(known),
        "pictures",
        "takes image_size or resize_shorter, not both",
    )
    image_size, crop = known.get("image_size"), known.get("crop")
    made: dict[str, Any] = {
        "mean": _several(known["mean"]),
        "std": _several(known["std"]),
        "resize": known.get("resize_shorter") if image_size is None else _size(image_size),
        "crop": None if crop is None else _size(crop),
    }
    if "interpolation" in known:
        made["interpolation"] = known["interpolation"]
    return Preprocessing.of(made)


def _several(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list) else [given]


def _size(given: Any) -> tuple[Any, ...]:
    """Height and width; one number stands for both."""
    sizes = _several(given)
    return (*sizes, *sizes) if len(sizes) == 1 else tuple(sizes)
