"""Options that say what scores are, and which samples of a file to take."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from calib_serve.options.base import RARE, Checked, fields_of

__all__ = ["ColumnOptions", "FileOptions", "Kind", "ModelScores", "PlainData", "ScoresOptions", "SplitData"]

Kind = Literal[
    "logits", "log_probs", "probabilities", "logit", "probability", "label_logits", "label_probabilities"
]
"""What a classifier's scores are; the same as ``calib_serve.scores.Outputs``."""


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(Checked):
    """Which columns of a file are scores."""

    columns: tuple[str, ...] | None = None
    """The columns of the classes, names or patterns such as p_*; others are left out."""


@dataclass(frozen=True, kw_only=True)
class PlainData(ColumnOptions):
    """Which scores of a file are read, where an artifact says what they are and what classes are called."""

    split: str | None = None
    """Which split of the data, such as cal or test."""


@dataclass(frozen=True, kw_only=True)
class ScoresOptions(ColumnOptions):
    """What scores are; in Python each also takes an array where the command line takes a column's name."""

    outputs: Kind | None = None
    """What the scores are, where neither their name nor their numbers say."""
    class_names: Annotated[tuple[str, ...] | None, RARE] = None
    """What the classes are called, in order, where the data do not say."""
    groups: Any = None
    """Which samples belong together, such as one patient's: a column, or an npy file."""
    sample_weight: Annotated[Any, RARE] = None
    """The weight of each sample: a column, or an npy file."""
    ignore_label: Annotated[Any, RARE] = None
    """Labels that stand for none, such as 255 or NA: their samples are left out."""

    @property
    def of_scores(self) -> dict[str, Any]:
        """Return the options that are given, as keyword arguments of ``Scores.of``."""
        own = fields_of(ScoresOptions, self)
        return {name: value for name, value in own.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ModelScores(Checked):
    """What a model that is changed returns."""

    outputs: Kind | None = None
    """What the model's scores are, where nothing else says it."""


@dataclass(frozen=True, kw_only=True)
class FileOptions(ScoresOptions):
    """What a file of scores holds."""

    labels: str | None = None
    """The labels: a column or array of the file, or an npy file."""


@dataclass(frozen=True, kw_only=True)
class SplitData(FileOptions, PlainData):
    """Which samples of a file of scores are meant."""
