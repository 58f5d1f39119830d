"""A classifier behind MLServer."""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Digits(MLModel):
    """One model in each worker of the inference pool."""

    async def load(self) -> bool:
        """Called in the worker."""
        self.weights = dict(np.load("weights.npz"))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """One prediction a row of features."""
        rows = NumpyCodec.decode_input(payload.inputs[0])
        logits = rows @ self.weights["W"] + self.weights["b"]
        outputs = [NumpyCodec.encode_output("predicted", logits.argmax(axis=1))]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)
