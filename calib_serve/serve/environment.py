"""The host's own settings, which no archive may carry: set by ``calib-serve serve``, read by workers."""

from __future__ import annotations

import os

from calib_serve.options.servers import variable

KEYRING, LEDGER, LABEL_BUDGET = variable("keyring"), variable("ledger"), variable("label_budget")
SAMPLES, SAMPLE_RATE = variable("samples"), variable("sample_rate")
SAMPLE_SECONDS = variable("sample_seconds")
MODELS = "CALIB_SERVE_MODELS"
SOURCE = "CALIB_SERVE_SOURCE"
SOURCE_HEADER = "CALIB_SERVE_SOURCE_HEADER"


def from_environment(name: str) -> str | None:
    """Read a host's own setting; None where it is not set or empty."""
    return os.environ.get(name) or None
