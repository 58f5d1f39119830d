"""Every error this package raises on purpose.

Catch ``CalibServeError`` to catch them all::

    CalibServeError
    ├── InputError (ValueError)          arrays, labels or options that cannot be right
    │   └── ShapeError                   an array of the wrong shape
    ├── ArtifactError                    an artifact that cannot be used
    │   ├── SchemaError                  its manifest is not one we read
    │   └── IntegrityError               its bytes are not what its manifest says
    ├── ModelError                       the deployed model cannot be loaded or does not fit
    ├── FuseError                        a calibration cannot be put into this model
    ├── FitError                         a fit that did not reach its optimum
    ├── KeyringError                     no usable signing keys
    ├── Refused                          a receipt or label that is not counted; ``.reason`` says why
    ├── LedgerError                      the record of accepted labels cannot be kept
    ├── ServerError                      a server did not start, answer or stop
    └── MissingDependency (ImportError)  a part needs an extra that is not installed

A message says what was wrong, what we got, and what to do about it.
"""

from __future__ import annotations

from typing import Literal

Reason = Literal[
    "malformed",
    "unknown_key",
    "bad_signature",
    "expired",
    "unknown_version",
    "bad_label",
    "duplicate",
]
"""Why a label was not counted; also the value of the ``reason`` label in Prometheus."""

REASONS: tuple[Reason, ...] = (
    "malformed",
    "unknown_key",
    "bad_signature",
    "expired",
    "unknown_version",
    "bad_label",
    "duplicate",
)


class CalibServeError(Exception):
    """The root of the tree."""


class InputError(CalibServeError, ValueError):
    """Arrays, labels or options that cannot be right."""


class ShapeError(InputError):
    """An array of the wrong shape."""


class ArtifactError(CalibServeError):
    """An artifact that cannot be used."""


class SchemaError(ArtifactError):
    """A manifest that is not one we read."""


class IntegrityError(ArtifactError):
    """Bytes that are not what the manifest says."""


class ModelError(CalibServeError):
    """A deployed model that cannot be loaded or does not fit."""


class FuseError(CalibServeError):
    """A calibration that cannot be put into this model."""


class FitError(CalibServeError):
    """A fit that did not reach its optimum."""


class KeyringError(CalibServeError):
    """No usable signing keys."""


class Refused(CalibServeError):
    """A receipt or label that is not counted."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class LedgerError(CalibServeError):
    """The record of accepted labels cannot be kept."""


class ServerError(CalibServeError):
    """A server that did not start, answer or stop."""


class MissingDependency(CalibServeError, ImportError):
    """A part needs an extra that is not installed, or a module that belongs to none."""

    def __init__(self, module: str, extra: str | None = None) -> None:
        wanted = module if extra is None else f"'calib-serve[{extra}]'"
        super().__init__(f"{module} is not installed; run: pip install {wanted}")
