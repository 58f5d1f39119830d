"""Entry point of TorchServe, which needs exactly one class defined in its handler file."""

from calib_serve.torchserve.feedback import CalibrationFeedback


class Handler(CalibrationFeedback):
    """Receives labels."""
