"""The usual experiments of calibration papers, on your own data.

Each returns a ``Study``: a table, curves, and what they say in plain words.
"""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
