"""The watch: predictions and late labels in; sums, alarms and metrics out. No torch, no onnx."""

from calib_serve.core.faces import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
