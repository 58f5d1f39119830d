"""Calib Serve: calibrated confidence for deployed classifiers, proved in production.

Everything in ``__all__`` is public and follows semantic versioning; docs/api.md shows each with an example.
Names are imported when they are first used, so that ``import calib_serve`` costs next to nothing. With
``import *`` come those whose extras are installed; any other raises MissingDependency, which names its extra.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

__version__ = "0.3.0"

__all__ = [
    "Abstain",
    "Artifact",
    "Bins",
    "CalibServeError",
    "Compared",
    "ConfidenceHistogramDisplay",
    "Estimate",
    "Evaluation",
    "Head",
    "InputShift",
    "Keyring",
    "Label",
    "LabelPolicy",
    "LabelsEvaluation",
    "LogitMap",
    "Mixture",
    "ModelFacts",
    "PredictionSets",
    "Preprocessing",
    "PriorEstimate",
    "ProbTable",
    "Receipt",
    "Refitted",
    "ReliabilityDisplay",
    "Reporter",
    "RiskCoverageDisplay",
    "Scores",
    "Selection",
    "ServedPrediction",
    "Server",
    "Verdict",
    "Watch",
    "__version__",
    "calibrate",
    "calibrate_model",
    "calibrated",
    "calibrated_probs",
    "compare",
    "create_app",
    "decide",
    "estimate_prior",
    "evaluate",
    "evaluate_labels",
    "fuse_onnx",
    "fuse_torch",
    "fuse_triton",
    "judge",
    "load_artifact",
    "load_data",
    "load_model",
    "pack",
    "pack_around",
    "pack_feedback",
    "preprocessing_of",
    "read_samples",
    "recalibrated",
    "refit",
    "refit_served",
    "send_label_file",
    "serve_app",
    "verdict",
    "with_prior",
    "write_report",
]

if TYPE_CHECKING:
    from calib_serve.artifact import (
        Abstain,
        Artifact,
        Head,
        InputShift,
        LogitMap,
        Mixture,
        ModelFacts,
        PredictionSets,
        ProbTable,
        Selection,
    )
    from calib_serve.bins import Bins
    from calib_serve.collect import send_label_file
    from calib_serve.data import load_data
    from calib_serve.errors import CalibServeError
    from calib_serve.fit.calibrate import calibrate
    from calib_serve.fit.calibrate_model import calibrate_model
    from calib_serve.fit.compare import Compared, compare
    from calib_serve.fit.decide import decide
    from calib_serve.fit.measure import verdict
    from calib_serve.fit.shares import PriorEstimate, estimate_prior, with_prior
    from calib_serve.fuse.onnx import fuse_onnx
    from calib_serve.fuse.torch import calibrated, fuse_torch
    from calib_serve.fuse.torchserve import load_artifact, pack, pack_around, pack_feedback, recalibrated
    from calib_serve.fuse.triton import fuse_triton
    from calib_serve.judgement import Verdict, judge
    from calib_serve.metrics import (
        Estimate,
        Evaluation,
        LabelsEvaluation,
        evaluate,
        evaluate_labels,
    )
    from calib_serve.model import calibrated_probs, load_model
    from calib_serve.pictures import Preprocessing, preprocessing_of
    from calib_serve.receipts import Keyring, Label, Receipt
    from calib_serve.refit import Refitted, refit, refit_served
    from calib_serve.report import write_report
    from calib_serve.report.displays import (
        ConfidenceHistogramDisplay,
        ReliabilityDisplay,
        RiskCoverageDisplay,
    )
    from calib_serve.reporter.reporter import Reporter
    from calib_serve.scores import Scores
    from calib_serve.serve.server import Server
    from calib_serve.watch.batch import ServedPrediction
    from calib_serve.watch.http import create_app, serve_app
    from calib_serve.watch.policy import LabelPolicy
    from calib_serve.watch.samples import read_samples
    from calib_serve.watch.service import Watch
else:
    # Hidden from type checkers, to whom a name that is not above would otherwise be anything.
    _ROOM = {
        **dict.fromkeys(("Artifact", "Head", "InputShift", "LogitMap", "Mixture"), "artifact"),
        **dict.fromkeys(("Abstain", "ModelFacts", "PredictionSets", "ProbTable", "Selection"), "artifact"),
        "Bins": "bins",
        "send_label_file": "collect",
        "load_data": "data",
        "CalibServeError": "errors",
        "fuse_onnx": "fuse.onnx",
        **dict.fromkeys(("calibrated", "fuse_torch"), "fuse.torch"),
        **dict.fromkeys(
            ("load_artifact", "pack", "pack_around", "pack_feedback", "recalibrated"), "fuse.torchserve"
        ),
        "fuse_triton": "fuse.triton",
        **dict.fromkeys(("Verdict", "judge"), "judgement"),
        **dict.fromkeys(("Estimate", "Evaluation", "LabelsEvaluation"), "metrics"),
        **dict.fromkeys(("evaluate", "evaluate_labels"), "metrics"),
        **dict.fromkeys(("calibrated_probs", "load_model"), "model"),
        **dict.fromkeys(("Preprocessing", "preprocessing_of"), "pictures"),
        **dict.fromkeys(("Keyring", "Label", "Receipt"), "receipts"),
        "Reporter": "reporter.reporter",
        "write_report": "report",
        **dict.fromkeys(
            ("ConfidenceHistogramDisplay", "ReliabilityDisplay", "RiskCoverageDisplay"), "report.displays"
        ),
        "Scores": "scores",
        "Server": "serve.server",
        **dict.fromkeys(("create_app", "serve_app"), "watch.http"),
        "read_samples": "watch.samples",
        "LabelPolicy": "watch.policy",
        "ServedPrediction": "watch.batch",
        "Watch": "watch.service",
        **dict.fromkeys(("Compared", "compare"), "fit.compare"),
        "decide": "fit.decide",
        "calibrate_model": "fit.calibrate_model",
        "calibrate": "fit.calibrate",
        "verdict": "fit.measure",
        **dict.fromkeys(("PriorEstimate", "estimate_prior", "with_prior"), "fit.shares"),
        **dict.fromkeys(("Refitted", "refit", "refit_served"), "refit"),
    }

    # What tells whether a room's extra is installed; looked for, not imported.
    _NEEDS = {
        "fuse.onnx": "onnx_ir",
        "fuse.torch": "torch",
        "fuse.triton": "onnx",
        "model": "torch",
        "report": "matplotlib",
        "report.displays": "matplotlib",
        "serve.server": "httpx",
        "watch.http": "fastapi",
        "fit.calibrate_model": "torch",
    }

    def _installed(name: str) -> bool:
        needs = _NEEDS.get(_ROOM.get(name))
        try:
            return needs is None or find_spec(needs) is not None
        except (ImportError, ValueError):  # finders of others, and modules that others made up, may raise
            return False

    __all__[:] = filter(_installed, __all__)

    def __getattr__(name: str) -> object:
        if name not in _ROOM:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"{__name__}.{_ROOM[name]}"), name)
        except ModuleNotFoundError as error:
            from calib_serve.errors import EXTRA_OF, MissingDependency  # noqa: PLC0415

            if (error.name or "").partition(".")[0] not in EXTRA_OF:
                raise
            raise MissingDependency(error.name) from error
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted([*globals(), *_ROOM])
