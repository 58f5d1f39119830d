"""Where the files shipped with the package are: in a wheel, or at the root of a checkout."""

from __future__ import annotations

from pathlib import Path

import calib_serve
from calib_serve.errors import ModelError

__all__ = ["shipped"]


def shipped(name: str) -> Path:
    """The file ``name``, such as "config.properties" or "handlers/calibrated_classifier.py"."""
    package = Path(calib_serve.__file__).parent
    for root in (package / "_shipped", package.parent):
        if (root / name).is_file():
            return root / name
    raise ModelError(f"{name} is missing from this installation; install calib-serve again")
