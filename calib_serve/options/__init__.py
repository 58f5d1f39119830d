"""Options: an option is a field of a frozen dataclass here, which is its only declaration.

A field has the option's type and default; the text below it is its help, and ``__post_init__`` its check. The
command line, configuration files, environment variables, keyword arguments and the reference pages are made
from these classes. They import nothing heavy, so that ``--help`` is quick.
"""

from calib_serve.options.audit import AuditOptions, EngineLimits, LogOptions
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
from calib_serve.options.gateway import BeforeOptions, GatewayLimits, GatewayOptions
from calib_serve.options.label import (
    CollectOptions,
    FollowOptions,
    LabelColumns,
    LabelOptions,
    RefusedRows,
    SendLimits,
    TargetOptions,
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
from calib_serve.options.refit import GateOptions, RefitOptions, ServedRefitOptions
from calib_serve.options.scores import ColumnOptions, FileOptions, Kind, ScoresOptions, SplitOptions
from calib_serve.options.serve import HostOptions, ServeOptions, variable
from calib_serve.options.watch import (
    AskOptions,
    CountOptions,
    DriftOptions,
    KeyOptions,
    SampleOptions,
    WatchOptions,
)
from calib_serve.options.web import ListenOptions, WebLimits, WebOptions

__all__ = [
    "AnswerOptions",
    "ArchiveFitOptions",
    "ArchiveOptions",
    "ArchivePack",
    "AroundOptions",
    "AskOptions",
    "AuditOptions",
    "BeforeOptions",
    "Binned",
    "CollectOptions",
    "ColumnOptions",
    "CompareOptions",
    "ContractOptions",
    "CountOptions",
    "DataOptions",
    "DecideOptions",
    "DriftOptions",
    "EngineLimits",
    "EvaluateOptions",
    "Factory",
    "FeedbackOptions",
    "FileOptions",
    "FitOptions",
    "Flushed",
    "FollowOptions",
    "FuseOptions",
    "GateOptions",
    "GatewayLimits",
    "GatewayOptions",
    "GraphFuse",
    "GraphOptions",
    "HostOptions",
    "Interval",
    "JudgeOptions",
    "KeyOptions",
    "Kind",
    "LabelColumns",
    "LabelOptions",
    "ListenOptions",
    "LogOptions",
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
    "RefitOptions",
    "RefusedRows",
    "Resampled",
    "SampleOptions",
    "ScoresOptions",
    "Seeded",
    "SendLimits",
    "ServeOptions",
    "ServedRefitOptions",
    "SplitData",
    "SplitOptions",
    "TargetOptions",
    "Threshold",
    "Tolerant",
    "TorchOptions",
    "TrialOptions",
    "TritonFuse",
    "TritonOptions",
    "VerdictOptions",
    "WatchOptions",
    "WebLimits",
    "WebOptions",
    "Wrapped",
    "changed",
    "check",
    "check_positive",
    "check_share",
    "divided",
    "variable",
]
