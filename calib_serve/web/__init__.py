"""The watch over HTTP: labels and predictions in, metrics and a page out."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__, extra="watch")
