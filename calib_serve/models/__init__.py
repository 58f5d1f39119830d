"""The deployed classifier of any file format: logits, features of the last linear layer, input gradient."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
