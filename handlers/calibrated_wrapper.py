"""Entry point of TorchServe, which needs exactly one class defined in its handler file."""

from calib_serve.torchserve.wrapped import CalibratedWrapper


class Handler(CalibratedWrapper):
    """Replaces the archive's original handler."""
