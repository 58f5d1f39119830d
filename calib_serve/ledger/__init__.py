"""The ledger of accepted labels: each is counted once, whoever sends it, however often."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
