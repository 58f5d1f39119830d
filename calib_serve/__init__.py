"""Calib Serve: calibrated confidence for deployed classifiers, proved in production."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_ROOM = {
    "Artifact": "artifact",
    "Bins": "bins",
    "CalibServeError": "errors",
    **dict.fromkeys(("Keyring", "Label", "Receipt"), "receipts"),
    **dict.fromkeys(("Head", "InputShift", "LogitMap", "Mixture", "ProbTable"), "artifact"),
}


def __getattr__(name: str) -> object:
    # Numpy takes longer to import than `calib-serve --help` may take in all: names come when asked for.
    if name not in _ROOM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_ROOM[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOM])
