"""The gateway: a reverse proxy for the Open Inference Protocol that calibrates, signs and watches."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__, extra="gateway")
