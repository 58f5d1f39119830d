"""The deployed classifier of any file format: logits, features of the last linear layer, input gradient."""

from calib_serve.models.classifier import Classifier, Progress, calibrated_probs, logits_under
from calib_serve.models.load import load_model, weights_remarks
from calib_serve.models.torch_classifier import TorchClassifier, from_module

__all__ = ["Classifier", "Progress", "TorchClassifier"]
__all__ += ["calibrated_probs", "from_module", "load_model", "logits_under", "weights_remarks"]
