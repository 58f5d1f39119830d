"""The artifact: the result of a fit, as steps that any runtime can execute."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
