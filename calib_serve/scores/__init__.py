"""Scores of a classifier: of which kind they are, for which classes, and what belongs to each sample."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
