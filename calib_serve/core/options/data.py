"""Options of the samples to fit or measure: scores of a file, or a model or archive with its data."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from calib_serve.core.options.base import (
    PYTHON,
    SCHEMA,
    Checked,
    Factory,
    check,
    check_default,
    check_positive,
    given_fields,
)

Kind = Literal[
    "logits", "log_probs", "probabilities", "logit", "probability", "label_logits", "label_probabilities"
]
"""What a classifier's scores are; the same as ``calib_serve.scores.Outputs``."""


@dataclass(frozen=True, kw_only=True)
class BySchema(Checked):
    """What was written down of scores."""

    schema: Any = None
    """What else is said of the scores: a file that calib-serve schema wrote."""

    @property
    def of_file(self) -> dict[str, Any]:
        """The given options, as keyword arguments of ``Scores.read``, but for the split."""
        known = {field.name: getattr(self, field.name, None) for field in fields(FileOptions)}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class PlainData(BySchema):
    """Which scores of a file are read, where an artifact says what they are and what classes are called."""

    split: str | None = None
    """Which split of the data, such as cal or test."""


@dataclass(frozen=True, kw_only=True)
class Grouped(BySchema):
    """Which samples are not independent."""

    groups: Any = None
    """Which samples belong together, such as one patient's: a column, or an npy file."""


@dataclass(frozen=True, kw_only=True)
class ScoresOptions(Grouped):
    """The kind and columns of scores; in Python each also takes an array in place of a column's name."""

    columns: tuple[str, ...] | None = None
    """The columns of the classes, names or patterns such as p_*, or the array of scores."""
    outputs: str | None = None
    """What the scores are, where their names do not say it: logits, probabilities or log_probs; of one column
    logit or probability; of labels label_logits or label_probabilities; or a scale: percent, odds, votes:N,
    points:LOW:HIGH, log10, log2, log-odds:BASE, neg-log-p; of language models' answers answers:FILE.yaml."""
    missing: Annotated[tuple[str, ...] | None, SCHEMA] = None
    """Scores that stand for none, such as -999 or nan: their rows are left out; none where no score does."""
    class_names: Annotated[tuple[str, ...] | None, SCHEMA] = None
    """Names of the classes, in order, where the data have none."""
    sample_weight: Annotated[Any, SCHEMA] = None
    """The weight of each sample: a column, or an npy file."""
    ignore_label: Annotated[tuple[str, ...] | None, SCHEMA] = None
    """Labels that mean no label, such as 255,NA: their samples are left out."""

    @property
    def kind(self) -> Kind | None:
        """The kind of a model's own scores, which have no scale."""
        for kind in get_args(Kind):
            if self.outputs == kind:
                return kind  # type: ignore[no-any-return]
        check(self.outputs is None, "outputs", f"is one of {', '.join(get_args(Kind))}, got {self.outputs!r}")
        return None

    @property
    def of_scores(self) -> dict[str, Any]:
        """The given options, as keyword arguments of ``Scores.of``."""
        return given_fields(ScoresOptions, self)


@dataclass(frozen=True, kw_only=True)
class FileOptions(ScoresOptions):
    """The contents of a file of scores."""

    labels: str | None = None
    """The labels: a column or array of the file, or an npy file."""


@dataclass(frozen=True, kw_only=True)
class SplitData(FileOptions, PlainData):
    """The samples of a file of scores."""


@dataclass(frozen=True, kw_only=True)
class OfModel(Checked):
    """A model that is asked for its scores."""

    model: str | None = None
    """A model that DATA are the inputs and labels of: a file, a Hugging Face folder, or module:factory."""


@dataclass(frozen=True, kw_only=True)
class OfFile(OfModel, Factory):
    """A model that its file alone does not make."""

    def _check(self) -> None:
        check(
            self.weights is None or self.model is not None,
            "weights",
            "are those of a model that is a factory, and none is given",
        )
        if self.model is None:
            check_default(self, ["output_name"], "is of an ONNX file, and no model is given")


@dataclass(frozen=True, kw_only=True)
class HeldData(PlainData, Grouped, OfModel):
    """The origin of scores of an artifact's model, which says what they are."""


@dataclass(frozen=True, kw_only=True)
class TrialOptions(Checked):
    """How a TorchServe archive's own handler is asked for its scores."""

    seam: str | None = None
    """Where the class scores pass in the archive's handler: PLACE, or PLACE:OUTPUT, as in model:logits."""
    # Of one answer, not of all: it bounds a handler that hangs, however many samples there are.
    probe_timeout: Annotated[float, PYTHON] = 60
    """Seconds that the archive's handler may take to answer."""

    def _check(self) -> None:
        check_positive("probe_timeout", self.probe_timeout)
        check(self.seam not in ("", ":"), "seam", f"is PLACE, PLACE:OUTPUT or :OUTPUT, got {self.seam!r}")

    @property
    def place(self) -> str | None:
        """The place where the class scores pass."""
        return None if self.seam is None else self.seam.partition(":")[0] or None

    @property
    def output(self) -> str | None:
        """The place of the scores in the values that pass there."""
        return None if self.seam is None else self.seam.partition(":")[2] or None


@dataclass(frozen=True, kw_only=True)
class DataOptions(SplitData, OfFile, TrialOptions):
    """The origin of scores: DATA alone holds them, else it holds the inputs of a model or an archive."""

    from_: Path | None = None
    """A TorchServe archive that DATA are the requests and labels of; its own handler is asked."""

    def _check(self) -> None:
        check(
            self.model is None or self.from_ is None,
            "from_",
            "names an archive, and there is a model: give one of both",
        )
        check(
            self.seam is None or self.from_ is not None,
            "seam",
            "is a place in the handler of an archive, and none is given",
        )


@dataclass(frozen=True, kw_only=True)
class ModelScores(Checked):
    """The scores that a changed model returns."""

    outputs: Kind | None = None
    """The kind of the model's scores, where nothing else tells."""


@dataclass(frozen=True, kw_only=True)
class ProofOptions(Checked):
    """What proves that a model gives the scores that were fitted, where its file's hash does not."""

    against: Any = None
    """The fitted scores of --inputs: a file of them, in which the inputs may be, too (.npz), or the fitted
    estimator (.joblib, .pkl, .skops), which is run in a process of its own: loading it runs its code."""
    unproven: bool = False
    """Write without this proof; what is written says so."""

    def _check(self) -> None:
        both = self.against is not None and self.unproven
        check(not both, "unproven", "says that nothing is compared, and against says what to compare with")


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(TrialOptions, ModelScores):
    """Options of ``scores_of_archive`` and ``look_at_archive``; the scores are those that pass there."""

    batch_size: Annotated[int | None, PYTHON] = None
    """Requests at once; by default the archive's, if it is proved which row of a batch is whose."""
