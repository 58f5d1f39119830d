"""Signs and counts the predictions of the model beside it."""

from calib_serve.fuse.triton_backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
