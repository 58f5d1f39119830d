"""Serving under TorchServe and Triton: handlers, emission, and the server itself."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
