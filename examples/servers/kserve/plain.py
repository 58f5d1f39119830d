"""A classifier behind KServe's Python server."""

import numpy as np
import pandas as pd
from kserve import Model, ModelServer
from kserve.utils.utils import get_predict_input, get_predict_response


class Digits(Model):
    """Answers the protocols v1, v2 and gRPC."""

    def load(self) -> bool:
        """Called before the server starts its workers."""
        self.weights = dict(np.load("weights.npz"))
        self.ready = True
        return self.ready

    def predict(self, payload, headers=None):
        """One prediction a row of features."""
        logits = get_predict_input(payload) @ self.weights["W"] + self.weights["b"]
        found = pd.DataFrame({"predicted": logits.argmax(axis=1)})
        if isinstance(payload, dict):
            return {"predictions": found["predicted"].tolist()}
        return get_predict_response(payload, found, self.name)


if __name__ == "__main__":
    digits = Digits("digits")
    digits.load()
    ModelServer().start([digits])
