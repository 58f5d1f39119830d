"""A classifier behind KServe's Python server."""

import signal

import numpy as np
import pandas as pd
from kserve import Model, ModelServer
from kserve.utils.utils import get_predict_input, get_predict_response

from calib_serve import Reporter

signal.signal(signal.SIGTERM, signal.default_int_handler)  # a worker that ends runs its exit handlers


class Digits(Model):
    """Answers the protocols v1, v2 and gRPC."""

    def load(self) -> bool:
        """Called before the server starts its workers."""
        self.weights = dict(np.load("weights.npz"))
        self.reporter = Reporter("artifact", model="digits", version="1", watch="http://127.0.0.1:9300")
        self.ready = True
        return self.ready

    def predict(self, payload, headers=None):
        """One prediction a row of features."""
        logits = get_predict_input(payload) @ self.weights["W"] + self.weights["b"]
        probs = self.reporter.artifact.of_logits(logits)
        found = pd.DataFrame({"predicted": probs.argmax(axis=1), "confidence": probs.max(axis=1)})
        found["receipt"] = np.array([receipt or "" for receipt in self.reporter.served(probs)], object)
        if isinstance(payload, dict):
            named = {"predictions": "predicted", "confidences": "confidence", "receipts": "receipt"}
            return {key: found[name].tolist() for key, name in named.items()}
        return get_predict_response(payload, found, self.name)


if __name__ == "__main__":
    digits = Digits("digits")
    digits.load()
    ModelServer().start([digits])
