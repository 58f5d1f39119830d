"""Scores of a classifier: their kind, their classes, and the labels, weights and groups of each sample."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
