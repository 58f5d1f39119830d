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
    SplitData,
    TrialOptions,
)
from calib_serve.options.decide import ContractOptions, DecideOptions, PlanOptions, PromiseOptions
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
from calib_serve.options.fuse import (
    FuseOptions,
    GraphFuse,
    GraphOptions,
    ModuleOptions,
    OnnxFuse,
    OnnxOptions,
    TorchOptions,
    TritonFuse,
    TritonOptions,
)
from calib_serve.options.pack import (
    AnswerOptions,
    ArchivePack,
    AroundOptions,
    FeedbackOptions,
    Flushed,
    ModelPack,
    Packed,
    PackOptions,
    Threshold,
    Wrapped,
)
from calib_serve.options.scores import FileOptions, Kind, ScoresOptions

__all__ = [
    "AnswerOptions",
    "ArchiveFitOptions",
    "ArchiveOptions",
    "ArchivePack",
    "AroundOptions",
    "Binned",
    "CompareOptions",
    "ContractOptions",
    "DataOptions",
    "DecideOptions",
    "EvaluateOptions",
    "Factory",
    "FeedbackOptions",
    "FileOptions",
    "FitOptions",
    "Flushed",
    "FuseOptions",
    "GraphFuse",
    "GraphOptions",
    "Interval",
    "JudgeOptions",
    "Kind",
    "MeasureOptions",
    "ModelData",
    "ModelFitOptions",
    "ModelPack",
    "ModuleOptions",
    "OnnxFuse",
    "OnnxOptions",
    "PackOptions",
    "Packed",
    "PlanOptions",
    "Prior",
    "PromiseOptions",
    "Resampled",
    "ScoresOptions",
    "Seeded",
    "SplitData",
    "Threshold",
    "Tolerant",
    "TorchOptions",
    "TrialOptions",
    "TritonFuse",
    "TritonOptions",
    "VerdictOptions",
    "Wrapped",
    "changed",
    "check",
    "check_positive",
    "check_share",
    "divided",
]
