"""A handler of your own: text in, and a reply of another shape out.

    calib-serve pack --model net.pt2 --artifact fitted --name letters --input-shape 26 --handler own_handler.py

TorchServe needs exactly one class in this file. Bad input raises InputError: its message is sent to the
client as a 400, and the other requests of the batch are answered as usual.
"""  # noqa: E501

import numpy as np

from calib_serve.core.errors import InputError
from calib_serve.torchserve._predictions import Prediction
from calib_serve.torchserve.classifier import CalibratedClassifier


class Handler(CalibratedClassifier):
    """Counts letters: what a bag-of-letters model takes."""

    def preprocess(self, payload):
        """One payload to one input; the server has decoded JSON already."""
        if not isinstance(payload, str) or not payload.isascii():
            raise InputError("send plain ASCII text")
        letters = np.frombuffer(payload.lower().encode(), np.uint8)
        return np.bincount(letters, minlength=128)[97:123].astype(np.float32)

    def postprocess(self, prediction: Prediction):
        """One reply; it must hold the receipt, which the client sends back with the label."""
        return {"sure": prediction.confidence > 0.9, "receipt": prediction.receipt}
