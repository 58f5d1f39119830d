"""Receipts: signed records of served predictions, which clients cannot forge.

The client gets a receipt with each prediction and sends it back with the label, to any worker on any host. It
holds all that is needed to count the label, so no prediction has to be looked up. ``wire`` holds its bytes.
"""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
