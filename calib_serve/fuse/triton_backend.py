"""Where Triton repositories of 0.1.0 look for their Python step; it lives in ``calib_serve.serve.triton``."""

from calib_serve.serve.triton import TritonPythonModel

__all__ = ["TritonPythonModel"]
