"""Entry point of TorchServe, which needs exactly one class defined in its handler file."""

from calib_serve.torchserve.classifier import CalibratedClassifier


class Handler(CalibratedClassifier):
    """Answers a packed model."""
