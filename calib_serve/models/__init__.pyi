"""The deployed classifier of any file format: logits, features of the last linear layer, input gradient."""

from calib_serve.models.cached_classifier import CachedClassifier as CachedClassifier
from calib_serve.models.classifier import Classifier as Classifier
from calib_serve.models.classifier import Progress as Progress
from calib_serve.models.classifier import calibrated_probs as calibrated_probs
from calib_serve.models.classifier import logits_under as logits_under
from calib_serve.models.dataset import Dataset as Dataset
from calib_serve.models.dataset import in_order_of as in_order_of
from calib_serve.models.dataset import load_data as load_data
from calib_serve.models.exported import batch_range as batch_range
from calib_serve.models.exported import load_exported as load_exported
from calib_serve.models.exported import module_on as module_on
from calib_serve.models.labelled import LabelledRequests as LabelledRequests
from calib_serve.models.labelled import read_requests as read_requests
from calib_serve.models.load import load_model as load_model
from calib_serve.models.load import model_data as model_data
from calib_serve.models.load import weights_remarks as weights_remarks
from calib_serve.models.torch_classifier import from_module as from_module
from calib_serve.models.torchscript import is_scripted as is_scripted
from calib_serve.models.torchscript import is_torchscript as is_torchscript
from calib_serve.models.torchscript import load_torchscript as load_torchscript
from calib_serve.models.torchscript import save_torchscript as save_torchscript
from calib_serve.models.torchscript import scripted_around as scripted_around
from calib_serve.models.torchscript import scripted_inputs as scripted_inputs
from calib_serve.models.torchscript import warn_of_torchscript as warn_of_torchscript
