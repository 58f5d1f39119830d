"""Options: an option is a field of a frozen dataclass here, which is its only declaration.

A field has the option's type and default; the text below it is its help, and ``__post_init__`` its check. The
command line, configuration files, environment variables, keyword arguments and the reference pages are made
from these classes. They import nothing heavy, so that ``--help`` is quick.
"""

from calib_serve.options.base import Factory, Seeded, changed, check, check_positive, check_share, divided
from calib_serve.options.data import (
    ArchiveFitOptions,
    ArchiveOptions,
    DataOptions,
    ModelData,
    TrialOptions,
)
from calib_serve.options.evaluate import (
    Binned,
    CompareOptions,
    EvaluateOptions,
    Interval,
    JudgeOptions,
    MeasureOptions,
    Resampled,
    Tolerant,
    VerdictOptions,
)
from calib_serve.options.fit import FitOptions, ModelFitOptions, Prior
from calib_serve.options.scores import FileOptions, Kind, ScoresOptions

__all__ = [
    "ArchiveFitOptions",
    "ArchiveOptions",
    "Binned",
    "CompareOptions",
    "DataOptions",
    "EvaluateOptions",
    "Factory",
    "FileOptions",
    "FitOptions",
    "Interval",
    "JudgeOptions",
    "Kind",
    "MeasureOptions",
    "ModelData",
    "ModelFitOptions",
    "Prior",
    "Resampled",
    "ScoresOptions",
    "Seeded",
    "Tolerant",
    "TrialOptions",
    "VerdictOptions",
    "changed",
    "check",
    "check_positive",
    "check_share",
    "divided",
]
