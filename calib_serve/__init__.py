"""Calib Serve: calibrated confidence for deployed classifiers, proved in production.

Everything in ``__all__`` is public and follows semantic versioning, and so do the names in the faces of the
rooms that docs/api.md shows. Names are imported when they are first used, so that ``import calib_serve``
costs next to nothing. With ``import *`` come those whose extras are installed; any other raises
MissingDependency, which names its extra.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

__version__ = "0.3.0"

__all__ = [
    "Artifact",
    "Bins",
    "CalibServeError",
    "ConfidenceHistogramDisplay",
    "Keyring",
    "Label",
    "LabelPolicy",
    "Preprocessing",
    "Receipt",
    "ReliabilityDisplay",
    "Reporter",
    "RiskCoverageDisplay",
    "Scores",
    "Server",
    "Verdict",
    "Watch",
    "__version__",
    "calibrate",
    "calibrate_model",
    "calibrated",
    "compare",
    "create_app",
    "decide",
    "estimate_prior",
    "evaluate",
    "fuse_onnx",
    "fuse_torch",
    "fuse_triton",
    "judge",
    "load_artifact",
    "load_data",
    "load_model",
    "pack",
    "pack_around",
    "refit",
    "refit_served",
    "send_label_file",
    "serve_app",
    "verdict",
    "with_prior",
    "write_report",
]

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact
    from calib_serve.artifact.preprocessing import Preprocessing
    from calib_serve.core.bins import Bins
    from calib_serve.core.errors import CalibServeError
    from calib_serve.fit.comparing import compare
    from calib_serve.fit.deciding import decide
    from calib_serve.fit.from_model import calibrate_model
    from calib_serve.fit.from_scores import calibrate
    from calib_serve.fit.measure import verdict
    from calib_serve.fit.refitting import refit
    from calib_serve.fit.shares import estimate_prior, with_prior
    from calib_serve.fuse.onnx import fuse_onnx
    from calib_serve.fuse.torch import calibrated, fuse_torch
    from calib_serve.fuse.triton import fuse_triton
    from calib_serve.integrations.collect import send_label_file
    from calib_serve.metrics import Verdict, evaluate, judge
    from calib_serve.models import load_data, load_model
    from calib_serve.monitor.watch import Watch
    from calib_serve.receipts import Keyring, Label, Receipt
    from calib_serve.receipts.policy import LabelPolicy
    from calib_serve.receipts.reporter import Reporter
    from calib_serve.report import write_report
    from calib_serve.report.displays import (
        ConfidenceHistogramDisplay,
        ReliabilityDisplay,
        RiskCoverageDisplay,
    )
    from calib_serve.scores import Scores
    from calib_serve.torchserve.archive import load_artifact, pack, pack_around
    from calib_serve.torchserve.refitting import refit_served
    from calib_serve.torchserve.server import Server
    from calib_serve.web import create_app, serve_app
else:
    # Hidden from type checkers, to whom a name that is not above would otherwise be anything.
    _FACES = {
        "artifact": ("Artifact",),
        "bins": ("Bins",),
        "collect": ("send_label_file",),
        "data": ("load_data",),
        "errors": ("CalibServeError",),
        "fit.calibrate": ("calibrate",),
        "fit.calibrate_model": ("calibrate_model",),
        "fit.compare": ("compare",),
        "fit.decide": ("decide",),
        "fit.measure": ("verdict",),
        "fit.shares": ("estimate_prior", "with_prior"),
        "fuse.onnx": ("fuse_onnx",),
        "fuse.torch": ("calibrated", "fuse_torch"),
        "fuse.torchserve": ("load_artifact", "pack", "pack_around"),
        "fuse.triton": ("fuse_triton",),
        "metrics": ("evaluate",),
        "model": ("load_model",),
        "pictures": ("Preprocessing",),
        "receipts": ("Keyring", "Label", "Receipt"),
        "refitting": ("refit",),
        "report": ("write_report",),
        "report.displays": ("ConfidenceHistogramDisplay", "ReliabilityDisplay", "RiskCoverageDisplay"),
        "reporter.reporter": ("Reporter",),
        "scores": ("Scores",),
        "serve.refit_served": ("refit_served",),
        "serve.server": ("Server",),
        "verdicts": ("Verdict", "judge"),
        "watch.http": ("create_app", "serve_app"),
        "watch.policy": ("LabelPolicy",),
        "watch.service": ("Watch",),
    }
    _ROOM = {name: room for room, names in _FACES.items() for name in names}

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
            from calib_serve.core.errors import EXTRA_OF, MissingDependency  # noqa: PLC0415

            if (error.name or "").partition(".")[0] not in EXTRA_OF:
                raise
            raise MissingDependency(error.name) from error
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted([*globals(), *_ROOM])
