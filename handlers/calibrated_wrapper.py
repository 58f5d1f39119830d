"""TorchServe enters here; TorchServe needs exactly one class defined in its handler file."""

from calib_serve.serve.wrapped import CalibratedWrapper


class Handler(CalibratedWrapper):
    """Stands in for the handler that the archive had before."""
