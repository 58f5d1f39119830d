"""Fuse a model and an artifact into a calibrated model. Fusion knows steps, not fitting methods."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
