"""TorchServe enters here; TorchServe needs exactly one class defined in its handler file."""

from calib_serve.serve.feedback import CalibrationFeedback


class Handler(CalibrationFeedback):
    """Labels come home to this model; it has one worker."""
