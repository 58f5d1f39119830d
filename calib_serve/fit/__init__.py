"""Fitters: calibration data in, an artifact out."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
