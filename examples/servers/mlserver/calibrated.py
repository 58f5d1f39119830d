"""A classifier behind MLServer."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse

from calib_serve import Reporter


class Digits(MLModel):
    """One model in each worker of the inference pool."""

    async def load(self) -> bool:
        """Called in the worker."""
        self.weights = dict(np.load("weights.npz"))
        self.reporter = Reporter("artifact", model="digits", version="1", watch="http://127.0.0.1:9300")
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """One prediction a row of features."""
        rows = NumpyCodec.decode_input(payload.inputs[0])
        logits = rows @ self.weights["W"] + self.weights["b"]
        probs = self.reporter.artifact.of_logits(logits)
        receipts = [receipt or "" for receipt in self.reporter.served(probs)]
        outputs = [NumpyCodec.encode_output("predicted", probs.argmax(axis=1))]
        outputs.append(NumpyCodec.encode_output("confidence", probs.max(axis=1)))
        outputs.append(StringCodec.encode_output("receipt", receipts))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)
