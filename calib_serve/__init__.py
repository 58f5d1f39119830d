"""Calib Serve: calibrated confidence for deployed classifiers, proved in production.

Everything in ``__all__`` is public and follows semantic versioning. Names are imported when they are first
used, so that ``import calib_serve`` costs next to nothing. With ``import *`` come those whose extras are
installed; any other raises MissingDependency, which names its extra.
"""

from importlib.util import find_spec

from calib_serve.core.faces import face

__version__ = "0.4.0"

__getattr__, __dir__, _names = face(__name__, __file__)

# What tells whether a name's extra is installed; looked for, not imported.
_NEEDS = {
    **dict.fromkeys(["ReliabilityDisplay", "compare", "write_report"], "matplotlib"),
    **dict.fromkeys(["calibrate_model", "calibrated", "fuse_torch", "load_model"], "torch"),
    **dict.fromkeys(["create_app", "serve_app"], "fastapi"),
    "Server": "httpx",
    "Watch": "sqlalchemy",
    "fuse_onnx": "onnx_ir",
    "fuse_triton": "onnx",
}


def _installed(name: str) -> bool:
    try:
        return name not in _NEEDS or find_spec(_NEEDS[name]) is not None
    except (ImportError, ValueError):  # finders of others, and modules that others made up, may raise
        return False


__all__ = sorted(filter(_installed, [*_names, "__version__"]))  # noqa: PLE0605 - as extras allow
