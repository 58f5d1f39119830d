"""Calib Serve: calibrated confidence for deployed classifiers, proved in production."""

from calib_serve.artifact import Artifact, Head, InputShift, LogitMap, Mixture, ProbTable
from calib_serve.bins import Bins
from calib_serve.errors import CalibServeError
from calib_serve.receipts import Keyring, Label, Receipt

__version__ = "0.1.0"

__all__ = [
    "Artifact",
    "Bins",
    "CalibServeError",
    "Head",
    "InputShift",
    "Keyring",
    "Label",
    "LogitMap",
    "Mixture",
    "ProbTable",
    "Receipt",
    "__version__",
]
